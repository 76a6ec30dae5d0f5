#include "copy_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::io {
namespace {

std::filesystem::path with_suffix(std::filesystem::path path, const char* suffix) { return path += suffix; }

}  // namespace

CopyWriter::CopyWriter(const CopyFolder& folder, CopyTable table, PageBuffers& memory)
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

CopyWriter::~CopyWriter() {
  queue_.reset();
  if (is_published_) return;
  std::error_code ignored;
  for (const auto& file : {partial_, final_, blocks_}) std::filesystem::remove(file, ignored);
}

void CopyWriter::put(std::int64_t position, std::span<const std::byte> blocks) {
  const std::span<std::byte> copy = queue_->memory(blocks.size());
  std::ranges::copy(blocks, copy.begin());
  queue_->put(position, copy);
}

void CopyWriter::finish() {
  queue_->close().get();
  table_.blocks = queue_->file().hashes();
  std::ranges::sort(table_.blocks);
}

void CopyWriter::publish() {
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

namespace {

using Blocks = CopyExchange::Blocks;

enum Tag { tag_count, tag_list, tag_blocks };

void wait(std::vector<MPI_Request>& requests) {
  NANOTRON_CHECK_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
  requests.clear();
}

// held_blocks blocks of a list from number `first` on.
class Chunk {
 public:
  Chunk(const Blocks& list, const BlockedFile& file, std::int64_t first) : file_(file) {
    const auto last = std::min<std::int64_t>(std::ssize(list), first + held_blocks);
    for (std::int64_t i = first; i < last; ++i) blocks_.push_back(list[static_cast<std::size_t>(i)]);
    bytes_.resize(static_cast<std::size_t>(std::ssize(blocks_) * file.block_bytes));
  }

  /// f(position, hash, bytes) for each block.
  template <class F>
  void for_each(const F& f) {
    auto* at = bytes_.data();
    for (const auto& [block, hash] : blocks_) {
      const std::int64_t position = block * file_.block_bytes;
      const auto count = static_cast<std::size_t>(std::min(file_.block_bytes, file_.bytes - position));
      f(position, hash, std::span(at, count));
      at += file_.block_bytes;
    }
  }
  /// Posts a send or a receive, if there is a block.
  template <class Call>
  void post(const Call& call, int rank, MPI_Comm world, std::vector<MPI_Request>& requests) {
    if (bytes_.empty()) return;
    NANOTRON_CHECK_MPI(call(bytes_.data(), static_cast<int>(bytes_.size()), MPI_BYTE, rank, tag_blocks, world,
                            &requests.emplace_back()));
  }

 private:
  BlockedFile file_;
  Blocks blocks_;
  std::vector<char> bytes_;
};

void read_chunk(const data::ReadOnlyFile& file, Chunk& chunk) {
  chunk.for_each([&](std::int64_t position, std::uint64_t hash, std::span<char> block) {
    if (data::read_block(file, position, block, hash) == hash) return;
    fail(ExitCode::system_error, {.what = fmt::format("{} is not what was written", file.name())});
  });
}

}  // namespace

std::vector<Blocks> CopyExchange::lists(const Blocks& mine) const {
  std::vector<MPI_Request> requests;
  std::vector<std::int64_t> counts(sources.size());
  const std::int64_t count = std::ssize(mine);
  for (std::size_t i = 0; i < sources.size(); ++i)
    NANOTRON_CHECK_MPI(MPI_Irecv(&counts[i], 1, MPI_INT64_T, sources[i], tag_count, world, &requests.emplace_back()));
  NANOTRON_CHECK_MPI(MPI_Isend(&count, 1, MPI_INT64_T, partner, tag_count, world, &requests.emplace_back()));
  wait(requests);
  std::vector<Blocks> lists(sources.size());
  const auto bytes_of = [](const Blocks& list) { return static_cast<int>(list.size() * sizeof(Blocks::value_type)); };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    lists[i].resize(static_cast<std::size_t>(counts[i]));
    NANOTRON_CHECK_MPI(MPI_Irecv(lists[i].data(), bytes_of(lists[i]), MPI_BYTE, sources[i], tag_list, world,
                                 &requests.emplace_back()));
  }
  NANOTRON_CHECK_MPI(
      MPI_Isend(mine.data(), bytes_of(mine), MPI_BYTE, partner, tag_list, world, &requests.emplace_back()));
  wait(requests);
  return lists;
}

void CopyExchange::pieces(const CopyTable& mine, const std::filesystem::path& own, std::span<const Blocks> lists,
                          std::span<const std::unique_ptr<CopyWriter>> writers) const {
  std::optional<data::ReadOnlyFile> file;
  std::exception_ptr failure;
  const auto noting = [&](const auto& work) {
    try {
      if (!failure) work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  noting([&] { file.emplace(own); });
  std::int64_t most = std::ssize(mine.blocks);
  for (const Blocks& list : lists) most = std::max(most, std::ssize(list));
  for (std::int64_t first = 0; first < most; first += held_blocks) {
    std::vector<MPI_Request> requests;
    std::vector<Chunk> incoming;
    for (const Blocks& list : lists) incoming.emplace_back(list, mine.file, first);
    for (std::size_t i = 0; i < lists.size(); ++i) incoming[i].post(MPI_Irecv, sources[i], world, requests);
    Chunk outgoing(mine.blocks, mine.file, first);
    noting([&] { read_chunk(*file, outgoing); });
    outgoing.post(MPI_Isend, partner, world, requests);
    wait(requests);
    for (std::size_t i = 0; i < lists.size(); ++i) {
      noting([&] {
        incoming[i].for_each([&](std::int64_t position, std::uint64_t, std::span<char> block) {
          writers[i]->put(position, std::as_bytes(block));
        });
      });
    }
  }
  comm::collectively(world, [&] {
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace nanotron::io
