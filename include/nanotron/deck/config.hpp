#pragma once
// The deck as const structs, one per namelist group, members named exactly as the deck's keys.
// The initialisers below are the defaults; parameters.cpp adds range, unit and sentence to each.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/choices.hpp"
#include "nanotron/deck/data_config.hpp"
#include "nanotron/deck/model_config.hpp"

namespace nanotron::deck {

struct RunConfig {
  std::string title;
  std::int64_t seed = 1234;
  std::int64_t steps = 1000;
  std::int64_t stop_after_steps = 0;  // of this start; 0: none
  std::string output_dir = "run";
  std::int64_t log_every = 10;
  double wall_time_limit = 0.0, wall_time_margin = 60.0;
  std::int64_t max_nonfinite_steps = 0;
  double spike_factor = 0.0;  // 0: a finite gradient norm is never a bad one
  OnBadStep on_bad_step = OnBadStep::skip;
  std::int64_t check_memory_every = 0;  // 0: never
  std::int64_t check_replicas_every = 100;
  double hang_timeout = 600.0;  // 0: no watchdog
  std::int64_t check_stragglers_every = 100;
  ExpertGemms expert_gemms = ExpertGemms::library;
  std::string gemm_algorithms{};  // a file; empty: the library's heuristic
};

struct ParallelConfig {
  std::int64_t dp = 0;  // at most one of dp, tp, pp, cp may be 0; resolve() fills it
  std::int64_t tp = 1;
  std::int64_t pp = 1, cp = 1, ep = 1;
  std::string order = "tp-cp-pp-dp";
  TpMode tp_mode = TpMode::all_reduce;
  std::int64_t tp_overlap_chunks = 1;                                // with reduce_scatter
  GatheredInputs tp_gathered_inputs = GatheredInputs::gather_again;  // with reduce_scatter
  PpSchedule pp_schedule = PpSchedule::one_f_one_b;
  std::int64_t pp_chunks = 2;  // with interleaved_1f1b
  PpCut pp_cut = PpCut::flops;
  std::string pp_layers{};  // of each stage, separated by blanks or commas; empty: by pp_cut
  CpMode cp_mode = CpMode::ring;
  std::int64_t zero_stage = 0;
  std::int64_t zero_size = 0;  // 0: dp x cp
  Backend backend = Backend::automatic;
  MemoryRegistration register_memory = MemoryRegistration::none;  // with NCCL
  CollectiveEngine collective_engine = CollectiveEngine::blocks;  // with NCCL
  std::int64_t message_blocks = 0;  // with NCCL, of messages between pipeline stages; 0: NCCL's choice
  GradientRule gradient_sum = GradientRule::sum;
  Compression compression = Compression::none;
  std::int64_t powersgd_rank = 4;
  double bucket_mb = 25.0;  // 0: choose_bucket() measures
  bool overlap = true;
  Recompute recompute = Recompute::none;
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double learning_rate = 3e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double momentum = 0.95;                // with muon
  std::int64_t newton_schulz_steps = 5;  // with muon
  double weight_decay = 0.1;
  double clip_grad_norm = 1.0;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::constant;
  std::int64_t warmup_steps = 0, decay_steps = 0;
  double min_lr_ratio = 0.1;
  DecayShape decay_shape = DecayShape::linear;
};

struct PrecisionConfig {
  ScalarType compute = ScalarType::fp32;
  MomentType moments = MomentType::master;
  Reproducible reproducible = Reproducible::run;
  // With 'layout': number of partial sums on every grid; 0: resolve() chooses.
  std::int64_t tensor_shards = 0;
  std::int64_t context_shards = 1;
  std::int64_t batch_shards = 0;
};

struct CheckpointConfig {
  std::string directory;  // empty: checkpoint_directory()
  std::int64_t every_steps = 0;
  double every_minutes = 0.0;  // 0: time does not matter
  double node_mtbf = 0.0;      // days between failures of a node; 0: not given
  std::int64_t keep_last = 2;
  std::string resume = "auto";  // 'auto', 'none' or the path of a checkpoint
  std::string first_resume{};   // where this start replaced it by 'auto', what the deck says; no key of decks
  bool at_end = true;
  bool asynchronous = false;
  std::int64_t neighbour_every_steps = 0;  // 0: never
  std::string neighbour_directory{};       // of each host
};

struct OutputConfig {
  Console console = Console::progress;
  std::int64_t metrics_every = 1;
  bool timers = false;
  double peak_tflops = 0.0;  // 0: kernels::stated_peak()
};

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
  std::shared_ptr<const Origin> origin;  // lets resolve() (read_deck.hpp) point into the deck; may be null
  std::shared_ptr<const Config> run_of{};  // of a later stage of training: the run's; else null
};

/// The configuration of the whole run, of which this may be a stage (data/training_stages.hpp).
inline const Config& whole_run(const Config& config) { return config.run_of ? *config.run_of : config; }

/// The configuration as a deck (deck.nml), which gfortran reads too: every key, non-defaults marked, reals exact.
std::string canonical_deck(const Config& config);

/// Keys with a default that are not at it, a line per group: "&parallel dp = 4". No newline at the end.
std::string changed_keys(const Config& config);

/// checkpoint.directory, or <output_dir>/checkpoints if that is empty.
std::string checkpoint_directory(const Config& config);

/// Virtual stages per rank of a pipeline under pp_schedule, and stages of all ranks. Both are 1 without a pipeline.
std::int64_t virtual_stages(const ParallelConfig& parallel);
std::int64_t pipeline_stages(const ParallelConfig& parallel);

/// The degrees multiply to this many ranks (dp*tp*pp*cp; ep lies inside dp*cp). 0 if one is still 0.
std::int64_t grid_size(const ParallelConfig& parallel);

/// Ranks over which parameters, gradients or moments are sharded, 1 without ZeRO; of experts every ep-th of them.
std::int64_t shard_group_size(const ParallelConfig& parallel);
std::int64_t expert_shard_group_size(const ParallelConfig& parallel);

}  // namespace nanotron::deck
