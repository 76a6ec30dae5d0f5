#pragma once

#include "command_line.hpp"

namespace nanotron::apps {

// The manual page of section 1, in man(7): from the options of `app`.
std::string man_page(const CLI::App& app, const Program& program);

}  // namespace nanotron::apps
