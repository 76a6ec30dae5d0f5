// ranks: 2
// timeout: 600
// Whole steps in bf16 with attention by cuDNN, under many orders of the streams: what fp64 gives, within bf16. Its
// plans load modules, for which a device has to be idle: none while a receive is posted.

#include <cudnn_frontend.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

// The parameter: keys with a blank between them; those of &data and &model are the serial run's too.
class CudnnSteps : public testing::TestWithParam<const char*> {
 protected:
  test::TokensOfDocuments tokens_{"cudnn_steps", 20'000, 151};
};

TEST_P(CudnnSteps, FollowFp64) {
  Keys serial{"data.path='" + tokens_.path() + "'",
              "data.sequence_length=128",
              "data.global_batch_size=4",
              "data.micro_batch_size=1",
              "checkpoint.resume=none",
              "model.num_hidden_layers=4"};
  Keys grid{"precision.compute=bf16"};
  std::istringstream words(GetParam());
  for (std::string key; words >> key;)
    (key.starts_with("parallel.") || key.starts_with("precision.") ? grid : serial).push_back(key);
  grid.insert(grid.begin(), serial.begin(), serial.end());
  const std::optional<deck::Config> base = test::deck_if_legal("llama", serial, 1);
  const std::optional<deck::Config> config = test::deck_if_legal("llama", grid, 2);
  ASSERT_TRUE(base && config);
  const test::Numbers reference = test::serial(*base, 2);
  test::in_legal_orders([&] {
    const auto before = cudnn_frontend::graph::executions();
    const test::Numbers last = test::run_training(*config, test::world(), 2);
    const auto after = cudnn_frontend::graph::executions();
    EXPECT_GT(after.all, before.all);
    const bool repeats = config->precision.reproducible == deck::Reproducible::run;
    const bool has_documents = config->data.document_mask != deck::DocumentMask::none;  // own kernels repeat theirs
    EXPECT_EQ(after.deterministic > before.deterministic, repeats && !has_documents);
    EXPECT_EQ(after.fastest > before.fastest, !repeats);
    EXPECT_EQ(after.of_documents > before.of_documents, has_documents);
    for (std::size_t i = 0; i < last.losses.size(); ++i) {
      EXPECT_NEAR(last.losses[i], reference.losses[i], 5e-3 * reference.losses[i]);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grids, CudnnSteps,
    testing::ValuesIn(test::turn_of(
        {"parallel.pp=2 parallel.pp_schedule=1f1b", "parallel.cp=2 data.sequence_length=256 data.global_batch_size=2",
         "parallel.pp=2 parallel.pp_schedule=zero_bubble", "parallel.cp=2 parallel.cp_mode=all_to_all",
         "parallel.pp=2 parallel.pp_schedule=gpipe precision.reproducible=run",
         "parallel.tp=2 parallel.recompute=full"})));

// Documents of 1 to 151 tokens in sequences of 128 or 256, with empty positions in those of whole ones.
INSTANTIATE_TEST_SUITE_P(
    Documents, CudnnSteps,
    testing::ValuesIn(test::turn_of(
        {"model.head_dim=16 data.document_mask=block_diagonal parallel.pp=2 parallel.pp_schedule=1f1b",
         "model.head_dim=16 data.document_mask=block_diagonal parallel.cp=2 data.sequence_length=256 "
         "data.global_batch_size=2",
         "model.head_dim=16 data.document_mask=block_diagonal data.sequences=documents parallel.cp=2 "
         "parallel.cp_mode=all_to_all data.sequence_length=256 data.global_batch_size=2",
         "model.head_dim=16 data.document_mask=block_diagonal data.sequences=documents parallel.cp=2 "
         "data.sequence_length=256 data.global_batch_size=2 model.sliding_window=60",
         "model.head_dim=16 data.document_mask=block_diagonal parallel.tp=2 precision.reproducible=run"})));

}  // namespace
}  // namespace nanotron
