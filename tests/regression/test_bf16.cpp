// ranks: 1 2
// timeout: 300
// Training in bf16 follows fp32: every loss of the curve within 0.3 %, on one grid and another.

#include <gtest/gtest.h>

#include "support/differences.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

TEST(Bf16, FollowsFp32) {
  const test::TemporaryFolder folder(test::world(), "bf16");
  int rank = 0, ranks = 1;
  MPI_Comm_rank(test::world(), &rank);
  MPI_Comm_size(test::world(), &ranks);
  if (rank == 0) test::write_tokens(folder.path() / "tokens.h5", 64 * 2000 + 1, 100);
  MPI_Barrier(test::world());

  deck::Config c;
  c.model.hidden_size = 64;
  c.model.num_hidden_layers = 3;
  c.model.num_attention_heads = 4;
  c.model.num_key_value_heads = 2;
  c.model.head_dim = 16;
  c.model.intermediate_size = 172;
  c.model.vocab_size = 100;
  c.data.path = (folder.path() / "tokens.h5").string();
  c.data.sequence_length = 64;
  c.data.global_batch_size = 16;
  c.data.micro_batch_size = 8;
  c.optimizer.learning_rate = 2e-3;  // calm: a hot rate amplifies any rounding
  c.schedule.warmup_steps = 30;
  c.run.steps = 120;
  c.checkpoint.resume = "none";
  c.parallel.tp = ranks;
  c.precision.compute = ScalarType::fp32;
  const test::Numbers wide = test::run_training(c, test::world(), c.run.steps);
  c.precision.compute = ScalarType::bf16;
  const test::Numbers narrow = test::run_training(c, test::world(), c.run.steps);

  const double worst = test::largest_relative_difference(narrow.losses, wide.losses);
  if (rank == 0) {
    std::printf("worst difference of a loss %.3f %%; fp32 from %.3f to %.3f\n", 100 * worst, wide.losses.front(),
                wide.losses.back());
  }
  EXPECT_LT(worst, 0.003);
  EXPECT_LT(wide.losses.back(), 0.6 * wide.losses.front()) << "a run that learns nothing proves nothing";
}

}  // namespace
}  // namespace nanotron
