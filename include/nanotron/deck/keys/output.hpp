#pragma once
// &output of the deck.

#include <cstdint>

namespace nanotron::deck {

enum class Console { progress, quiet };

struct OutputConfig {
  Console console = Console::progress;
  std::int64_t metrics_every = 1;
  bool timers = false;
  double peak_tflops = 0.0;      // 0: kernels::stated_peak()
  std::int64_t blend_rows = 20;  // 0: all
};

}  // namespace nanotron::deck
