#include "block_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "nanotron/base/error.hpp"

namespace nanotron::io {

void require_block(const data::BlockSource& source, const std::string& name, std::int64_t number, std::int64_t begin,
                   std::span<char> block, std::uint64_t expected) {
  const std::uint64_t found = data::read_block(source, begin, block, expected);
  if (found == expected) return;
  fail(ExitCode::data_error,
       {.what = fmt::format("{} is damaged in block {} (bytes {} to {}): hash {:016x}, the manifest says {:016x}", name,
                            number, begin, begin + std::ssize(block) - 1, found, expected)});
}

BlockChecker::BlockChecker(const std::filesystem::path& path, std::int64_t block_bytes)
    : file_(path), name_(path.filename().string()), block_bytes_(block_bytes), thread_([this] { check_all(); }) {}

BlockChecker::~BlockChecker() {
  {
    const std::scoped_lock lock(mutex_);
    is_dropped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BlockChecker::add(HashedBlocks blocks) {
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(std::move(blocks));
  }
  changed_.notify_all();
}

void BlockChecker::finish() {
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
}

void BlockChecker::check_all() try {
  std::vector<char> block;
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_dropped_ || is_closed_ || !waiting_.empty(); });
    if (is_dropped_ || waiting_.empty()) return;
    const HashedBlocks next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    check(next, block);
  }
} catch (...) {
  failure_ = std::current_exception();
}

void BlockChecker::check(const HashedBlocks& blocks, std::vector<char>& block) {
  file_.drop_from_cache(blocks.bytes, blocks.position);
  std::int64_t at = blocks.position;
  for (const std::uint64_t hash : blocks.hashes) {
    block.resize(static_cast<std::size_t>(std::min(block_bytes_, blocks.position + blocks.bytes - at)));
    require_block(file_, name_, at / block_bytes_, at, block, hash);
    at += block_bytes_;
  }
  file_.drop_from_cache(blocks.bytes, blocks.position);  // nobody reads it soon
}

}  // namespace nanotron::io
