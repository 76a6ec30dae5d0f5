// The keys of &run.
#include "nanotron/deck/keys/run.hpp"

#include "rows.hpp"

#define GROUP_NAME "run"
#define GROUP(c) (c).run

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> run_rows() {
  return {
    KEY(title).says("Title of the run in its logs and files, one line."),
    KEY(seed).at_least(0).orders_data().says("Seed of all random numbers: initial weights and data order."),
    KEY(steps).of_training().needed().at_least(1).at_most(1e12).in("steps").says(
        "Optimizer steps of the whole run; a resumed run continues to this number."),
    KEY(stop_after_steps).at_least(0).at_most(1e12).in("steps").says(
        "Write a checkpoint and stop (exit code 75) after this many steps since this start. The learning-rate schedule "
        "is still that of the whole run. 0: no such stop."),
    KEY(output_dir).of_folder().says("Folder for all output of the run; created if it does not exist."),
    KEY(log_every).at_least(1).at_most(1e12).in("steps").says("Steps between progress lines."),
    KEY(wall_time_limit).at_least(0).in("s").says(
        "Write a checkpoint and stop (exit code 75) before this wall time is reached; 0: the end of the Slurm job if "
        "SLURM_JOB_END_TIME is set, else no limit. The job scripts replace this value by the remaining time."),
    KEY(wall_time_margin).at_least(0).in("s").says("Time reserved before wall_time_limit for the last checkpoint."),
    KEY(max_nonfinite_steps).of_training().at_least(0).at_most(1e12).in("steps").says(
        "Number of bad steps in a row that may be skipped, or of roll-backs to the same checkpoint (on_bad_step); one "
        "more ends the run with exit code 70. 0: stop at the first."),
    KEY(spike_factor).of_training().at_least(0).at_most(1e6).says(
        "A step whose gradient norm is more than this many times the median of the last 64 is a bad step, like a step "
        "whose loss or norm is not finite (doc/reliability.md). More than 1; 0: no detection of spikes."),
    ENUM(on_bad_step, {"skip", OnBadStep::skip}, {"roll_back", OnBadStep::roll_back}).of_training().says(
        "Response to a bad step that gives the same result when it is recomputed: skip its update, or roll back to the "
        "newest known good checkpoint and leave out the batches since then (needs max_nonfinite_steps > 0)."),
    KEY(check_memory_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between checks that parameters and optimizer states in memory have not changed since the last update; "
        "0: none."),
    KEY(check_replicas_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between bitwise comparisons of weights and moments over the ranks that must hold the same ones. They "
        "are always compared at the start and before each checkpoint and each copy to other hosts; 0: only then."),
    KEY(hang_timeout).at_least(0).at_most(1e7).in("s").says(
        "End the run with exit code 71 and name the late rank when a rank has made no progress for this long, or for "
        "10 times the longest step since the start (without the first one) if that is longer. The limit is three times "
        "as long before the end of the first step, in data loading, validation and checkpoints, and while metrics are "
        "written. At least 1, or 0: off."),
    KEY(check_stragglers_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between comparisons of the ranks' compute times: a warning names the slowest rank if it takes at least "
        "1.5 times the median of its pipeline stage. 0: none."),
    ENUM(expert_gemms, {"library", ExpertGemms::library}, {"grouped", ExpertGemms::grouped}).says(
        "GEMMs of a mixture of experts: one library GEMM for each expert, or all of them in one launch of the "
        "program's own kernels (bf16 on a GPU), which with ep = 1 need no row counts on the host."),
    KEY(gemm_algorithms).of_files().says(
        "File of cuBLASLt's or hipBLASLt's algorithms for GEMMs, written by nanotron_bench --gemm-algorithms on such a "
        "GPU; empty: the library's heuristic chooses. Another file may change last bits. A build for CPUs ignores it."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
