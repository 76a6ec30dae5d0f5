#pragma once

// The deck as const structs, one per namelist group in a header of its own, members named exactly as the deck's keys.
// Their initialisers are the defaults; src/deck/keys adds range, unit and sentence to each.

#include <cstdint>
#include <memory>
#include <string>

#include "nanotron/deck/keys/checkpoint.hpp"
#include "nanotron/deck/keys/data.hpp"
#include "nanotron/deck/keys/lora.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/deck/keys/output.hpp"
#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/deck/keys/precision.hpp"
#include "nanotron/deck/keys/preference.hpp"
#include "nanotron/deck/keys/run.hpp"
#include "nanotron/deck/keys/schedule.hpp"

namespace nanotron::deck {

struct Origin;  // where each key was set

struct Config {
  RunConfig run;
  ModelConfig model;
  ParallelConfig parallel;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  DataConfig data;
  PrecisionConfig precision;
  CheckpointConfig checkpoint;
  OutputConfig output;
  LoraConfig lora;
  PreferenceConfig preference;
  std::shared_ptr<const Origin> origin;    // lets resolve() (read_deck.hpp) point into the deck; may be null
  std::shared_ptr<const Config> run_of{};  // the run's, if this is that of a later stage; else null
};

/// The configuration of the whole run; `config` may be that of a stage (data/order/training_stages.hpp).
inline const Config& whole_run(const Config& config) { return config.run_of ? *config.run_of : config; }

/// The configuration as a deck (deck.nml), which gfortran reads too: every key, non-defaults marked, reals exact.
std::string canonical_deck(const Config& config);

/// Keys that have a default and another value, a line per group: "&parallel dp = 4". No newline at the end.
std::string changed_keys(const Config& config);

/// checkpoint.directory, or <output_dir>/checkpoints if that is empty.
std::string checkpoint_directory(const Config& config);

// The number of partial sums into which a sum is split. Each rank computes neighbouring ones.

/// Partial sums over features and heads (tensor), over the tokens of a sequence (context) and over the sequences of a
/// global batch (batch). With reproducible = 'layout' they are the same on every grid (tensor/sum_order.hpp), else the
/// degrees of the grid. norm: partial sums over the tokens of a sequence for the norms, where each tp rank may see only
/// a part of the tokens. With 'layout' it is context x tensor if that divides sequence_length and all shards are leaves
/// of one binary tree (context = 1, or tensor is a power of two). Otherwise it is context.
struct SumShards {
  std::int64_t tensor = 1, context = 1, batch = 1, norm = 1;
};

/// Requires that no degree of the grid is 0.
SumShards sum_shards(const Config& config);

/// Whether each of `parts` ranks has a node of the binary tree over `shards` shards: 2^j neighbours.
constexpr bool holds_node(std::int64_t shards, std::int64_t parts) {
  if (parts < 1 || shards % parts != 0) return false;
  const std::int64_t each = shards / parts;
  return parts == 1 || (each & (each - 1)) == 0;
}

}  // namespace nanotron::deck
