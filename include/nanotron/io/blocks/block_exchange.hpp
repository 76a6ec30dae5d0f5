#pragma once

// Redistributes the parts of tensors that ranks store into the blocks of a file that they write, without MPI-IO, in two
// phases like its collective buffering (Thakur, Gropp and Lusk 1999, "Data sieving and collective I/O in ROMIO"). A
// block belongs to the rank that stores most of its bytes; the other ranks send it theirs. So a block is hashed in
// memory, before it reaches any disk, and written by one call.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanotron/io/blocks/file_image.hpp"
#include "nanotron/io/blocks/state_tensor.hpp"

namespace nanotron::io {

/// The size of a file and of its blocks; the last block may be shorter.
struct BlockedFile {
  std::int64_t bytes = 0, block_bytes = 0;

  std::int64_t blocks() const { return (bytes + block_bytes - 1) / block_bytes; }
};

/// Where the blocks of this rank go. It lends the memory in which they are assembled, so that they need not be copied.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  /// Memory for the next blocks; the caller writes to it until it requests more.
  virtual std::span<std::byte> memory(std::size_t bytes) = 0;
  /// Complete, consecutive blocks in the last memory(), with their position in the file.
  virtual void put(std::int64_t position, std::span<const std::byte> blocks) = 0;
};

/// Most blocks that a rank holds at a time.
inline constexpr std::int64_t held_blocks = 8;

/// Assembles a file from rank 0's `image` and the ranks' parts of the tensors, no byte twice; the rest is zeros. Every
/// block is put into the sink of one rank, in the order of the file, at most held_blocks at once. Collective; the sink
/// must not communicate, and its exceptions are thrown after the last block.
class BlockAssembly {
 public:
  /// Decides which rank writes which block. image and tensors are borrowed. Constructor and destructor are collective,
  /// in the thread of the run.
  BlockAssembly(MPI_Comm world, const BlockedFile& file, const FileImage& image, std::span<const PlacedTensor> tensors);
  ~BlockAssembly();
  BlockAssembly(const BlockAssembly&) = delete;
  BlockAssembly& operator=(const BlockAssembly&) = delete;

  /// Call one of the two, once: into() in the thread of the run, or into_beside() in a concurrent thread
  /// (MPI_THREAD_MULTIPLE), for tensors in host memory.
  void into(BlockSink& sink);
  void into_beside(BlockSink& sink);

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

/// Both steps.
void assemble_blocks(MPI_Comm world, const BlockedFile& file, const FileImage& image,
                     std::span<const PlacedTensor> tensors, BlockSink& sink);

}  // namespace nanotron::io
