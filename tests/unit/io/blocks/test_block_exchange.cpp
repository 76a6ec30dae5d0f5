// ranks: 1 2 3 4
#include "nanotron/io/blocks/block_exchange.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "nanotron/base/error.hpp"
#include "support/world.hpp"

namespace nanotron::io {
namespace {

struct Ranks {
  int rank = 0, size = 1;
  Ranks() {
    MPI_Comm_rank(test::world(), &rank);
    MPI_Comm_size(test::world(), &size);
  }
};

// A logical tensor, whose elements are numbers of the whole file, and this rank's part of it.
struct Tensor {
  StateTensor state;
  std::vector<float> memory;
  std::int64_t begin = 0;
};

// Cut along a drawn dimension at drawn places, some ranks without a part, in memory with gaps between rows.
Tensor drawn_tensor(std::mt19937& random, const Ranks& ranks, std::int64_t begin) {
  const auto draw = [&](index_t low, index_t high) {
    return low + static_cast<index_t>(random() % std::size_t(high - low + 1));
  };
  Tensor t;
  t.begin = begin;
  std::vector<index_t> shape;
  for (index_t d = draw(1, 3); d > 0; --d) shape.push_back(draw(1, 9));
  const auto cut = static_cast<std::size_t>(draw(0, std::ssize(shape) - 1));
  std::vector<index_t> edges{0, shape[cut]};
  for (int r = 1; r < ranks.size; ++r) edges.push_back(draw(0, shape[cut]));
  std::ranges::sort(edges);
  StatePart part{.offset = std::vector<index_t>(shape.size(), 0), .extent = shape, .data = nullptr, .stride = shape};
  part.offset[cut] = edges[std::size_t(ranks.rank)];
  part.extent[cut] = edges[std::size_t(ranks.rank) + 1] - part.offset[cut];
  const index_t gap = draw(0, 2);
  index_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    part.stride[d] = stride;
    stride *= part.extent[d] + (d + 1 == shape.size() && shape.size() > 1 ? gap : 0);
  }
  t.memory.assign(static_cast<std::size_t>(stride) + 1, -1.0f);
  const index_t inner = shape.size() == 3 ? part.extent[1] : 1, columns = part.extent.back();
  const index_t rows = shape.size() == 1 ? 1 : part.extent[0];
  for (index_t i = 0; i < rows * inner * columns; ++i) {
    const index_t c = i % columns, j = i / columns % inner, o = i / columns / inner;
    const auto n = shape.size();
    index_t at = c, linear = part.offset[n - 1] + c;
    if (n == 2) at += o * part.stride[0], linear += (part.offset[0] + o) * shape[1];
    if (n == 3) {
      at += o * part.stride[0] + j * part.stride[1];
      linear += ((part.offset[0] + o) * shape[1] + part.offset[1] + j) * shape[2];
    }
    t.memory[static_cast<std::size_t>(at)] = static_cast<float>(begin / 4 + linear);
  }
  part.data = t.memory.data();
  t.state = {"drawn", shape, {part}};
  return t;
}

// Calls f(position, blocks).
template <class F>
class Sink final : public BlockSink {
 public:
  explicit Sink(F f) : f_(std::move(f)) {}
  std::span<std::byte> memory(std::size_t bytes) override {
    memory_.assign(bytes, std::byte{0xa5});
    return memory_;
  }
  void put(std::int64_t position, std::span<const std::byte> blocks) override { f_(position, blocks); }

