#pragma once

#include <mpi.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/data/files/byte_store.hpp"
#include "nanotron/io/blocks/parallel_hdf5.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::io {

/// An open checkpoint whose every byte has been checked against its manifest, or the copies of one in the hosts' memory
/// (neighbour_copies.hpp). All functions are
/// collective over the communicator it was opened with (borrowed; it may have any number of ranks),
/// and all errors are the same on all its ranks: Error(data_error) naming file, tensor, expected
/// and found; Error(system_error) if a read failed; no checkpoint is skipped for that.
class CheckpointReader {
 public:
  /// The checkpoint to resume from, or nothing. resume 'none': nothing. 'auto': the newest good one in `directory`;
  /// damaged and half-written ones are logged by name and reason and skipped; when there are complete folders but not
  /// one is good, Error(data_error). A path: at().
  static std::optional<CheckpointReader> find(MPI_Comm world, const std::filesystem::path& directory,
                                              const std::string& resume, Log& log);

  /// The checkpoint at a path: that step folder (or its checkpoint.h5, or the newest good one of a folder of
  /// checkpoints); damage there is an Error(data_error) naming the bytes. key: what gives the path, for messages.
  static CheckpointReader at(MPI_Comm world, const std::filesystem::path& path, const std::string& key, Log& log);

  /// The step of the newest folder with a manifest, which is not opened; -1: none.
  static std::int64_t newest_listed(MPI_Comm world, const std::filesystem::path& directory);

  /// Verifies (each rank hashes a share of the file) and opens one step folder.
  static CheckpointReader open(MPI_Comm world, const std::filesystem::path& folder);

  /// Over copies that were verified. metadata: what HDF5 wrote into them; folder: for messages. Types are not
  /// converted: where they differ, read() gives Error(data_error) before it overwrites anything.
  static CheckpointReader over(MPI_Comm world, const std::filesystem::path& folder,
                               std::unique_ptr<hdf5::ByteStore> metadata, std::unique_ptr<TensorSource> image);

  const std::filesystem::path& folder() const { return folder_; }
  bool is_of_copies() const { return image_ != nullptr; }
  const CheckpointInfo& info() const { return info_; }
  /// Of the text of the manifest, which has a hash of each block of the file; of copies 0.
  std::uint64_t manifest_hash() const { return manifest_hash_; }
  /// Whether read() can fill these types: always, except from copies, which are not converted.
  bool has_types_of(std::span<const StateGroup> moments, ScalarType master) const;
  /// Error(deck_error) naming each size in which the checkpoint's model is not the deck's.
  void require_model(const deck::ModelConfig& wanted) const;

  /// Overwrites the parts that the tensors describe, whatever grid wrote them; ranks may read the same
  /// part. master: the parameters' type in memory; another type in the file is converted. Moments that the
  /// checkpoint lacks are an error if it has others (see info().optimizer), else left untouched.
  void read(std::span<const StateTensor> parameters, std::span<const StateGroup> moments, ScalarType master);

  /// Reads the state of compressed gradient reduction. info().compression_layout must be that of the tensors.
  void read_compression(std::span<const StateTensor> tensors, ScalarType master);

  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) = delete;

 private:
  CheckpointReader(MPI_Comm world, std::filesystem::path folder);
  void read_info();
  std::string path_of(const StateGroup& group) const;
  void open_group(const std::string& group, std::span<const StateTensor> tensors, ScalarType type,
                  std::vector<Slab>& slabs) const;
  std::shared_ptr<const hdf5::Dataset> open_tensor(const std::string& path, const std::vector<index_t>& expected) const;
  void read_tensors(std::span<const Slab> slabs);

  MPI_Comm world_;
  std::filesystem::path folder_;
  std::string file_name_, key_;  // key_: that names it
  std::unique_ptr<hdf5::ByteStore> store_;
  hdf5::File file_;                      // reads through store_
  std::unique_ptr<TensorSource> image_;  // null: a file, which the datasets are read from
  CheckpointInfo info_;
  std::uint64_t manifest_hash_ = 0;
};

}  // namespace nanotron::io
