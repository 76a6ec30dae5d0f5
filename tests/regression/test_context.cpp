// ranks: 1 2 3 4
// timeout: 300
// Sequences cut over a context-parallel group follow the serial run: cp in {1, 2, 3, 4} with tp and dp, by a ring, by
// an all-to-all and by a ring of all-to-alls, of lengths that do not divide, with and without documents.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/golden.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = std::min<std::int64_t>(6, test::compared_steps);
constexpr double tolerance = 1e-11;

struct Grid {
  int cp, tp;
  deck::CpMode mode;
  deck::TpMode tp_mode = deck::TpMode::all_reduce;
  int all_to_all = 1;
};

std::string name_of(const Grid& g) {
  return fmt::format("cp {} tp {} {} {}{}", g.cp, g.tp, g.mode == deck::CpMode::ring ? "ring" : "all_to_all",
                     g.tp_mode == deck::TpMode::all_reduce ? "whole" : "split", g.all_to_all > 1 ? " of pairs" : "");
}

// Those that fill the ranks with a dp that divides the batch.
std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  if (ranks == 4) grids.push_back({4, 1, deck::CpMode::ring, deck::TpMode::all_reduce, 2});
  for (const int cp : {1, 2, 3, 4}) {
    for (const int tp : {1, 2}) {
      if (ranks % (cp * tp) != 0 || (cp == 1 && tp == 1 && ranks > 1)) continue;
      for (const auto mode : {deck::CpMode::ring, deck::CpMode::all_to_all}) {
        if (mode == deck::CpMode::all_to_all && (cp == 1 || cp * tp > 4)) continue;
        grids.push_back({cp, tp, mode});
        if (tp > 1) grids.push_back({cp, tp, mode, deck::TpMode::reduce_scatter});
      }
    }
  }
  return grids;
}

class Context : public testing::Test {
 protected:
  Context() : folder_(test::world(), "context") { MPI_Comm_size(test::world(), &ranks_); }

  // The golden model on text with documents of uneven length, some within one chunk, some over many.
  deck::Config config(const std::string& model, std::int64_t length, deck::DocumentMask mask) {
    deck::Config c = test::golden_config(model);
    c.data.sequence_length = length;
    c.data.micro_batch_size = 2;
    c.data.document_mask = mask;
    if (mask == deck::DocumentMask::none) return c;
    c.data.path = (folder_.path() / "documents.h5").string();
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0) {
      test::write_tokens(c.data.path, 4000, 131);
      std::vector<std::uint64_t> starts;
      for (std::uint64_t at = 2, i = 0; at < 4000; at += 1 + i * i % 23, ++i) starts.push_back(at);
      test::write_documents(c.data.path, starts);
    }
    MPI_Barrier(test::world());
    return c;
  }

  test::Numbers run(deck::Config c, const Grid& grid, std::int64_t until = steps, bool save = false) {
    c.parallel.cp = grid.cp;
    c.parallel.tp = grid.tp;
    c.parallel.dp = ranks_ / grid.cp / grid.tp;
    c.parallel.cp_mode = grid.mode;
    c.parallel.cp_all_to_all = grid.all_to_all;
    c.parallel.tp_mode = grid.tp_mode;
    if (c.parallel.dp == 4) c.data.micro_batch_size = 1;
    const test::Numbers numbers = test::run_training(c, test::world(), until, save);
    EXPECT_EQ(numbers.counted.tensor_parallel, numbers.predicted.tensor_parallel);
    EXPECT_EQ(numbers.counted.context_parallel, numbers.predicted.context_parallel);
    EXPECT_EQ(numbers.counted.data_parallel, numbers.predicted.data_parallel);
    return numbers;
  }

  void expect_grids_follow(const deck::Config& c, const std::string& what) {
    const test::Numbers reference = test::serial(c, steps);
    for (const Grid& grid : grids_of(ranks_)) {
      SCOPED_TRACE(what + " " + name_of(grid));
      const test::Numbers ours = run(c, grid);
      const double worst = test::worst_loss_difference(ours, reference);
      EXPECT_LT(worst, tolerance);
      EXPECT_EQ(ours.hashes, reference.hashes);
      test::expect_same_state(ours.parameters, reference.parameters);
      test::expect_same_state(ours.exp_avg, reference.exp_avg);
      test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
      int rank = 0;
      MPI_Comm_rank(test::world(), &rank);
      if (rank == 0) std::printf("%s %s: worst relative difference %.1e\n", what.c_str(), name_of(grid).c_str(), worst);
    }
  }

  test::TemporaryFolder folder_;
  int ranks_ = 1;
};

