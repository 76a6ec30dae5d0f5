#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nanotron::apps {

enum class Action {
  train,
  check,  // the deck, its grid and its data
  plan,   // memory, FLOPs and communication of the deck
  evaluate,
};

struct CommandLine {
  Action action = Action::train;
  std::string deck;
  std::string machine;                 // a namelist file, for plans; may be empty
  std::int64_t ranks = 0;              // for plans: of the start and the grid; 0: those of the deck
  std::string choices;                 // a file of questions, for evaluations; may be empty
  std::string results;                 // where their scores go; may be empty
  std::string status;                  // a file, see io/files/run_status.hpp; may be empty
  std::vector<std::string> overrides;  // group.name=value
};

// Nothing when help, version, defaults or the like were printed and the program is done; only the writing rank
// prints. Error(deck_error) for an invalid command line.
std::optional<CommandLine> parse_command_line(int argc, char** argv, bool is_writer);

}  // namespace nanotron::apps
