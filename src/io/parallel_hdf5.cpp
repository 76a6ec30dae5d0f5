#include "nanotron/io/parallel_hdf5.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "nanotron/io/shared_file.hpp"
#include "pieces.hpp"

namespace nanotron::io {
namespace {

constexpr hsize_t alignment_threshold = hsize_t{64} << 10;
constexpr hsize_t alignment = hsize_t{1} << 20;  // the usual size of a Lustre stripe

/// The selections of one transfer.
struct Selection {
  hdf5::Dataspace file, memory;
};

// Whether the dimensions after the first are packed. The stride of a dimension of extent 1 is never used.
bool packed_below_first(const StatePart& t) {
  const std::size_t n = t.extent.size();
  if (t.stride[n - 1] != 1 && n > 1) return false;
  for (std::size_t i = 1; i + 1 < n; ++i)
    if (t.extent[i] > 1 && t.stride[i] != t.stride[i + 1] * t.extent[i + 1]) return false;
  return true;
}

index_t inner_elements(const StatePart& t) {
  return std::accumulate(t.extent.begin() + 1, t.extent.end(), index_t{1}, std::multiplies<>());
}

bool is_packed(const StatePart& t) {
  return packed_below_first(t) && (t.extent[0] == 1 || t.extent.size() == 1 || t.stride[0] == inner_elements(t));
}

hdf5::Dataspace rectangle(const std::vector<hsize_t>& dims, const std::vector<hsize_t>& count) {
  hdf5::Dataspace space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
  const std::vector<hsize_t> start(dims.size(), 0);
  hdf5::check(
      H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
      ExitCode::system_error, "selecting memory");
  return space;
}

/// The memory of `extent` elements as a rectangle of a larger array that has the part's strides.
hdf5::Dataspace memory_space(const StatePart& t, const std::vector<index_t>& extent) {
  const auto u = [](index_t value) { return static_cast<hsize_t>(value); };
  if (packed_below_first(t)) {
    index_t inner = 1;
    for (std::size_t i = 1; i < extent.size(); ++i) inner *= extent[i];
    return rectangle({u(extent[0]), u(std::max(t.stride[0], inner))}, {u(extent[0]), u(inner)});
  }
  NANOTRON_REQUIRE(extent.size() == 3 && t.stride[2] == 1 && t.stride[1] >= extent[2] &&
                       t.stride[0] % t.stride[1] == 0 && t.stride[0] >= t.stride[1] * extent[1],
                   "the strides of a part are no rectangle");
  return rectangle({u(extent[0]), u(t.stride[0] / t.stride[1]), u(t.stride[1])},
                   {u(extent[0]), u(extent[1]), u(extent[2])});
}

void add_to_file_selection(const hdf5::Dataspace& file, const Piece& piece, H5S_seloper_t how) {
  std::vector<hsize_t> start(piece.part->offset.begin(), piece.part->offset.end());
  start[0] += static_cast<hsize_t>(piece.outer.begin);
  if (start.size() == 3) start[1] += static_cast<hsize_t>(piece.inner.begin);
  const std::vector<index_t> extent = extent_of(piece);
  const std::vector<hsize_t> count(extent.begin(), extent.end());
  hdf5::check(H5Sselect_hyperslab(file.id(), how, start.data(), nullptr, count.data(), nullptr),
              ExitCode::system_error, "selecting a part");
}

/// Selects packed pieces as intervals of the memory from the first to the last.
hdf5::Dataspace intervals(const Transfer& transfer, ScalarType type) {
  const std::byte* const begin = memory_of(transfer.front(), type);
  const auto at = [&](const Piece& p) {
    return static_cast<hsize_t>((memory_of(p, type) - begin) / static_cast<std::ptrdiff_t>(size_of(type)));
  };
  const hsize_t size = at(transfer.back()) + static_cast<hsize_t>(elements_of(transfer.back()));
  hdf5::Dataspace memory(H5Screate_simple(1, &size, nullptr));
  H5Sselect_none(memory.id());
  for (const Piece& piece : transfer) {
    const hsize_t start = at(piece), count = static_cast<hsize_t>(elements_of(piece));
    hdf5::check(H5Sselect_hyperslab(memory.id(), H5S_SELECT_OR, &start, nullptr, &count, nullptr),
                ExitCode::system_error, "selecting memory");
  }
  return memory;
}

/// Selections of a transfer in the file and in this rank's memory; empty for an empty transfer.
Selection select(const hdf5::Dataset& dataset, const Transfer& transfer, ScalarType type) {
  Selection s;
  s.file = hdf5::Dataspace(H5Dget_space(dataset.id()));
  H5Sselect_none(s.file.id());
  if (transfer.empty()) {
    const hsize_t one = 1;
    s.memory = hdf5::Dataspace(H5Screate_simple(1, &one, nullptr));
    H5Sselect_none(s.memory.id());
    return s;
  }
  for (const Piece& piece : transfer) {
    add_to_file_selection(s.file, piece, transfer.size() == 1 ? H5S_SELECT_SET : H5S_SELECT_OR);
  }
  s.memory = transfer.size() == 1 ? memory_space(*transfer.front().part, extent_of(transfer.front()))
                                  : intervals(transfer, type);
  return s;
}

void require_parts(const StateTensor& t) {
  for (const StatePart& part : t.parts) {
    NANOTRON_REQUIRE(part.extent.size() == t.global_shape.size() && part.offset.size() == part.extent.size() &&
                         part.stride.size() == part.extent.size(),
                     "{}: shape, offset, extent and stride differ in length", t.name);
    if (is_empty(part)) continue;
    memory_space(part, part.extent);  // throws when the strides cannot be described
    NANOTRON_REQUIRE(t.parts.size() == 1 || is_packed(part), "{}: one of several parts is not packed", t.name);
  }
}

/// This rank's transfers of each slab, followed by empty ones up to the max number of any rank, at least 1.
std::vector<std::vector<Transfer>> agree_on_transfers(MPI_Comm world, std::span<const Slab> slabs,
                                                      std::int64_t piece_bytes) {
  std::vector<std::vector<Transfer>> transfers;
  std::vector<std::int64_t> counts;
  collectively(world, [&] {
    for (const Slab& slab : slabs) {
      require_parts(*slab.tensor);
      transfers.push_back(transfers_of(*slab.tensor, slab.type, piece_bytes));
      counts.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(transfers.back().size())));
    }
  });
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, counts.data(), static_cast<int>(counts.size()),
                                   MPI_INT64_T, MPI_MAX, world));
  for (std::size_t i = 0; i < transfers.size(); ++i) transfers[i].resize(static_cast<std::size_t>(counts[i]));
  return transfers;
}