TEST_F(Context, EveryGridFollowsTheSerialRun) {
  for (const char* model : {"llama", "qwen3"}) {
    for (const std::int64_t length : {16, 13}) {
      expect_grids_follow(config(model, length, deck::DocumentMask::none), fmt::format("{} of {}", model, length));
    }
  }
}

TEST_F(Context, WithDocumentsToo) {
  for (const std::int64_t length : {32, 29}) {
    expect_grids_follow(config("qwen2", length, deck::DocumentMask::block_diagonal),
                        fmt::format("documents, qwen2 of {}", length));
  }
}

// PyTorch's numbers for a mask made of the same documents: tests/golden/make_golden.py --documents.
TEST_F(Context, PackedDocumentsAgreeWithPytorch) {
  std::ifstream file(test::test_folder() / "golden" / "documents.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  deck::Config c = test::golden_config(golden.at("case"));
  c.data.document_mask = deck::DocumentMask::block_diagonal;
  const std::string path = (folder_.path() / "golden.h5").string();
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  if (rank == 0) {
    std::filesystem::copy_file(c.data.path, path);
    test::write_documents(path, golden.at("documents"));
  }
  MPI_Barrier(test::world());
  c.data.path = path;
  const std::vector<double> losses = golden.at("fp64").at("losses"), norms = golden.at("fp64").at("grad_norms");
  for (const auto mode : {deck::CpMode::ring, deck::CpMode::all_to_all}) {
    const test::Numbers ours = run(c, {ranks_, 1, mode}, 20);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(ours.losses[i], losses[i], 1e-10 * losses[i]) << i;
      EXPECT_NEAR(ours.grad_norms[i], norms[i], 1e-9 * norms[i]) << i;
    }
  }
}

TEST_F(Context, SequencesShorterThanTheChunks) {
  for (const auto mask : {deck::DocumentMask::none, deck::DocumentMask::block_diagonal}) {
    expect_grids_follow(config("llama", 5, mask), "llama of 5");
  }
}

TEST_F(Context, RecomputationAndASecondRunChangeNoBit) {
  std::vector<Grid> grids{{ranks_, 1, deck::CpMode::ring}, {ranks_, 1, deck::CpMode::all_to_all}};
  if (ranks_ == 4) grids.push_back({4, 1, deck::CpMode::ring, deck::TpMode::all_reduce, 2});
  for (const Grid& grid : grids) {
    deck::Config c = config("qwen3", 13, deck::DocumentMask::block_diagonal);
    const test::Numbers kept = run(c, grid, 3);
    EXPECT_EQ(run(c, grid, 3).parameters, kept.parameters);
    for (const auto recompute : {deck::Recompute::selective, deck::Recompute::full}) {
      c.parallel.recompute = recompute;
      const test::Numbers again = run(c, grid, 3);
      EXPECT_EQ(again.losses, kept.losses);
      EXPECT_EQ(again.parameters, kept.parameters);
    }
  }
}

// A checkpoint of sequences that are cut is one of those that are not.
TEST_F(Context, GoesOnOnAnotherGrid) {
  deck::Config c = config("llama", 13, deck::DocumentMask::none);
  const test::Numbers reference = test::serial(c, 6);
  c.checkpoint.directory = (folder_.path() / "checkpoints").string();
  run(c, {ranks_, 1, deck::CpMode::ring}, 3, true);
  MPI_Barrier(test::world());
  c.checkpoint.resume = (folder_.path() / "checkpoints" / "step_00000003").string();
  for (const test::Numbers& rest : {test::serial(c, 6), run(c, {ranks_, 1, deck::CpMode::all_to_all}, 6)}) {
    ASSERT_EQ(rest.losses.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(rest.losses[i], reference.losses[3 + i], tolerance * reference.losses[3 + i]);
    }
    EXPECT_EQ(rest.hashes, std::vector<std::uint64_t>(reference.hashes.begin() + 3, reference.hashes.end()));
  }
}

// bf16 rounds parts of the sums where one rank rounds the whole: losses follow within a few roundings.
TEST_F(Context, NarrowTypesFollowWithinTheirRounding) {
  for (const auto& [type, bound] : {std::pair{ScalarType::fp32, 2e-5}, {ScalarType::bf16, 2e-2}}) {
    deck::Config c = config("llama", 29, deck::DocumentMask::block_diagonal);
    c.precision.compute = type;
    c.checkpoint.resume = "none";
    const test::Numbers reference = test::serial(c, steps);
    for (const auto mode : {deck::CpMode::ring, deck::CpMode::all_to_all}) {
      const test::Numbers ours = run(c, {ranks_, 1, mode});
      for (std::size_t i = 0; i < ours.losses.size(); ++i) {
        EXPECT_NEAR(ours.losses[i], reference.losses[i], bound * reference.losses[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace nanotron
