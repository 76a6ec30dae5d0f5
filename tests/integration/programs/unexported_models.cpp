// A program for tests/tools/test_architectures.py: what --check says of the export of many models in one process.
//
//   unexported_models <deck>
//
// A line of the input: assignments to the deck's keys as for --set, with blanks between them. A line of the output:
// model::unexported_text of it, or "refused" where the deck is wrong.

#include <fmt/core.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/model/architectures.hpp"
#include "nanotron/trainer/start/deck_features.hpp"

namespace nanotron {
namespace {

std::string answer(const std::string& deck, const std::vector<std::string>& overrides) {
  try {
    deck::Config config = trainer::read_deck(deck, overrides);
    trainer::resolve(config, 1);
    return model::unexported_text(config.model);
  } catch (const Error&) {
    return "refused";
  }
}

}  // namespace
}  // namespace nanotron

int main(int, char** argv) {
  for (std::string line, word; std::getline(std::cin, line);) {
    std::vector<std::string> overrides;
    for (std::istringstream words(line); words >> word;) overrides.push_back(word);
    fmt::print("{}\n", nanotron::answer(argv[1], overrides));
  }
}
