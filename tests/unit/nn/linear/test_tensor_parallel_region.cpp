// ranks: 1 2 3 4
// Gathers that are multiplied and products that are summed chunk by chunk, against plain loops over all tokens, for
// tokens that divide neither by ranks nor by chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <vector>

#include "nanotron/base/random.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"
#include "support/device_values.hpp"
#include "support/world.hpp"

namespace nanotron::nn {
namespace {

using Values = std::vector<double>;
constexpr index_t width = 5, out = 7;
constexpr double tolerance = 1e-14;

struct Case {
  index_t tokens;
  int chunks;
  deck::TpMode mode;
  deck::GatheredInputs inputs;
  bool between_nodes = false;  // MPI moves the data, not shared memory
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const index_t tokens : {1, 2, 5, 13, 24}) {
    all.push_back({tokens, 1, deck::TpMode::all_reduce, deck::GatheredInputs::gather_again});
    for (const int chunks : {1, 2, 3, 16}) {  // 16: more than rows
      for (const auto inputs : {deck::GatheredInputs::gather_again, deck::GatheredInputs::keep}) {
        all.push_back({tokens, chunks, deck::TpMode::reduce_scatter, inputs});
      }
      all.push_back({tokens, chunks, deck::TpMode::reduce_scatter, deck::GatheredInputs::gather_again, true});
    }
  }
  return all;
}

// The same for every rank but where it is named.
double entry(const char* what, int rank, index_t i) {
  return normal(3, stream_id(what), static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(rank));
}

class Stream : public testing::TestWithParam<Case> {
 protected:
  Stream() : base_(comm::Communicator::duplicate(test::world())), tp_(make_group()), device_(timers_) {
    const HiddenShape size{.tokens = tokens(), .width = width, .tp_size = tp_.size()};
    const TpOverlap overlap{.chunks = GetParam().chunks, .inputs = GetParam().inputs};
    Arena planning = Arena::planning();
    static_cast<void>(make_tensor_parallel_region<double>(GetParam().mode, size, overlap, tp_, planning));
    arena_.emplace(planning.plan());
    region_ = make_tensor_parallel_region<double>(GetParam().mode, size, overlap, tp_, *arena_);
  }

  comm::Group make_group() const {
    comm::Communicator own = comm::Communicator::duplicate(test::world());
    const comm::Transport transport = test::device_transport();
    if (!GetParam().between_nodes || own.size() == 1) return {std::move(own), transport};
    if (transport != comm::Transport::mpi) return {std::move(own), comm::Transport::staged_mpi};
    return {std::move(own), comm::make_mpi_channel(base_)};
  }
  index_t tokens() const { return GetParam().tokens; }

  Matrix<double> matrix(index_t rows, index_t columns) {
    memory_.emplace_back("memory", static_cast<std::size_t>(rows * columns));
    return Matrix<double>(memory_.back().data(), rows, columns);
  }
  Matrix<double> filled(const char* what, int rank, index_t rows, index_t columns) {
    const Matrix<double> m = matrix(rows, columns);
    Values values;
    for (index_t i = 0; i < rows * columns; ++i) values.push_back(entry(what, rank, i));
    test::set_values(m, values);
    return m;
  }
  RowGemm<double> product(index_t rows, index_t columns, int rank) {
    const Matrix<double> bias = filled("bias", rank, rows, 1);
    return {kernels::Op::transpose, filled("weight", rank, rows, columns), Vector<const double>(bias.data(), rows)};
  }
  // Of the matrices above, by plain loops: x (tokens, columns) W^T + b.
  Values expected(const char* x, index_t rows, index_t columns, int rank, int weight_rank) const {
    Values y;
    for (index_t t = 0; t < tokens(); ++t) {
      for (index_t r = 0; r < rows; ++r) {
        double sum = entry("bias", weight_rank, r);
        for (index_t c = 0; c < columns; ++c)
          sum += entry(x, rank, t * columns + c) * entry("weight", weight_rank, r * columns + c);
        y.push_back(sum);
      }
    }
    return y;
  }

  // Rows of the hidden states whose tokens are entry("x", 0, token * width + column), by way of a sum of one part.
  Matrix<double> stream_of_x() {
    const Matrix<double> y = matrix(region_->rows(), width);
    const Matrix<double> part = region_->partial_sum(y);
    const auto host = Kokkos::create_mirror_view(part);
    for (index_t i = 0; i < tokens() * width; ++i) host.data()[i] = tp_.rank() == 0 ? entry("x", 0, i) : 0.0;
    Kokkos::deep_copy(part, host);
    region_->start_sum(device_, y).wait();
    return y;
  }
  static Values all_x(index_t tokens) {
    Values x;
    for (index_t i = 0; i < tokens * width; ++i) x.push_back(entry("x", 0, i));
    return x;
  }

