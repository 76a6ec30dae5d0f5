// ranks: 1 2 4
// Tensors of any type and shape, written in blocks of any size and read in transfers of any size.
#include <gtest/gtest.h>

#include <numeric>

#include "nanotron/io/blocks/parallel_hdf5.hpp"
#include "nanotron/tensor/tensor.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/checkpoint_fixture.hpp"
#include "unit/io/file_of_tensors.hpp"

namespace nanotron::io {
namespace {

class Slabs : public Checkpoint {};

/// A file of these tensors, open on all ranks.
hdf5::File make_file(MPI_Comm world, const fs::path& path, const std::vector<StateTensor>& tensors,
                     ScalarType type = ScalarType::fp64, std::int64_t block_bytes = 1000) {
  test::write_file(world, path, tensors, type, block_bytes);
  return hdf5::open_read_only(path);
}

std::vector<Slab> slabs_of(const hdf5::File& file, const std::vector<StateTensor>& tensors,
                           ScalarType type = ScalarType::fp64) {
  std::vector<Slab> slabs;
  for (const StateTensor& t : tensors)
    slabs.push_back({std::make_shared<hdf5::Dataset>(hdf5::open_dataset(file.id(), t.name, "")), &t, type, t.name});
  return slabs;
}

// Rows with gaps in transfers of a few elements, then as fp32, and fp32 with what bf16 cannot hold as bf16.
TEST_F(Slabs, InBf16) {
  const index_t rows = 5, columns = 6, pitch = 9;
  std::vector<bf16> memory(static_cast<std::size_t>(rows * pitch)), back(memory.size(), bf16(0.0f));
  for (std::size_t i = 0; i < memory.size(); ++i)
    memory[i] = bf16(static_cast<float>(rank * 1000) + static_cast<float>(i) * 0.25f);
  const auto tensor = [&](void* data, index_t stride) {
    return std::vector<StateTensor>{
        {"half", {size * rows, columns}, {{{rank * rows, 0}, {rows, columns}, data, {stride, 1}}}}};
  };
  const auto written = tensor(memory.data(), pitch), read = tensor(back.data(), pitch);
  const auto file = make_file(world, scratch / "half.h5", written, ScalarType::bf16);
  read_slabs(world, slabs_of(file, read, ScalarType::bf16), 50);
  std::vector<float> wide(static_cast<std::size_t>(rows * columns));
  const auto as_fp32 = tensor(wide.data(), columns);
  read_slabs(world, slabs_of(file, as_fp32, ScalarType::fp32));
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < columns; ++c) {
      const bf16 expected = memory[static_cast<std::size_t>(r * pitch + c)];
      EXPECT_EQ(back[static_cast<std::size_t>(r * pitch + c)].bits, expected.bits);
      EXPECT_EQ(wide[static_cast<std::size_t>(r * columns + c)], static_cast<float>(expected));
    }
  }
  wide[0] = INFINITY, wide[1] = -INFINITY, wide[2] = NAN, wide[3] = 1.0f + 0x1p-7f + 0x1p-9f, wide[4] = -0.0f;
  const auto wider = make_file(world, scratch / "wide.h5", as_fp32, ScalarType::fp32);
  const auto narrow = tensor(back.data(), columns);
  read_slabs(world, slabs_of(wider, narrow, ScalarType::bf16));
  EXPECT_EQ(static_cast<float>(back[0]), INFINITY);
  EXPECT_EQ(static_cast<float>(back[1]), -INFINITY);
  EXPECT_TRUE(std::isnan(static_cast<float>(back[2])));
  EXPECT_EQ(static_cast<float>(back[3]), 1.0f + 0x1p-7f);
  EXPECT_EQ(back[4].bits, 0x8000);
}

TEST_F(Slabs, LargePartsGoInPieces) {
  for (const std::int64_t piece : {30, 200, 1 << 20}) {
    const int salt = static_cast<int>(piece % 1000);
    test::FakeModel<double> model(rank, size), back(rank, size);
    model.fill(salt);
    const auto file = make_file(world, scratch / "pieces.h5", model.tensors(), ScalarType::fp64, 3 * piece);
    read_slabs(world, slabs_of(file, back.tensors()), piece);
    EXPECT_EQ(back.differences(salt), 0) << piece;
  }
}

