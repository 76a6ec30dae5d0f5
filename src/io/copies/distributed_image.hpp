#pragma once

#include <mpi.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "io/copies/copy_folder.hpp"
#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/checkpoint/verified_file.hpp"

namespace nanotron::io {

/// A piece that this rank reads for the others.
struct StoredCopy {
  CopyTable table;
  std::filesystem::path blocks;
};

/// Most bytes that a rank fetches at a time, and that it sends before it waits.
inline constexpr std::int64_t fetched_bytes = std::int64_t{32} << 20;

/// The image of a checkpoint whose blocks several ranks can read, each once. Blocks are compared with their hashes as
/// they are read. All functions are collective over `world` (borrowed).
class DistributedImage : public TensorSource {
 public:
  /// held: the pieces of this rank; all ranks' together have each block of the file once, else Error(data_error).
  DistributedImage(MPI_Comm world, const BlockedFile& file, std::vector<StoredCopy> held);

  std::int64_t bytes() const override { return file_.bytes; }

  void read(std::span<const PlacedTensor> tensors) override;

 private:
  struct Wanted;
  void split_by_holder(std::int64_t position, std::byte* to, std::int64_t bytes,
                       std::vector<std::vector<Wanted>>& wanted) const;
  void fetch(const std::vector<std::vector<Wanted>>& wanted);
  void read_held(std::int64_t position, std::int64_t bytes, std::byte* to);

  MPI_Comm world_;
  BlockedFile file_;
  std::vector<int> holders_;            // by block
  std::vector<std::int32_t> piece_of_;  // by block, in files_; -1: another rank's
  std::vector<std::unique_ptr<VerifiedFile>> files_;
  std::exception_ptr failure_;
};

}  // namespace nanotron::io
