#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "checkpoint_image.hpp"
#include "io/blocks/block_queue.hpp"
#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"

namespace nanotron::io {

/// One checkpoint on its way to disk, in the folder step_XXXXXXXX.partial of `directory`. Collective where not said
/// otherwise; errors are Error(system_error), the same on all ranks.
class CheckpointDraft {
 public:
  /// Chooses the place of every byte and makes the file. contents and its tensors are borrowed until the blocks are
  /// assembled; `memory` longer. max_buffered_bytes: bytes of blocks that a rank has in memory.
  CheckpointDraft(MPI_Comm world, const std::filesystem::path& directory, const CheckpointContents& contents,
                  std::size_t max_buffered_bytes, PageBuffers& memory);
  ~CheckpointDraft();
  CheckpointDraft(const CheckpointDraft&) = delete;
  CheckpointDraft& operator=(const CheckpointDraft&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.step; }

  /// Once, one of the two. Assembles the blocks, which other threads write and read back.
  void assemble();
  /// Or a thread does so, beside training, once values_are_there(): the tensors lie in memory of the host.
  void assemble_beside();
  void values_are_there();  // no communication

  /// Continues when all ranks are ready: the blocks are on disk and were read back; then rank 0 has given the manifest,
  /// and the folder its name. True then, once.
  bool advance();
  void wait();  // until this rank is ready; no communication

  /// Destroys it. A thread that waits for a rank that has failed is abandoned, with what it uses: false, and the
  /// memory above stays in use. No communication.
  static bool drop(std::unique_ptr<CheckpointDraft> draft);

 private:
  void make_file();
  bool is_ready();
  void gather_hashes();
  void publish();

  MPI_Comm world_;
  int rank_ = 0;
  std::filesystem::path directory_, folder_;
  FileImage image_;
  ImageLayout layout_;
  Manifest manifest_;
  std::optional<BlockQueue> blocks_;
  std::optional<BlockAssembly> assembly_;
  std::optional<std::promise<void>> values_{std::in_place};
  std::future<void> work_;      // of the present phase; not valid: done
  std::exception_ptr failure_;  // of this rank
  bool is_written_ = false;
  std::thread thread_;  // that assembles
};

/// step_XXXXXXXX.partial
std::filesystem::path partial_folder(const std::filesystem::path& directory, std::int64_t step);

}  // namespace nanotron::io
