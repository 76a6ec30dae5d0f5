// The keys of &run.
#include "nanotron/deck/keys/run.hpp"

#include "rows.hpp"

#define GROUP_NAME "run"
#define GROUP(c) (c).run

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> run_rows() {
  return {
    KEY(title).says("A line of text for the logs and files of this run."),
    KEY(seed).at_least(0).orders_data().says("Seed of all random numbers: initial weights and data order."),
    KEY(steps).of_training().needed().at_least(1).at_most(1e12).in("steps").says(
        "Optimizer steps of the whole run; a resumed run goes on to this number."),
    KEY(stop_after_steps).at_least(0).at_most(1e12).in("steps").says(
        "Write a checkpoint and stop (exit code 75) after this many steps of this start. The learning rate schedule "
        "stays that of the whole run. 0: no such stop."),
    KEY(output_dir).of_folder().says("Folder of everything that the run writes; created if it is missing."),
    KEY(log_every).at_least(1).at_most(1e12).in("steps").says("Steps from one progress line to the next."),
    KEY(wall_time_limit).at_least(0).in("s").says(
        "Write a checkpoint and stop (exit code 75) before this wall time is reached; 0: the end of the Slurm job "
        "where SLURM_JOB_END_TIME says it, else no limit. The job scripts replace the deck's value by the time that "
        "is left."),
    KEY(wall_time_margin).at_least(0).in("s").says("Time kept free before wall_time_limit for the last checkpoint."),
    KEY(max_nonfinite_steps).of_training().at_least(0).at_most(1e12).in("steps").says(
        "How many bad steps in a row may be skipped, or how often training may go back to the same checkpoint "
        "(on_bad_step); one more ends the run with exit code 70. 0: stop at the first."),
    KEY(spike_factor).of_training().at_least(0).at_most(1e6).says(
        "A step whose gradient norm is more than this many times the median of the last 64 is a bad step, as one "
        "whose loss or norm is not finite (doc/reliability.md); above 1, or 0: spikes are not looked for."),
    CHOICE(on_bad_step, {"skip", OnBadStep::skip}, {"roll_back", OnBadStep::roll_back}).of_training().says(
        "What follows a bad step that comes out the same when it is computed again: its update is skipped, or "
        "training goes back to the newest known good checkpoint and leaves out the batches since then, which needs "
        "max_nonfinite_steps > 0."),
    KEY(check_memory_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between checks that parameters and optimizer states in memory are what the last update wrote; 0: none."),
    KEY(check_replicas_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between bitwise comparisons of weights and moments over the ranks that must hold the same ones; 0: "
        "only where they are always compared, at the start and before each checkpoint and each copy on other hosts."),
    KEY(hang_timeout).at_least(0).at_most(1e7).in("s").says(
        "End the run with exit code 71 and name the rank that is late when nothing has moved on a rank for this "
        "long, or for 10 times the longest step of this start (without its first) if that is longer; for 3 times "
        "that before the end of the first step, in data loading, validation and checkpoints, and while metrics are "
        "written. At least 1, or 0: off."),
    KEY(check_stragglers_every).at_least(0).at_most(1e12).in("steps").says(
        "Steps between comparisons of the time that ranks compute: a warning names the slowest rank where it takes "
        "at least 1.5 times the median of its pipeline stage. 0: none."),
    CHOICE(expert_gemms, {"library", ExpertGemms::library}, {"grouped", ExpertGemms::grouped}).says(
        "The GEMMs of a mixture of experts: one of the library for each expert, or all of them in one launch of the "
        "program's own kernels (bf16 on a GPU), which with ep = 1 need no count of rows on the host."),
    KEY(gemm_algorithms).of_files().says(
        "File of the algorithms with which cuBLASLt runs the GEMMs on GPUs, made by nanotron_bench --gemm-algorithms "
        "on such a GPU; empty: its heuristic chooses. Another file may change last bits. A build for CPUs ignores it."),
  };
}
// clang-format on

}  // namespace nanotron::deck
