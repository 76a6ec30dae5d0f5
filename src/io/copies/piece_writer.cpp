#include "piece_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"

namespace nanotron::io {
namespace {

std::filesystem::path with_suffix(std::filesystem::path path, const char* suffix) { return path += suffix; }

}  // namespace

PieceWriter::PieceWriter(const CopyFolder& folder, PieceTable table, PageBuffers& memory)
    : table_(std::move(table)),
      blocks_(folder.blocks_of(table_.name)),
      final_(folder.table_of(table_.name)),
      partial_(with_suffix(final_, ".partial")) {
  create_private_file(blocks_, table_.file.bytes);
  try {
    queue_.emplace(blocks_, table_.file.block_bytes,
                   static_cast<std::size_t>(2 * held_blocks * table_.file.block_bytes), memory);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(blocks_, ignored);
    throw;
  }
}

PieceWriter::~PieceWriter() {
  queue_.reset();
  if (is_published_) return;
  std::error_code ignored;
  for (const auto& file : {partial_, final_, blocks_}) std::filesystem::remove(file, ignored);
}

void PieceWriter::put(std::int64_t position, std::span<const std::byte> blocks) {
  const std::span<std::byte> copy = queue_->memory(blocks.size());
  std::ranges::copy(blocks, copy.begin());
  queue_->put(position, copy);
}

void PieceWriter::finish() {
  queue_->close().get();
  table_.blocks = queue_->file().hashes();
  std::ranges::sort(table_.blocks);
}

void PieceWriter::publish() {
  const std::string bytes = to_bytes(table_);
  create_private_file(partial_, 0);
  BlockFile file(partial_, std::ssize(bytes));
  file.write(0, std::as_bytes(std::span(bytes)));
  file.sync();
  if (std::rename(partial_.c_str(), final_.c_str()) != 0)
    fail(ExitCode::system_error, {.what = fmt::format("{} cannot be renamed on host {}: {}", partial_.string(),
                                                      host_name(), std::strerror(errno))});
  is_published_ = true;
}

}  // namespace nanotron::io
