#pragma once
// &run of the deck.

#include <cstdint>
#include <string>

namespace nanotron::deck {

enum class ExpertGemms { library, grouped };
enum class OnBadStep { skip, roll_back };

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

}  // namespace nanotron::deck
