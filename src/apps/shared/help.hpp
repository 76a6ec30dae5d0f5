#pragma once

// What a program prints of its options.

#include <string>

#include "command_line.hpp"

namespace nanotron::apps {

// The text with lines of at most 80 characters: what a longer one has beyond its last column begins below that.
std::string fitted(const std::string& text);

// The manual page of section 1, in man(7): from the options of `app`.
std::string man_page(const CLI::App& app, const Program& program);

// A script by which `shell` (bash or zsh) completes the options of `app`, their values, keys of the deck, and decks.
std::string completion(const CLI::App& app, const std::string& shell);

}  // namespace nanotron::apps
