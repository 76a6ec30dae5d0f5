#pragma once

#include <hdf5.h>
#include <mpi.h>

#include <cstdint>
#include <string>
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

// Private to io: the attributes of a checkpoint. deck::Parameter::part_of says which parameters of the model are
// attributes.

/// Error(data_error) about a file that is not a checkpoint.
[[noreturn]] void damaged(const std::string& what, const std::string& expected, const std::string& found,
                          const std::string& where, const std::string& change = "");

/// Throws Error(data_error) when the attribute is missing or empty.
std::string required_string(hid_t object, const char* name, const std::string& file);

/// The model as attributes of /parameters. Reading leaves keys that are part of no model at their defaults and throws
/// Error(data_error) when an attribute is missing or out of range.
void write_model(hid_t parameters, const deck::ModelConfig& model);
deck::ModelConfig read_model(hid_t parameters, const std::string& file);

/// "model%hidden_size: the deck says 9, the checkpoint 8": a line for each key that is part of both models and
/// differs; empty when a run with `wanted` may resume from `found`.
std::string model_differences(const deck::ModelConfig& wanted, const deck::ModelConfig& found);

void write_state(hid_t state, const CheckpointState& counters);
CheckpointState read_state(hid_t state, const std::string& file);

}  // namespace nanotron::io
