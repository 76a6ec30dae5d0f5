#pragma once

// Runs the real trainer inside a test, on any grid of the test's ranks, and gives back its numbers: losses,
// and every logical tensor of the end state gathered from its shards. Compiled once, in training.cpp.

#include <mpi.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "nanotron/trainer/state/step_result.hpp"
#include "support/temporary_folder.hpp"

namespace nanotron::test {

using Tensors = std::map<std::string, std::vector<double>>;

// Bytes handed to collectives, by axis.
struct Traffic {
  std::uint64_t tensor_parallel = 0, context_parallel = 0, data_parallel = 0, pipeline = 0, expert_parallel = 0;

  static Traffic of(const comm::StepTraffic& t) {
    const auto counted = [](const comm::Bytes& b) { return static_cast<std::uint64_t>(b.counted); };
    return {counted(t.tensor_parallel), counted(t.context_parallel), counted(t.data_parallel), counted(t.pipeline),
            counted(t.expert_parallel)};
  }
  friend Traffic operator-(const Traffic& a, const Traffic& b) {
    return {a.tensor_parallel - b.tensor_parallel, a.context_parallel - b.context_parallel,
            a.data_parallel - b.data_parallel, a.pipeline - b.pipeline, a.expert_parallel - b.expert_parallel};
  }
};

// StepResult::statistics of a mixture of experts; all 0 for a dense model. See doc/numerics.md.
struct RouterNumbers {
  double load_balance = 0.0, z = 0.0, dropped_share = 0.0, busiest_share = 0.0;
};

struct Numbers {
  std::vector<double> losses, grad_norms;
  std::vector<std::uint64_t> hashes;
  std::vector<RouterNumbers> routers;
  std::vector<double> z_losses, later_losses;                                              // 0 without one
  std::vector<double> rewards_chosen, rewards_rejected, rewards_accuracy, rewards_margin;  // of pairs, else 0
  std::vector<double> max_scores, clipped_heads;                                           // with QK-clip, else 0
  Tensors parameters, exp_avg, exp_avg_sq, momentum;
  Tensors ema;                            // empty without an average of the weights
  std::map<std::string, Tensors> states;  // of the optimizer, by name; among them the last three
  std::int64_t adam_steps = 0;
  Traffic predicted, counted;  // of the last step of this rank
};

// Bytes of the few numbers of a step that comm::StepTraffic leaves out: of a sum that no order changes a place and
// four sums of digits (kernels/reduction/exact_sum.hpp), the hash of the tokens and the count of the targets.
inline constexpr std::uint64_t exact_sum = 5 * sizeof(std::int64_t), hash = sizeof(std::uint64_t),
                               count = sizeof(std::int64_t);

// A grid on the first dp * tp ranks of world; the others hold MPI_COMM_NULL.
class SubWorld {
 public:
  SubWorld(MPI_Comm world, int size) {
    int rank = 0;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_split(world, rank < size ? 0 : MPI_UNDEFINED, rank, &comm_);
  }
  ~SubWorld() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  SubWorld(const SubWorld&) = delete;
  SubWorld& operator=(const SubWorld&) = delete;
  bool member() const { return comm_ != MPI_COMM_NULL; }
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

// A token file of pseudo-random but learnable text: each token depends on the one before it.
void write_tokens(const std::filesystem::path& path, index_t count, int vocabulary);

// Sets /documents of a token file.
void write_documents(const std::filesystem::path& path, const std::vector<std::uint64_t>& starts);

// Sets /loss_mask of a token file.
void write_loss_mask(const std::filesystem::path& path, const std::vector<std::uint8_t>& mask);

// Sets /pairs of a token file.
void write_lines_of_pairs(const std::filesystem::path& path, const std::vector<std::uint64_t>& lines);

// The deck of a golden case with these keys, "group.name=value", and its paths made absolute.
deck::Config golden_config(const std::string& name, const std::vector<std::string>& set = {});

// Trains from what config.checkpoint.resume says up to step `until` and, with save, writes a checkpoint
// there. Collective over world, which has as many ranks as the grid.
Numbers run_training(deck::Config config, MPI_Comm world, std::int64_t until, bool save = false);

// max |a - b| / max |b| of a tensor. A number that is none is no small difference.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace nanotron::test
