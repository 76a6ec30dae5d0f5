#pragma once

#include "command_line.hpp"

namespace nanotron::apps {

// A script by which `shell` (bash or zsh) completes the options of `app`, their values, keys of the deck, and decks.
std::string completion(const CLI::App& app, const std::string& shell);

}  // namespace nanotron::apps
