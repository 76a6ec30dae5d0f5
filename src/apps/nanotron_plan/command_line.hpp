#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nanotron::apps::plan {

struct Options {
  std::string deck;
  std::vector<std::string> machines;   // one; of --validate one for each table
  std::vector<std::string> overrides;  // group.name=value
  int ranks = 0;
  double tokens = 0.0, days = 0.0;    // instead of ranks: of a run
  std::string csv;                    // a file for the sizes of that run; empty: none
  std::string write;                  // a folder for the decks; empty: none
  std::vector<std::string> validate;  // tables of published runs instead of a search
  double max_error = 10.0;            // %, of all these runs
};

// As in apps::parse_command_line.
std::optional<Options> parse_command_line(int argc, char** argv, bool is_writer);

}  // namespace nanotron::apps::plan
