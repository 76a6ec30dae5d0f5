#include "nanotron/io/blocks/parallel_hdf5.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "pieces.hpp"

namespace nanotron::io {
namespace {

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
  hdf5::check(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
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
                   "the strides of a part are not a rectangle");
  return rectangle({u(extent[0]), u(t.stride[0] / t.stride[1]), u(t.stride[1])},
                   {u(extent[0]), u(extent[1]), u(extent[2])});
}

void add_to_file_selection(const hdf5::Dataspace& file, const StateTensor& tensor, const Piece& piece,
                           H5S_seloper_t how) {
  std::vector<hsize_t> start(piece.part->offset.begin(), piece.part->offset.end());
  start[0] += static_cast<hsize_t>(piece.outer.begin);
  if (start.size() == 3) start[1] += static_cast<hsize_t>(piece.inner.begin);
  const std::vector<index_t> extent = extent_of(piece);
  std::vector<hsize_t> count(extent.begin(), extent.end());
  if (tensor.slice) {
    start.insert(start.begin(), static_cast<hsize_t>(tensor.slice->index));
    count.insert(count.begin(), 1);
  }
  hdf5::check(H5Sselect_hyperslab(file.id(), how, start.data(), nullptr, count.data(), nullptr), ExitCode::system_error,
              "selecting a part");
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
Selection select(const Slab& slab, const Transfer& transfer) {
  Selection s;
  s.file = hdf5::Dataspace(H5Dget_space(slab.dataset->id()));
  H5Sselect_none(s.file.id());
  if (transfer.empty()) {
    const hsize_t one = 1;
    s.memory = hdf5::Dataspace(H5Screate_simple(1, &one, nullptr));
    H5Sselect_none(s.memory.id());
    return s;
  }
  for (const Piece& piece : transfer) {
    add_to_file_selection(s.file, *slab.tensor, piece, transfer.size() == 1 ? H5S_SELECT_SET : H5S_SELECT_OR);
  }
  s.memory = transfer.size() == 1 ? memory_space(*transfer.front().part, extent_of(transfer.front()))
                                  : intervals(transfer, slab.type);
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
  NANOTRON_CHECK_MPI(
      MPI_Allreduce(MPI_IN_PLACE, counts.data(), static_cast<int>(counts.size()), MPI_INT64_T, MPI_MAX, world));
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
        move(slabs[i], select(slabs[i], transfer), data, transfer, staging);
      });
    }
  }
}

}  // namespace

hid_t native_type(ScalarType type) {
  if (type == ScalarType::fp64) return H5T_NATIVE_DOUBLE;
  if (type == ScalarType::fp32) return H5T_NATIVE_FLOAT;
  NANOTRON_REQUIRE(type == ScalarType::bf16, "no state is stored in {}", name_of(type));
  static const hid_t half = [] {                   // HDF5 closes it
    const hid_t made = H5Tcopy(H5T_NATIVE_FLOAT);  // the same exponent
    NANOTRON_REQUIRE(H5Tset_fields(made, 15, 7, 8, 0, 7) >= 0 && H5Tset_size(made, sizeof(bf16)) >= 0,
                     "HDF5 cannot describe bf16");
    return made;
  }();
  return half;
}

void read_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes) {
  in_transfers(world, slabs, piece_bytes,
               [&](const Slab& slab, const Selection& s, std::byte* data, const Transfer&, Staging& staging) {
                 hdf5::check(
                     H5Dread(slab.dataset->id(), native_type(slab.type), s.memory.id(), s.file.id(), H5P_DEFAULT, data),
                     ExitCode::data_error, fmt::format("reading {}", slab.name));
                 staging.copy_to_device();
               });
}

}  // namespace nanotron::io
