#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <span>

#include "copy_folder.hpp"
#include "io/blocks/block_queue.hpp"
#include "piece_table.hpp"

namespace nanotron::io {

/// Writes the blocks of a piece, at their positions in a file with holes, then its table. No communication. What is not
/// published is removed.
class PieceWriter {
 public:
  /// table: without blocks. `memory` is borrowed. Error(system_error).
  PieceWriter(const CopyFolder& folder, PieceTable table, PageBuffers& memory);
  ~PieceWriter();
  PieceWriter(const PieceWriter&) = delete;
  PieceWriter& operator=(const PieceWriter&) = delete;

  BlockSink& sink() { return *queue_; }
  /// Copies them.
  void put(std::int64_t position, std::span<const std::byte> blocks);
  /// Waits until all blocks are written. The table then has them.
  void finish();
  /// The piece is usable from now on.
  void publish();

  const PieceTable& table() const { return table_; }
  const std::filesystem::path& blocks() const { return blocks_; }

 private:
  PieceTable table_;
  std::filesystem::path blocks_, final_, partial_;
  std::optional<BlockQueue> queue_;
  bool is_published_ = false;
};

}  // namespace nanotron::io