  static void expect_near(const Values& ours, const Values& theirs) {
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i)
      ASSERT_NEAR(ours[i], theirs[i], tolerance * (1 + std::abs(theirs[i])) * 10) << i;
  }

  Timers timers_;
  comm::Communicator base_;
  comm::Group tp_;
  Device device_;
  std::optional<Arena> arena_;
  std::unique_ptr<TensorParallelRegion<double>> region_;
  std::list<Kokkos::View<double*, MemorySpace>> memory_;
};

TEST_P(Stream, GatherUndoesTheSum) {
  const Matrix<double> x = stream_of_x();
  EXPECT_EQ(test::values_of(region_->gather(device_, x)), all_x(tokens()));
  // Each token is on one rank of a sharded hidden states, on every rank of a whole one; the rest is padding of zeros.
  double here = 0.0, sum = 0.0, all = 0.0;
  for (const double v : test::values_of(x)) here += v * v;
  for (const double v : all_x(tokens())) all += v * v;
  MPI_Allreduce(&here, &sum, 1, MPI_DOUBLE, MPI_SUM, test::world());
  EXPECT_NEAR(sum, region_->is_sharded() ? all : all * tp_.size(), 1e-12 * sum);
}

TEST_P(Stream, GathersAndMultiplies) {
  const Matrix<double> kept = matrix(region_->kept_rows(), width);
  const BlockInput<double> x{stream_of_x(), kept};
  const Matrix<double> y = matrix(tokens(), out);
  EXPECT_EQ(test::values_of(region_->all_gather_gemm(device_, x, product(out, width, tp_.rank()), y)), all_x(tokens()));
  expect_near(test::values_of(y), expected("x", out, width, 0, tp_.rank()));
}

TEST_P(Stream, MultipliesAndSums) {
  const Matrix<double> x = filled("a", tp_.rank(), tokens(), out), y = matrix(region_->rows(), width);
  region_->gemm_reduce(device_, product(width, out, tp_.rank()), x, y).wait();
  Values sum(static_cast<std::size_t>(tokens() * width), 0.0);
  for (int r = 0; r < tp_.size(); ++r) {
    const Values part = expected("a", width, out, r, r);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  expect_near(test::values_of(region_->gather(device_, y)), sum);
}

// What forward keeps is not sent again; what it does not keep is, while a product and its sum go on.
TEST_P(Stream, GathersAgainBehindAProduct) {
  const Matrix<double> kept = matrix(region_->kept_rows(), width);
  const BlockInput<double> x{stream_of_x(), kept};
  const Matrix<double> y = matrix(tokens(), out), z = matrix(region_->rows(), width);
  region_->all_gather_gemm(device_, x, product(out, width, tp_.rank()), y);
  if (region_->kept_rows() == 0) region_->gather(device_, z);  // others used the buffer
  const std::uint64_t before = tp_.traffic().bytes;
  PendingGather<double> again = region_->start_regather(device_, x);
  const std::uint64_t sent = tp_.traffic().bytes - before;
  Pending sum = region_->gemm_reduce(device_, product(width, out, tp_.rank()), y, z);
  EXPECT_EQ(test::values_of(again.wait()), all_x(tokens()));
  sum.wait();
  const bool gathers = region_->is_sharded() && region_->kept_rows() == 0;
  EXPECT_EQ(sent, gathers ? sizeof(double) * static_cast<std::uint64_t>(region_->rows() * width) : 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Stream, testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  return std::string(c.mode == deck::TpMode::all_reduce ? "whole" : "split") + "_tokens_" + std::to_string(c.tokens) +
         "_chunks_" + std::to_string(c.chunks) + (c.inputs == deck::GatheredInputs::keep ? "_kept" : "") +
         (c.between_nodes ? "_mpi" : "");
});

// Every row of a rank is in one chunk, and chunks differ by one row at most.
TEST(Chunks, CoverTheRows) {
  for (const index_t tokens : {1, 7, 64, 101}) {
    for (const int tp : {2, 3, 5}) {
      for (const int chunks : {1, 2, 7, 16}) {
        const HiddenShape size{.tokens = tokens, .width = 1, .tp_size = tp};
        const index_t rows = hidden_rows(deck::TpMode::reduce_scatter, size);
        index_t next = 0;
        for (int c = 0; c < chunks; ++c) {
          const Range range = chunk_rows(size, {.chunks = chunks}, c);
          EXPECT_EQ(range.begin, next);
          EXPECT_GE(range.size(), rows / chunks);
          EXPECT_LE(range.size(), rows / chunks + 1);
          next = range.end;
        }
        EXPECT_EQ(next, rows);
        EXPECT_GE(rows * tp, tokens);
      }
    }
  }
}

}  // namespace
}  // namespace nanotron::nn