/// Calls move(slab, selection, memory, transfer, staging) for all transfers of all slabs, the same number on
/// each rank. Selection, memory and transfer are those on the host, of undefined values.
template <class Move>
void in_transfers(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes, const Move& move) {
  const auto transfers = agree_on_transfers(world, slabs, Staging::transfer_bytes(piece_bytes));
  Staging staging;
  std::byte nothing[8] = {};
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    for (const Transfer& pieces : transfers[i]) {
      // Agree after each transfer: none may start after one that failed.
      collectively(world, [&] {
        const ScalarType type = slabs[i].type;
        const Transfer& transfer = staging.place(pieces, type);
        std::byte* const data = transfer.empty() ? nothing : memory_of(transfer.front(), type);
        move(slabs[i], select(slabs[i].dataset, transfer, type), data, transfer, staging);
      });
    }
  }
}

// Compares a piece in packed memory with the memory of its part, row by row.
bool equal_rows(const Piece& piece, const std::byte* packed, ScalarType type) {
  const StatePart& t = *piece.part;
  const std::size_t n = t.extent.size(), element = size_of(type);
  const std::byte* const data = memory_of(piece, type);
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

bool equal_pieces(const Transfer& transfer, const std::byte* packed, ScalarType type) {
  for (const Piece& piece : transfer) {
    if (!equal_rows(piece, packed, type)) return false;
    packed += static_cast<std::size_t>(elements_of(piece)) * size_of(type);
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

hdf5::File open_to_write(MPI_Comm world, const std::filesystem::path& path) {
  hdf5::File file;
  // If only one rank failed inside the collective H5Fopen, the others would wait in it forever.
  require_same_file(world, path, ExitCode::system_error);
  collectively(world, [&] {
    hdf5::silence();
    const hdf5::PropertyList properties(H5Pcreate(H5P_FILE_ACCESS));
    hdf5::check(H5Pset_fapl_mpio(properties.id(), world, MPI_INFO_NULL), ExitCode::system_error,
                "choosing MPI-IO");
    file = hdf5::File(hdf5::check(H5Fopen(path.c_str(), H5F_ACC_RDWR, properties.id()), ExitCode::system_error,
                                  fmt::format("opening {}", path.string())));
  });
  return file;
}

hid_t native_type(ScalarType type) {
  NANOTRON_REQUIRE(type != ScalarType::fp8, "no state is stored in fp8");
  if (type == ScalarType::fp64) return H5T_NATIVE_DOUBLE;
  if (type == ScalarType::fp32) return H5T_NATIVE_FLOAT;
  static const hid_t half = [] {                   // HDF5 closes it
    const hid_t made = H5Tcopy(H5T_NATIVE_FLOAT);  // the same exponent
    NANOTRON_REQUIRE(H5Tset_fields(made, 15, 7, 8, 0, 7) >= 0 && H5Tset_size(made, sizeof(bf16)) >= 0,
                     "HDF5 cannot describe bf16");
    return made;
  }();
  return half;
}

void write_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes) {
  const hdf5::PropertyList transfer = transfer_mode(H5FD_MPIO_COLLECTIVE);
  in_transfers(world, slabs, piece_bytes,
               [&](const Slab& slab, const Selection& s, const std::byte* data, const Transfer&, Staging& staging) {
                 staging.copy_to_host();
                 hdf5::check(H5Dwrite(slab.dataset.id(), native_type(slab.type), s.memory.id(), s.file.id(),
                                      transfer.id(), data),
                             ExitCode::system_error, fmt::format("writing {}", slab.name));
               });
}

void read_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes) {
  in_transfers(world, slabs, piece_bytes,
               [&](const Slab& slab, const Selection& s, std::byte* data, const Transfer&, Staging& staging) {
                 hdf5::check(
                     H5Dread(slab.dataset.id(), native_type(slab.type), s.memory.id(), s.file.id(), H5P_DEFAULT, data),
                     ExitCode::data_error, fmt::format("reading {}", slab.name));
                 staging.copy_to_device();
               });
}

void compare_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes) {
  const hdf5::PropertyList alone = transfer_mode(H5FD_MPIO_INDEPENDENT);
  std::vector<std::byte> buffer;
  in_transfers(
      world, slabs, piece_bytes,
      [&](const Slab& slab, const Selection& s, const std::byte*, const Transfer& pieces, Staging& staging) {
        const auto count = static_cast<hsize_t>(H5Sget_select_npoints(s.file.id()));
        if (count == 0) return;
        staging.copy_to_host();
        buffer.resize(count * size_of(slab.type));
        const hdf5::Dataspace packed(H5Screate_simple(1, &count, nullptr));
        hdf5::check(
            H5Dread(slab.dataset.id(), native_type(slab.type), packed.id(), s.file.id(), alone.id(), buffer.data()),
            ExitCode::system_error, fmt::format("reading back {}", slab.name));
        if (!equal_pieces(pieces, buffer.data(), slab.type))
          fail(ExitCode::system_error, {"the file does not hold what was written", "", "other bytes", slab.name, ""});
      });
}

}  // namespace nanotron::io
