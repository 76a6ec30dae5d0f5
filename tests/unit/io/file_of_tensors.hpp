#pragma once

// A file with datasets, written by all ranks.

#include <fstream>

#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/blocks/parallel_hdf5.hpp"
#include "support/world.hpp"

namespace nanotron::test {

/// Where an HDF5 file with a dataset for each tensor has their elements, and its size. The metadata go into `image`.
inline std::vector<std::int64_t> lay_out(io::FileImage& image, const std::vector<io::StateTensor>& tensors,
                                         ScalarType type) {
  std::vector<std::int64_t> begins;
  hdf5::File file = hdf5::create_through(image);
  for (const io::StateTensor& t : tensors) {
    const std::vector<hsize_t> shape(t.global_shape.begin(), t.global_shape.end());
    const hdf5::Dataspace space(H5Screate_simple(int(shape.size()), shape.data(), nullptr));
    const hdf5::PropertyList links(H5Pcreate(H5P_LINK_CREATE)), own(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_create_intermediate_group(links.id(), 1);
    H5Pset_alloc_time(own.id(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(own.id(), H5D_FILL_TIME_NEVER);
    const hdf5::Dataset made(
        H5Dcreate2(file.id(), t.name.c_str(), io::native_type(type), space.id(), links.id(), own.id(), H5P_DEFAULT));
    begins.push_back(static_cast<std::int64_t>(H5Dget_offset(made.id())));
  }
  file.close(ExitCode::system_error, "closing");
  begins.push_back(image.bytes());
  return begins;
}

class FileSink final : public io::BlockSink {
 public:
  explicit FileSink(const std::filesystem::path& path) : file_(path, std::ios::in | std::ios::out | std::ios::binary) {}
  std::span<std::byte> memory(std::size_t bytes) override {
    memory_.resize(bytes);
    return memory_;
  }
  void put(std::int64_t position, std::span<const std::byte> blocks) override {
    file_.seekp(position).write(reinterpret_cast<const char*>(blocks.data()), std::ssize(blocks));
  }
  void close() { file_.close(); }

 private:
  std::fstream file_;
  std::vector<std::byte> memory_;
};

/// Writes it in blocks of `block_bytes`. Collective.
inline void write_file(MPI_Comm world, const std::filesystem::path& path, const std::vector<io::StateTensor>& tensors,
                       ScalarType type, std::int64_t block_bytes) {
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  io::FileImage image(path.string());
  std::vector<std::int64_t> layout(tensors.size() + 1);
  if (rank == 0) {
    layout = lay_out(image, tensors, type);
    std::ofstream(path, std::ios::binary | std::ios::trunc);
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(layout.back()));
  }
  MPI_Bcast(layout.data(), static_cast<int>(layout.size()), MPI_INT64_T, 0, world);
  std::vector<io::PlacedTensor> placed;
  for (std::size_t i = 0; i < tensors.size(); ++i) placed.push_back({&tensors[i], type, layout[i]});
  FileSink file(path);
  io::assemble_blocks(world, {layout.back(), block_bytes}, image, placed, file);
  file.close();
  MPI_Barrier(world);
}

}  // namespace nanotron::test
