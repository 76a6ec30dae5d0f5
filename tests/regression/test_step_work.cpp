// ranks: 1 2 4
// timeout: 400
// The kernels of a step that a plan counts are those that run: as many launches, and the FLOPs of the formulas.

#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "nanotron/kernels/loop/row.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/trainer/plan/kernel_time.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "nanotron/trainer/state/training_state.hpp"
#include "support/drawn_decks.hpp"

namespace nanotron {
namespace {

// Products, in libraries or a form of the host; a loop of the host; copies, which Kokkos does not report as kernels.
bool is_other_on_host(std::string_view kernel) {
  return kernel.starts_with("gemm") || kernel.starts_with("attention") || kernel == "embedding_backward" ||
         kernel == "copy" || kernel == "dequantise";
}

std::uint64_t launches_seen = 0;
void count_launch(const char* label, std::uint32_t, std::uint64_t*) {
  launches_seen += is_other_on_host(label) ? 0 : 1;
}

std::uint64_t launches_of(const deck::Config& config, std::int64_t steps) {
  launches_seen = 0;
  Kokkos::Tools::Experimental::set_begin_parallel_for_callback(count_launch);
  Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(count_launch);
  test::run_training(config, test::world(), steps);
  Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
  Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(nullptr);
  return launches_seen;
}

struct Case {
  const char* golden;
  std::vector<std::string> set;
};
const std::vector<Case> cases{
    {"llama", {}},
    {"llama", {"parallel.recompute=full", "data.micro_batch_size=1"}},
    {"llama", {"parallel.zero_stage=2", "optimizer.name=muon", "optimizer.qk_clip=0.1"}},
    {"gpt2", {"parallel.recompute=selective"}},
    {"qwen2", {"parallel.tp=2", "parallel.tp_mode=reduce_scatter"}},
    {"qwen3", {"parallel.cp=2"}},
    {"qwen3", {"parallel.cp=2", "parallel.cp_mode=all_to_all", "data.document_mask=block_diagonal"}},
    {"mistral", {"parallel.tp=2"}},
    {"llama", {"parallel.pp=2", "data.micro_batch_size=1"}},
    {"llama", {"parallel.pp=2", "parallel.pp_schedule=zero_bubble", "data.micro_batch_size=1"}},
    {"llama", {"parallel.compression=powersgd"}},
    {"llama", {"parallel.compression=bf16", "parallel.zero_stage=1"}},
    {"llama", {"parallel.compression=bf16", "parallel.zero_stage=3", "data.micro_batch_size=1"}},
    {"llama", {"parallel.compression=bf16", "precision.reproducible=layout", "parallel.zero_stage=2"}},
    {"llama", {"precision.reproducible=layout"}},
    {"llama", {"precision.compute=fp8"}},
    {"qwen2", {"precision.compute=fp8", "parallel.tp=2", "parallel.tp_mode=reduce_scatter"}},
    {"gpt2", {"precision.compute=fp8", "parallel.recompute=selective"}},
    {"llama",
     {"precision.compute=fp8", "parallel.pp=2", "parallel.pp_schedule=zero_bubble", "data.micro_batch_size=1"}},
    {"mixtral", {"run.expert_gemms=grouped", "precision.compute=bf16", "parallel.recompute=full"}},
    {"qwen3_moe",
     {"run.expert_gemms=grouped", "precision.compute=bf16", "parallel.tp=2", "moe.capacity_factor=1.0",
      "moe.moe_intermediate_size=48"}},
};

std::string shipped(const std::string& deck) { return (test::test_folder() / "../input" / (deck + ".deck")).string(); }

class StepWork : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }
  std::optional<deck::Config> deck_of(const Case& c) const {
    std::vector<std::string> set = c.set;
    set.push_back("data.path='" + tokens_.path() + "'");
    set.emplace_back("checkpoint.resume=none");
    return test::deck_if_legal(c.golden, set, ranks_);
  }
  int ranks_ = 0;
  test::TokensOfDocuments tokens_{"step_work", 60'000};
};

TEST_F(StepWork, HasTheLaunchesOfATrainedStep) {
  if (!kernels::on_host) GTEST_SKIP() << "the launches are seen by Kokkos' tools";
  int compared = 0;
  for (const Case& c : cases) {
    const std::optional<deck::Config> config = deck_of(c);
    if (!config) continue;
    const std::uint64_t seen = launches_of(*config, 3) - launches_of(*config, 2);
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    const comm::GridCoordinate at = comm::coordinate_of(comm::shape_of(*config), rank);
    std::uint64_t planned = 0;
    const WorkList work = trainer::step_work(*config, at, Processor::cpu);
    for (const WorkRow& row : work.rows()) planned += is_other_on_host(row.kernel) ? 0 : row.launches;
    EXPECT_EQ(planned, seen) << c.golden << " " << testing::PrintToString(c.set) << " rank " << rank;
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

// At the end of the step, for its loss, its norm and whether it updated.
TEST_F(StepWork, HasOneWaitOfTheHost) {
  for (const Case& c : cases) {
    const std::optional<deck::Config> config = deck_of(c);
    if (!config) continue;
    for (const Processor processor : {Processor::cpu, Processor::gpu}) {
      EXPECT_EQ(trainer::step_work(*config, {}, processor).waits(), 1u)
          << c.golden << " " << testing::PrintToString(c.set);
    }
  }
}

// One for each forward of a layer of experts whose GEMMs are the library's, besides.
TEST_F(StepWork, HasTheWaitsOfExperts) {
  const std::optional<deck::Config> config = deck_of({"mixtral", {}});
  ASSERT_TRUE(config);
  const auto forwards = config->model.num_hidden_layers * config->data.global_batch_size /
                        (config->data.micro_batch_size * config->parallel.dp);
  EXPECT_EQ(trainer::step_work(*config, {}, Processor::gpu).waits(), 1u + static_cast<std::uint64_t>(forwards));
}

// 6 N per token and causal attention, of which backward computes the scores once more: 12 + 2 for 12.
TEST_F(StepWork, HasTheFlopsOfTheFormulas) {
  if (ranks_ > 1) GTEST_SKIP() << "the formulas are of a whole model";
  for (const Case& c : {Case{"llama", {}}, Case{"qwen3", {}}, Case{"gpt2", {}}, Case{"mixtral", {}},
                        Case{"mixtral", {"run.expert_gemms=grouped", "precision.compute=bf16"}}}) {
    const std::optional<deck::Config> config = deck_of(c);
    ASSERT_TRUE(config);
    double products = 0.0, attention = 0.0;
    const WorkList work = trainer::step_work(*config, {}, Processor::cpu);
    for (const WorkRow& row : work.rows()) {
      (row.kernel.starts_with("gemm") ? products : attention) += static_cast<double>(row.calls) * row.work.flops;
    }
    const double flops = static_cast<double>(trainer::tokens_per_step(*config)) *
                         model::training_flops_per_token(config->model, config->data.sequence_length);
    EXPECT_NEAR(products + attention * 12.0 / 14.0, flops, 1e-12 * flops) << c.golden;
  }
}

// As cuDNN 9.19 asks for on Hopper (doc/reproducibility.md): within 2 GiB in one call, except the deterministic
// algorithm with 4 sequences of 8192 tokens. Bad steps that are computed again have to come out the same.
TEST(AttentionBackward, OfShippedDecksIsOneCallOfCudnn) {
  struct Shipped {
    const char* deck;
    int ranks;
    std::uint64_t deterministic;
  };
  for (const Shipped& s : {Shipped{"llama3_1b", 8, 16},
                           {"llama3_3b", 1, 1},
                           {"llama3_8b", 64, 1},
                           {"llama_70b", 256, 1},
                           {"llama_7b", 1, 1},
                           {"mixtral_8x7b", 64, 1},
                           {"qwen2_1b5", 1, 1}}) {
    for (const char* key :
         {"precision.reproducible=none", "precision.reproducible=run", "run.check_memory_every=100"}) {
      SCOPED_TRACE(testing::Message() << s.deck << " " << key);
      deck::Config config = trainer::read_deck(shipped(s.deck), {key});
      trainer::resolve(config, s.ranks);
      const bool repeats = key != std::string("precision.reproducible=none");
      int kernels = 0;
      const WorkList work = trainer::step_work(config, {}, Processor::gpu);
      for (const WorkRow& row : work.rows()) {
        if (!row.kernel.starts_with("attention_backward")) continue;
        EXPECT_EQ(row.kernel, repeats ? "attention_backward_deterministic" : "attention_backward");
        EXPECT_EQ(row.launches, row.calls * (repeats ? s.deterministic : 1));
        ++kernels;
      }
      EXPECT_GT(kernels, 0);
    }
  }
}

// Of packed documents a call, where they are, lse and what cuDNN leaves to do; what would repeat is by own kernels.
TEST(AttentionBackward, OfDocumentsIsOneCallOfCudnn) {
  for (const auto& [deck, ranks] : std::vector<std::pair<const char*, int>>{{"llama3_1b", 8},
                                                                            {"llama3_3b", 1},
                                                                            {"llama3_8b", 64},
                                                                            {"llama_70b", 256},
                                                                            {"llama_7b", 1},
                                                                            {"mixtral_8x7b", 64},
                                                                            {"qwen2_1b5", 1}}) {
    for (const char* key : {"precision.reproducible=none", "precision.reproducible=run"}) {
      SCOPED_TRACE(testing::Message() << deck << " " << key);
      deck::Config config = trainer::read_deck(shipped(deck), {key, "data.document_mask=block_diagonal"});
      trainer::resolve(config, ranks);
      const bool repeats = key != std::string("precision.reproducible=none");
      int kernels = 0;
      const WorkList work = trainer::step_work(config, {}, Processor::gpu);
      for (const WorkRow& row : work.rows()) {
        if (!row.kernel.starts_with("attention")) continue;
        const bool is_forward = row.kernel == "attention_forward";
        const char* const backward = repeats ? "attention_backward_mma" : "attention_backward";
        EXPECT_EQ(row.kernel, is_forward ? "attention_forward" : backward);
        EXPECT_EQ(row.launches, row.calls * (is_forward ? 3 : repeats ? 2 : 4));
        ++kernels;
      }
      EXPECT_GT(kernels, 1);
    }
  }
}

// The workspace of all calls: 2 GiB for the deterministic ones of 4 sequences of 8192 tokens, which ask for 16 GiB.
TEST(AttentionBackward, HasItsWorkspaceInThePlan) {
  std::array<double, 2> gib{};
  for (std::size_t i = 0; i < 2; ++i) {
    deck::Config config = trainer::read_deck(shipped("llama3_1b"),
                                             {i == 0 ? "precision.reproducible=none" : "precision.reproducible=run"});
    trainer::resolve(config, 8);
    const MemoryPlan plan = trainer::plan_step(config, {}, Processor::gpu).memory;
    gib[i] =
        static_cast<double>(plan.bytes[static_cast<std::size_t>(MemoryKind::workspace)]) / (1024.0 * 1024.0 * 1024.0);
  }
  EXPECT_GT(gib[1] - gib[0], 1.0);
  EXPECT_LT(gib[1] - gib[0], 2.0);
}

// max(bytes, FLOPs) by their rates, and the launches: 2 calls of 8 bytes or 32 FLOPs, 3 launches.
TEST(Roofline, IsTheSlowerOfMemoryAndProductsAndTheLaunches) {
  deck::Machine m;
  m.memory = 4.0;
  m.gemm_fp32 = 10.0;
  m.launch = 0.5;
  WorkRow row{.kernel = "gemm",
              .work = {.read = 6.0, .written = 2.0, .flops = 32.0, .gemm = {4, 2, 2, 1}},
              .calls = 2,
              .launches = 3};
  EXPECT_DOUBLE_EQ(trainer::row_seconds(row, m), 2 * 3.2 + 1.5);
  row.work.gemm.count = 0;
  EXPECT_DOUBLE_EQ(trainer::row_seconds(row, m), 2 * 2.0 + 1.5);
  row = {.kernel = "attention_forward",
         .work = {.flops = 30.0, .type = ScalarType::bf16, .gemm = {1, 1, 1, 1}},
         .calls = 1,
         .launches = 0};
  m.attention_forward = 6.0;
  EXPECT_DOUBLE_EQ(trainer::row_seconds(row, m), 5.0);
  row.kernel = "attention_backward_deterministic";
  m.attention_deterministic = 3.0;
  EXPECT_DOUBLE_EQ(trainer::row_seconds(row, m), 10.0);
}

}  // namespace
}  // namespace nanotron
