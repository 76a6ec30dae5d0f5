#pragma once

// A grid, and options that change how a rank works but not what it computes.

#include <fmt/format.h>

#include <optional>
#include <string>

#include "nanotron/deck/config.hpp"

namespace nanotron::test {

struct Grid {
  int tp = 1, pp = 1, cp = 1, zero = 0;
  deck::TpMode mode = deck::TpMode::all_reduce;
  deck::Recompute recompute = deck::Recompute::none;
  std::int64_t micro_batch = 0;  // sequences; 0: as in the deck
};

inline std::string text(const Grid& g) {
  return fmt::format("tp {} pp {} cp {} zero {} mode {} recompute {} micro-batch {}", g.tp, g.pp, g.cp, g.zero,
                     static_cast<int>(g.mode), static_cast<int>(g.recompute), g.micro_batch);
}

/// config on the grid, with the rest of the ranks as dp; none if they or the batch cannot be divided.
inline std::optional<deck::Config> on_grid(deck::Config config, const Grid& g, int ranks) {
  config.parallel.tp = g.tp;
  config.parallel.pp = g.pp;
  config.parallel.cp = g.cp;
  config.parallel.dp = ranks / (g.tp * g.pp * g.cp);
  config.parallel.zero_stage = g.zero;
  config.parallel.tp_mode = g.mode;
  config.parallel.recompute = g.recompute;
  if (g.micro_batch > 0) config.data.micro_batch_size = g.micro_batch;
  if (g.tp * g.pp * g.cp * config.parallel.dp != ranks) return std::nullopt;
  if (config.data.global_batch_size % (config.parallel.dp * config.data.micro_batch_size) != 0) return std::nullopt;
  return config;
}

}  // namespace nanotron::test
