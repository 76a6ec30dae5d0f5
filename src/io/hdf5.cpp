#include "nanotron/io/hdf5.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "nanotron/io/shared_file.hpp"

namespace nanotron::io {
namespace {

constexpr hsize_t alignment_threshold = hsize_t{64} << 10;
constexpr hsize_t alignment = hsize_t{1} << 20;  // of a Lustre stripe, usually

/// The selections of one transfer.
struct Selection {
  hdf5::Dataspace file, memory;
};

bool packed_below_first(const StateTensor& t) {
  const std::size_t n = t.extent.size();
  if (t.stride[n - 1] != 1 && n > 1) return false;
  for (std::size_t i = 1; i + 1 < n; ++i)
    if (t.stride[i] != t.stride[i + 1] * t.extent[i + 1]) return false;
  return true;
}

hdf5::Dataspace rectangle(const std::vector<hsize_t>& dims, const std::vector<hsize_t>& count) {
  hdf5::Dataspace space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
  const std::vector<hsize_t> start(dims.size(), 0);
  hdf5::check(
      H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
      ExitCode::system_error, "selecting memory");
  return space;
}

/// The memory of `extent` elements as a rectangle of a larger array that has the tensor's strides.
hdf5::Dataspace memory_space(const StateTensor& t, const std::vector<index_t>& extent) {
  const auto u = [](index_t value) { return static_cast<hsize_t>(value); };
  if (packed_below_first(t)) {
    index_t inner = 1;
    for (std::size_t i = 1; i < extent.size(); ++i) inner *= extent[i];
    return rectangle({u(extent[0]), u(std::max(t.stride[0], inner))}, {u(extent[0]), u(inner)});
  }
  NANOTRON_REQUIRE(extent.size() == 3 && t.stride[2] == 1 && t.stride[1] >= extent[2] &&
                       t.stride[0] % t.stride[1] == 0 && t.stride[0] >= t.stride[1] * extent[1],
                   "the strides of {} are no rectangle", t.name);
  return rectangle({u(extent[0]), u(t.stride[0] / t.stride[1]), u(t.stride[1])},
                   {u(extent[0]), u(extent[1]), u(extent[2])});
}

/// A piece of this rank's part; nothing when that is empty.
Selection select(const hdf5::Dataset& dataset, const StateTensor& t, const Piece& piece) {
  Selection s;
  s.file = hdf5::Dataspace(H5Dget_space(dataset.id()));
  if (piece.outer.size() == 0) {
    const hsize_t one = 1;
    s.memory = hdf5::Dataspace(H5Screate_simple(1, &one, nullptr));
    H5Sselect_none(s.memory.id());
    H5Sselect_none(s.file.id());
    return s;
  }
  std::vector<index_t> extent = t.extent;
  std::vector<hsize_t> start(t.offset.begin(), t.offset.end());
  extent[0] = piece.outer.size();
  start[0] += static_cast<hsize_t>(piece.outer.begin);
  if (extent.size() == 3) {
    extent[1] = piece.inner.size();
    start[1] += static_cast<hsize_t>(piece.inner.begin);
  }
  const std::vector<hsize_t> count(extent.begin(), extent.end());
  hdf5::check(H5Sselect_hyperslab(s.file.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                                  nullptr),
              ExitCode::system_error, fmt::format("selecting the part of {}", t.name));
  s.memory = memory_space(t, extent);
  return s;
}

bool is_empty(const StateTensor& t) {
  return std::any_of(t.extent.begin(), t.extent.end(), [](index_t e) { return e <= 0; });
}

/// This rank's pieces of each slab, and empty ones behind them up to the largest number of any rank.
std::vector<std::vector<Piece>> agree_on_pieces(MPI_Comm world, std::span<const Slab> slabs,
                                                ScalarType master, std::int64_t piece_bytes) {
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::int64_t> counts;
  collectively(world, [&] {
    for (const Slab& slab : slabs) {
      const StateTensor& t = *slab.tensor;
      NANOTRON_REQUIRE(t.extent.size() == t.global_shape.size() &&
                           t.offset.size() == t.extent.size() && t.stride.size() == t.extent.size(),
                       "{}: shape, offset, extent and stride differ in length", t.name);
      if (!is_empty(t)) memory_space(t, t.extent);  // throws when the strides cannot be described
      pieces.push_back(pieces_of(t, master, piece_bytes));
      counts.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(pieces.back().size())));
    }
  });
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, counts.data(), static_cast<int>(counts.size()),
                                   MPI_INT64_T, MPI_MAX, world));
  for (std::size_t i = 0; i < pieces.size(); ++i)
    pieces[i].resize(static_cast<std::size_t>(counts[i]), Piece{{0, 0}, {0, 0}});
  return pieces;
}

