#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "nanotron/data/files/hdf5.hpp"

namespace nanotron::test {

/// A new HDF5 file for hand-made contents.
inline hdf5::File new_file(const std::filesystem::path& path) {
  return hdf5::File(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
}

/// Writes a dataset of file type `type` from values of memory type `memory`.
template <class T>
void put(hid_t parent, const char* name, hid_t type, hid_t memory, const std::vector<T>& values,
         const std::vector<hsize_t>& shape, hid_t creation = H5P_DEFAULT) {
  const hdf5::Dataspace space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
  const hdf5::Dataset dataset(H5Dcreate2(parent, name, type, space.id(), H5P_DEFAULT, creation, H5P_DEFAULT));
  if (!values.empty()) H5Dwrite(dataset.id(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

/// tokens[i] = (i*i + 7*i) mod vocab_size.
inline std::vector<std::uint32_t> sample_tokens(std::size_t count, std::uint32_t vocab_size) {
  std::vector<std::uint32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint32_t>((i * i + 7 * i) % vocab_size);
  return tokens;
}

/// A plain token file of sample_tokens.
inline void make_token_file(const std::filesystem::path& path, std::size_t count, std::uint32_t vocab_size,
                            hid_t type = H5T_STD_U16LE, hid_t creation = H5P_DEFAULT) {
  const hdf5::File file = new_file(path);
  put(file.id(), "tokens", type, H5T_NATIVE_UINT32, sample_tokens(count, vocab_size), {count}, creation);
  hdf5::write_integer(file.id(), "vocab_size", vocab_size);
}

}  // namespace nanotron::test
