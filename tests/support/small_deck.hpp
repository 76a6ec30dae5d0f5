#pragma once

// A small deck to which tests add keys, read by the function of the layer that is tested.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::test {

inline const std::string small_deck =
    "&run steps = 100 /\n"
    "&model hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 8, intermediate_size = 96 /\n"
    "&data path = 'a.h5', sequence_length = 32, global_batch_size = 24 /\n";

using Settings = std::vector<std::string>;  // of --set

struct DeckReader {
  std::function<deck::Config(const std::string& text, const Settings& set)> read_text;
  std::function<void(deck::Config&, int ranks)> resolve;

  deck::Config read(const std::string& more = "", const Settings& set = {}) const {
    return read_text(small_deck + more, set);
  }
  /// What is wrong with a deck, or "". ranks > 0: also on so many ranks.
  std::string message(const std::string& text, const Settings& set = {}, int ranks = 0) const {
    try {
      deck::Config c = read_text(text, set);
      if (ranks > 0) resolve(c, ranks);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), ExitCode::deck_error);
      return e.what();
    }
    return "";
  }
  void expect_refused(const Settings& set, const std::string& words, int ranks = 0) const {
    const std::string text = message(small_deck, set, ranks);
    EXPECT_NE(text.find(words), std::string::npos) << set[0] << "\n" << text;
  }
};

}  // namespace nanotron::test