/// Calls transfer(slab, selection, memory, piece) for all pieces of all slabs, the same number on
/// each rank.
template <class Transfer>
void in_pieces(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
               std::int64_t piece_bytes, const Transfer& transfer) {
  const auto pieces = agree_on_pieces(world, slabs, master, piece_bytes);
  char nothing[8] = {};
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const StateTensor& t = *slabs[i].tensor;
    for (const Piece& piece : pieces[i]) {
      index_t skipped = piece.outer.begin * t.stride[0];
      if (t.stride.size() == 3) skipped += piece.inner.begin * t.stride[1];
      skipped *= static_cast<index_t>(size_of(master));
      char* data = piece.outer.size() == 0 ? nothing : static_cast<char*>(t.data) + skipped;
      // Agreed on each time: after a failed transfer no further one may be begun.
      collectively(world, [&] {
        transfer(slabs[i], select(slabs[i].dataset, t, piece), data, piece);
      });
    }
  }
}

// Compares a piece in packed memory with the tensor's own, which begins at `data`, row by row.
bool equal_rows(const StateTensor& t, const Piece& piece, const char* packed, const char* data,
                std::size_t element) {
  const std::size_t n = t.extent.size();
  const index_t inner = n == 3 ? piece.inner.size() : 1;
  const std::size_t row_bytes = element * static_cast<std::size_t>(n == 1 ? 1 : t.extent[n - 1]);
  for (index_t i = 0; i < piece.outer.size(); ++i)
    for (index_t j = 0; j < inner; ++j, packed += row_bytes) {
      const index_t at = i * t.stride[0] + (n == 3 ? j * t.stride[1] : 0);
      if (std::memcmp(packed, data + at * static_cast<index_t>(element), row_bytes) != 0)
        return false;
    }
  return true;
}

hdf5::PropertyList transfer_mode(H5FD_mpio_xfer_t mode) {
  hdf5::PropertyList transfer(H5Pcreate(H5P_DATASET_XFER));
  hdf5::check(H5Pset_dxpl_mpio(transfer.id(), mode), ExitCode::system_error,
              "choosing collective transfers");
  return transfer;
}

}  // namespace

hdf5::File create_file(const std::filesystem::path& path) {
  hdf5::silence();
  const hdf5::PropertyList access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_alignment(access.id(), alignment_threshold, alignment);
  H5Pset_libver_bounds(access.id(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110);
  return hdf5::File(hdf5::check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()),
                                ExitCode::system_error, fmt::format("creating {}", path.string())));
}

hdf5::File open_parallel(MPI_Comm world, const std::filesystem::path& path, Access access) {
  hdf5::File file;
  const bool writes = access == Access::write;
  // One rank that fails alone inside of the collective H5Fopen leaves the others waiting in it.
  require_same_file(world, path, writes ? ExitCode::system_error : ExitCode::data_error);
  collectively(world, [&] {
    hdf5::silence();
    const hdf5::PropertyList properties(H5Pcreate(H5P_FILE_ACCESS));
    hdf5::check(H5Pset_fapl_mpio(properties.id(), world, MPI_INFO_NULL), ExitCode::system_error,
                "choosing MPI-IO");
    file = hdf5::File(
        hdf5::check(H5Fopen(path.c_str(), writes ? H5F_ACC_RDWR : H5F_ACC_RDONLY, properties.id()),
                    writes ? ExitCode::system_error : ExitCode::data_error,
                    fmt::format("opening {}", path.string())));
  });
  return file;
}

