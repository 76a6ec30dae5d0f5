#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/blocks/file_image.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::io {

/// visitor(group, tensors, type) for the groups of datasets in a file, in their order.
template <class Visitor>
void for_each_group(const CheckpointContents& contents, const Visitor& visitor) {
  visitor("parameters/", contents.parameters, contents.master);
  for (const StateGroup& group : contents.moments) {
    visitor("optimizer/" + group.name + "/", std::span<const StateTensor>(group.tensors), group.type);
  }
  visitor("compression/", contents.compression, contents.master);
}

/// Where the tensors of a checkpoint lie in its file.
struct ImageLayout {
  std::int64_t bytes = 0;  // of the file
  std::vector<PlacedTensor> tensors;
};

/// Writes the metadata on rank 0 (write_metadata) and places the tensors, which `contents` owns. Collective.
/// Error(system_error).
ImageLayout lay_out(MPI_Comm world, FileImage& image, const CheckpointContents& contents);

/// Writes all of a checkpoint but the tensors, whose datasets are allocated, into `image`. Returns where their elements
/// begin, in the order of for_each_group. One process. Error(system_error).
std::vector<std::int64_t> write_metadata(FileImage& image, const CheckpointContents& contents);

}  // namespace nanotron::io
