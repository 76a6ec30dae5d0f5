#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nanotron::apps::plan {

struct Options {
  std::string deck, machine;
  std::vector<std::string> overrides;  // group.name=value
  int ranks = 0;
  std::string write;        // a folder for the decks; empty: none
  std::string validate;     // a table of published runs instead of a search
  double max_error = 10.0;  // %, of that table
};

// As in apps::parse_command_line.
std::optional<Options> parse_command_line(int argc, char** argv, bool is_writer);

}  // namespace nanotron::apps::plan