std::vector<Piece> pieces_of(const StateTensor& t, ScalarType master, std::int64_t piece_bytes) {
  if (is_empty(t)) return {};
  const index_t rows = t.extent.size() == 3 ? t.extent[1] : 1;
  const auto row_elements = std::accumulate(t.extent.begin() + (t.extent.size() == 3 ? 2 : 1), t.extent.end(),
                                            index_t{1}, std::multiplies<>());
  const index_t fitting = std::max<index_t>(1, piece_bytes / (row_elements * static_cast<index_t>(size_of(master))));
  const index_t outer_step = std::max<index_t>(1, fitting / rows), inner_step = std::min(fitting, rows);
  std::vector<Piece> pieces;
  for (index_t i = 0; i < t.extent[0]; i += outer_step)
    for (index_t j = 0; j < rows; j += inner_step)
      pieces.push_back({{i, std::min(i + outer_step, t.extent[0])}, {j, std::min(j + inner_step, rows)}});
  return pieces;
}

hid_t native_type(ScalarType master) {
  NANOTRON_REQUIRE(master != ScalarType::bf16, "master weights are fp32 or fp64");
  return master == ScalarType::fp64 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_FLOAT;
}

void write_slabs(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
                 std::int64_t piece_bytes) {
  const hdf5::PropertyList transfer = transfer_mode(H5FD_MPIO_COLLECTIVE);
  in_pieces(world, slabs, master, piece_bytes,
            [&](const Slab& slab, const Selection& s, const char* data, const Piece&) {
              hdf5::check(H5Dwrite(slab.dataset.id(), native_type(master), s.memory.id(),
                                   s.file.id(), transfer.id(), data),
                          ExitCode::system_error, fmt::format("writing {}", slab.name));
            });
}

void read_slabs(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
                std::int64_t piece_bytes) {
  const hdf5::PropertyList together = transfer_mode(H5FD_MPIO_COLLECTIVE);
  const hdf5::PropertyList alone = transfer_mode(H5FD_MPIO_INDEPENDENT);
  in_pieces(world, slabs, master, piece_bytes,
            [&](const Slab& slab, const Selection& s, char* data, const Piece&) {
              const hdf5::PropertyList creation(H5Dget_create_plist(slab.dataset.id()));
              const bool contiguous = H5Pget_layout(creation.id()) == H5D_CONTIGUOUS;
              hdf5::check(H5Dread(slab.dataset.id(), native_type(master), s.memory.id(),
                                  s.file.id(), (contiguous ? together : alone).id(), data),
                          ExitCode::data_error, fmt::format("reading {}", slab.name));
            });
}

void compare_slabs(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
                   std::int64_t piece_bytes) {
  const hdf5::PropertyList alone = transfer_mode(H5FD_MPIO_INDEPENDENT);
  std::vector<char> buffer;
  in_pieces(world, slabs, master, piece_bytes,
            [&](const Slab& slab, const Selection& s, const char* data, const Piece& piece) {
              const auto count = static_cast<hsize_t>(H5Sget_select_npoints(s.file.id()));
              if (count == 0) return;
              buffer.resize(count * size_of(master));
              const hdf5::Dataspace packed(H5Screate_simple(1, &count, nullptr));
              hdf5::check(H5Dread(slab.dataset.id(), native_type(master), packed.id(), s.file.id(),
                                  alone.id(), buffer.data()),
                          ExitCode::system_error, fmt::format("reading back {}", slab.name));
              if (!equal_rows(*slab.tensor, piece, buffer.data(), data, size_of(master)))
                fail(ExitCode::system_error,
                     {"the file does not hold what was written", "", "other bytes", slab.name, ""});
            });
}

}  // namespace nanotron::io
