#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "copy_folder.hpp"
#include "io/blocks/block_queue.hpp"
#include "io/copies/copy_folder.hpp"

namespace nanotron::io {

/// Writes the blocks of a piece, at their positions in a file with holes, then its table. No communication. What is not
/// published is removed.
class CopyWriter {
 public:
  /// table: without blocks. `memory` is borrowed. Error(system_error).
  CopyWriter(const CopyFolder& folder, CopyTable table, PageBuffers& memory);
  ~CopyWriter();
  CopyWriter(const CopyWriter&) = delete;
  CopyWriter& operator=(const CopyWriter&) = delete;

  BlockSink& sink() { return *queue_; }
  /// Copies them.
  void put(std::int64_t position, std::span<const std::byte> blocks);
  /// Waits until all blocks are written. The table then has them.
  void finish();
  /// The piece is usable from now on.
  void publish();

  const CopyTable& table() const { return table_; }
  const std::filesystem::path& blocks() const { return blocks_; }

 private:
  CopyTable table_;
  std::filesystem::path blocks_, final_, partial_;
  std::optional<BlockQueue> queue_;
  bool is_published_ = false;
};

/// Each rank sends its piece to its partner, and receives the pieces of the ranks whose partner it is (comm::HostMap).
struct CopyExchange {
  using Blocks = decltype(CopyTable::blocks);

  MPI_Comm world;
  int partner;
  std::vector<int> sources;

  /// The blocks of each source. Collective.
  std::vector<Blocks> lists(const Blocks& mine) const;

  /// Reads this rank's piece back, which proves it, and sends it; what comes from source i is put into writer i.
  /// Writers are not finished. A rank that cannot read or write still sends and receives all messages; then all ranks
  /// throw its error. Collective.
  void pieces(const CopyTable& mine, const std::filesystem::path& own, std::span<const Blocks> lists,
              std::span<const std::unique_ptr<CopyWriter>> writers) const;
};

}  // namespace nanotron::io