TEST(Pieces, CoverAPartOnceAndStaySmall) {
  for (const std::vector<index_t>& extent : {std::vector<index_t>{3, 7, 5}, {1, 1, 9}, {6, 5}, {11}, {4, 0, 3}}) {
    StateTensor t;
    t.parts.emplace_back();
    t.parts[0].extent = extent;
    const bool layered = extent.size() == 3;
    const index_t row = extent.size() == 1 ? 1 : extent.back(), rows = layered ? extent[1] : 1;
    for (const std::int64_t elements : {1, 5, 12, 36, 70, 1000}) {
      index_t covered = 0;
      for (const std::vector<Piece>& transfer : transfers_of(t, ScalarType::fp64, 8 * elements)) {
        ASSERT_EQ(transfer.size(), 1u);
        const Piece& piece = transfer.front();
        const index_t size = piece.outer.size() * piece.inner.size() * row;
        EXPECT_LE(size, std::max<index_t>(elements, row));
        EXPECT_TRUE(piece.outer.size() == 1 || piece.inner.size() == rows);
        covered += size;
      }
      EXPECT_EQ(covered, std::accumulate(extent.begin(), extent.end(), index_t{1}, std::multiplies<>()));
    }
  }
}

using DeviceMemory = Kokkos::View<double*, MemorySpace>;

DeviceMemory on_device(const std::vector<double>& values) {
  const DeviceMemory memory("values", values.size());
  const auto host = Kokkos::create_mirror_view(memory);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(memory, host);
  return memory;
}

std::vector<double> values_of(const DeviceMemory& memory) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), memory);
  return {host.data(), host.data() + host.size()};
}

TEST_F(Slabs, PaddedRowsOfDeviceMemory) {
  std::vector<double> values(80, -1.0);  // 2 layers of 4 rows of 10, 6 used
  for (index_t i = 0; i < 48; ++i) values[std::size_t(i / 24 * 40 + i % 24 / 6 * 10 + i % 6)] = double(i + 100 * rank);
  const DeviceMemory memory = on_device(values), back = on_device(std::vector<double>(80, -1.0));
  StateTensor t{"padded", {2, 4 * size, 6}, {{{0, 4 * rank, 0}, {2, 4, 6}, memory.data(), {40, 10, 1}}}};
  const auto file = make_file(world, scratch / "padded.h5", {t});
  t.parts[0].data = back.data();
  const std::vector<StateTensor> wanted{t};
  read_slabs(world, slabs_of(file, wanted), 150);
  EXPECT_EQ(values_of(back), values);
}

// A rank has an interval of the row-major elements of each layer: the end of a row, whole rows, the beginning of one.
StateTensor flat_pieces(const std::vector<index_t>& shape, int rank, int size, std::vector<double>& memory) {
  const index_t columns = shape[2], elements = shape[1] * columns;
  const index_t begin = elements * rank / size, end = elements * (rank + 1) / size;
  memory.assign(static_cast<std::size_t>(shape[0] * (end - begin)), -1.0);
  StateTensor t{"pieces", shape, {}};
  double* data = memory.data();
  for (index_t layer = 0; layer < shape[0]; ++layer) {
    for (index_t i = begin; i < end;) {
      const index_t row = i / columns, column = i % columns;
      const bool whole = column == 0 && end - i >= columns;
      const index_t rows = whole ? (end - i) / columns : 1;
      const index_t count = whole ? columns : std::min(columns - column, end - i);
      t.parts.push_back({{layer, row, column}, {1, rows, count}, data, {rows * columns, columns, 1}});
      if (!whole) t.parts.back().stride = {count, count, 1};
      data += rows * count;
      i += rows * count;
    }
  }
  return t;
}

TEST_F(Slabs, SeveralPartsOfATensor) {
  const std::vector<index_t> shape{3, 11, 7};
  for (const std::int64_t limit : {60, 200, 1 << 20}) {
    std::vector<double> memory, back;
    const std::vector<StateTensor> written{flat_pieces(shape, rank, size, memory)};
    const index_t first = 77 * rank / size, count = 77 * (rank + 1) / size - first;
    for (index_t i = 0; i < 3 * count; ++i) memory[std::size_t(i)] = double(i / count * 77 + first + i % count);
    const auto file = make_file(world, scratch / "parts.h5", written, ScalarType::fp64, limit);
    const std::vector<StateTensor> wanted{flat_pieces(shape, rank, size, back)};
    read_slabs(world, slabs_of(file, wanted), limit);
    EXPECT_EQ(back, memory) << limit;
    std::vector<double> all(3 * 77);  // the logical tensor
    const StateTensor whole{"pieces", shape, {{{0, 0, 0}, shape, all.data(), {77, 7, 1}}}};
    const std::vector<StateTensor> wholes{whole};
    read_slabs(world, slabs_of(file, wholes));
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], double(i));
  }
}

}  // namespace
}  // namespace nanotron::io
