#include "nanotron/data/loss_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

constexpr std::size_t piece = 16384;  // bytes read at a time

}  // namespace

LossMask::LossMask(hid_t file, const std::string& path, index_t tokens) : path_(path) {
  if (!hdf5::exists(file, "loss_mask")) return;
  set_ = hdf5::open_dataset(file, "loss_mask", path);
  const std::vector<index_t> shape = hdf5::checked_shape(set_, "/loss_mask", path);
  const hdf5::Datatype type(H5Dget_type(set_.id()));
  const bool is_bytes = H5Tget_class(type.id()) == H5T_INTEGER && H5Tget_size(type.id()) == 1;
  if (is_bytes && shape == std::vector{tokens}) return;
  fail(ExitCode::data_error,
       {"/loss_mask does not fit to /tokens", fmt::format("{} values of uint8, one for each token", tokens),
        fmt::format("{} dimension{}, {} values of {}", shape.size(), shape.size() == 1 ? "" : "s",
                    shape.empty() ? 0 : shape[0], is_bytes ? "uint8" : "another type"),
        path, "write it with the tokens, 1 where the loss counts"});
}

void LossMask::read(index_t first, std::span<std::uint8_t> out) const {
  const hsize_t start = static_cast<hsize_t>(first), extent = out.size();
  const hdf5::Dataspace file_space(H5Dget_space(set_.id()));
  const hdf5::Dataspace memory_space(H5Screate_simple(1, &extent, nullptr));
  H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &extent, nullptr);
  hdf5::check(H5Dread(set_.id(), H5T_NATIVE_UINT8, memory_space.id(), file_space.id(), H5P_DEFAULT, out.data()),
              ExitCode::data_error, fmt::format("{}: reading /loss_mask", path_));
}

void LossMask::apply(index_t first, std::span<std::int32_t> targets) const {
  if (!exists()) return;
  std::array<std::uint8_t, piece> counts;
  for (std::size_t begin = 0; begin < targets.size(); begin += piece) {
    const std::size_t size = std::min(piece, targets.size() - begin);
    read(first + static_cast<index_t>(begin), {counts.data(), size});
    for (std::size_t i = 0; i < size; ++i) {
      if (counts[i] > 1)
        fail(ExitCode::data_error,
             {"/loss_mask has another value than 0 and 1", "0 or 1",
              fmt::format("{} at position {}", counts[i], first + static_cast<index_t>(begin + i)), path_,
              "write 1 where the loss counts"});
      if (counts[i] == 0) targets[begin + i] = no_target;
    }
  }
}

}  // namespace nanotron::data
