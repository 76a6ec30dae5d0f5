#pragma once
// The deck as const structs, one per namelist group in a header of its own, members named exactly as the deck's keys.
// Their initialisers are the defaults; src/deck/keys adds range, unit and sentence to each.

#include <memory>
#include <string>

#include "nanotron/deck/keys/checkpoint.hpp"
#include "nanotron/deck/keys/data.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/deck/keys/output.hpp"
#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/deck/keys/precision.hpp"
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
  std::shared_ptr<const Origin> origin;    // lets resolve() (read_deck.hpp) point into the deck; may be null
  std::shared_ptr<const Config> run_of{};  // of a later stage of training: the run's; else null
};

/// The configuration of the whole run, of which this may be a stage (data/order/training_stages.hpp).
inline const Config& whole_run(const Config& config) { return config.run_of ? *config.run_of : config; }

/// The configuration as a deck (deck.nml), which gfortran reads too: every key, non-defaults marked, reals exact.
std::string canonical_deck(const Config& config);

/// Keys with a default that are not at it, a line per group: "&parallel dp = 4". No newline at the end.
std::string changed_keys(const Config& config);

/// checkpoint.directory, or <output_dir>/checkpoints if that is empty.
std::string checkpoint_directory(const Config& config);

}  // namespace nanotron::deck
