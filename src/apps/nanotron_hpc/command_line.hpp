#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nanotron::apps {

enum class Action {
  train,
  check,  // the deck alone
  plan,   // and what it would take
};

struct CommandLine {
  Action action = Action::train;
  std::string deck;
  std::vector<std::string> overrides;  // group.name=value
};

// Nothing when the text asked for (help, version, defaults) has been printed and the program is done; only
// the rank that speaks prints. Error(deck_error) for a command line that makes no sense.
std::optional<CommandLine> parse_command_line(int argc, char** argv, bool speaks);

}  // namespace nanotron::apps
