// ranks: 3
// What NCCL's order of launches would stop forever is refused, and what it would not is run.
#include <gtest/gtest.h>

#include "emulation/gemms.hpp"
#include "nanotron/comm/transport/nccl_memory.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"
#include "support/drawn_decks.hpp"
#include "support/trainer_run.hpp"

namespace nanotron {
namespace {

// A step with so many micro-batches.
void train(int micro_batches) {
  const test::TokensOfDocuments tokens("interleaved", 20'000);
  const std::optional<deck::Config> config = test::deck_if_legal(
      "llama",
      {"parallel.pp=3", "parallel.pp_chunks=2", "parallel.pp_schedule=interleaved_1f1b", "model.num_hidden_layers=6",
       "data.micro_batch_size=1", "data.global_batch_size=" + std::to_string(micro_batches), "checkpoint.resume=none",
       "data.path='" + tokens.path() + "'"},
      3);
  ASSERT_TRUE(config);
  test::TrainerRun<double> run(*config, test::world());
  trainer::leave_multiprocessors(*config, run.device());
  EXPECT_TRUE(run->train_step().updated);
  EXPECT_EQ(emulation::multiprocessors_of_last_gemm, emulation::multiprocessors - 2 * comm::blocks_of_messages(0));
}

TEST(Interleaved, IsRefusedWithGroupsThatAreNotFull) {
  try {
    train(8);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(error.what()).find("8 micro-batches"), std::string::npos) << error.what();
  }
}

TEST(Interleaved, RunsWithFullOnes) { train(9); }

}  // namespace
}  // namespace nanotron