 private:
  F f_;
  std::vector<std::byte> memory_;
};

// The whole file from the blocks that the ranks were given; each byte once.
std::vector<std::byte> gathered(const BlockedFile& file, const FileImage& image,
                                std::span<const PlacedTensor> tensors) {
  std::vector<unsigned char> mine(static_cast<std::size_t>(file.bytes), 0), times(mine.size(), 0), all = mine;
  std::int64_t last = -1;
  Sink sink([&](std::int64_t at, std::span<const std::byte> bytes) {
    EXPECT_GT(at, last);
    EXPECT_EQ(at % file.block_bytes, 0);
    EXPECT_LE(std::ssize(bytes), held_blocks * file.block_bytes);
    EXPECT_TRUE(std::ssize(bytes) % file.block_bytes == 0 || at + std::ssize(bytes) == file.bytes);
    last = at;
    std::memcpy(mine.data() + at, bytes.data(), bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) ++times[static_cast<std::size_t>(at) + i];
  });
  assemble_blocks(test::world(), file, image, tensors, sink);
  MPI_Allreduce(mine.data(), all.data(), int(mine.size()), MPI_UNSIGNED_CHAR, MPI_BOR, test::world());
  MPI_Allreduce(MPI_IN_PLACE, times.data(), int(times.size()), MPI_UNSIGNED_CHAR, MPI_SUM, test::world());
  EXPECT_TRUE(std::ranges::all_of(times, [](unsigned char n) { return n == 1; }));
  std::vector<std::byte> whole(all.size());
  std::memcpy(whole.data(), all.data(), all.size());
  return whole;
}

TEST(BlockExchange, PutsEveryElementInItsPlace) {
  const Ranks ranks;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<Tensor> drawn;
    std::int64_t end = 40;
    std::vector<std::pair<std::int64_t, std::int64_t>> numbers;
    for (int i = 0; i < 4; ++i) {
      end = (end + 3) / 4 * 4;
      drawn.push_back(drawn_tensor(random, ranks, end));
      const std::vector<index_t>& shape = drawn.back().state.global_shape;
      const std::int64_t bytes = 4 * std::accumulate(shape.begin(), shape.end(), index_t{1}, std::multiplies<>());
      numbers.emplace_back(end, bytes);
      end += bytes + static_cast<std::int64_t>(random() % 30);
    }
    FileImage image("image");
    if (ranks.rank == 0) image.write("the head of the file", 20, 11);
    std::vector<PlacedTensor> placed;
    for (const Tensor& t : drawn) placed.push_back({&t.state, ScalarType::fp32, t.begin});
    std::vector<std::byte> expected(static_cast<std::size_t>(end), std::byte{0});
    std::memcpy(expected.data() + 11, "the head of the file", 20);
    for (const auto& [begin, bytes] : numbers) {
      for (std::int64_t at = begin; at < begin + bytes; at += 4) {
        const auto number = static_cast<float>(at / 4);
        std::memcpy(expected.data() + at, &number, 4);
      }
    }
    const std::int64_t block = 1 + static_cast<std::int64_t>(random() % 120);
    ASSERT_TRUE(gathered({end, block}, image, placed) == expected) << "seed " << seed << ", blocks of " << block;
  }
}

// A rank that stores most of a block writes it; what all store alike is shared among them.
TEST(BlockExchange, BlocksStayWhereTheirBytesAre) {
  const Ranks ranks;
  constexpr index_t rows = 64, columns = 256;  // rows of 1 KiB
  std::vector<float> memory(static_cast<std::size_t>(rows * columns));
  const StateTensor mine{
      "rows", {rows * ranks.size, columns}, {{{rows * ranks.rank, 0}, {rows, columns}, memory.data(), {columns, 1}}}};
  const index_t width = columns / ranks.size;
  const StateTensor shared{
      "columns", {rows, width * ranks.size}, {{{0, width * ranks.rank}, {rows, width}, memory.data(), {width, 1}}}};
  const std::int64_t bytes = rows * ranks.size * columns * 4;
  std::int64_t here = 0;
  const PlacedTensor first[] = {{&mine, ScalarType::fp32, 0}};
  Sink rows_here([&](std::int64_t at, auto block) {
    EXPECT_GE(at, rows * ranks.rank * columns * 4);
    here += std::ssize(block);
  });
  assemble_blocks(test::world(), {bytes, 4096}, FileImage("image"), first, rows_here);
  EXPECT_EQ(here, rows * columns * 4);
  here = 0;
  const PlacedTensor second[] = {{&shared, ScalarType::fp32, 0}};
  const std::int64_t all = rows * width * ranks.size * 4;
  Sink blocks_here([&](std::int64_t, auto block) { here += std::ssize(block); });
  assemble_blocks(test::world(), {all, 1024}, FileImage("image"), second, blocks_here);
  EXPECT_GT(here, all / ranks.size / 3);
  EXPECT_LT(here, all / ranks.size * 2);
}

TEST(BlockExchange, AFailureOfOneRankDoesNotStopTheOthers) {
  const Ranks ranks;
  std::vector<float> memory(1000, 1.0f);
  const StateTensor mine{"rows", {1000 * ranks.size}, {{{1000 * ranks.rank}, {1000}, memory.data(), {1}}}};
  const PlacedTensor placed[] = {{&mine, ScalarType::fp32, 0}};
  int calls = 0;
  Sink sink([&](std::int64_t, auto) {
    ++calls;
    if (ranks.rank == ranks.size - 1) fail(ExitCode::system_error, {.what = "the disk is gone"});
  });
  const auto assemble = [&] {
    assemble_blocks(test::world(), {4000 * ranks.size, 64}, FileImage("image"), placed, sink);
  };
  if (ranks.rank == ranks.size - 1) {
    EXPECT_THROW(assemble(), Error);
    EXPECT_EQ(calls, 1);
  } else {
    assemble();
    EXPECT_GT(calls, 1);
  }
}

}  // namespace
}  // namespace nanotron::io
