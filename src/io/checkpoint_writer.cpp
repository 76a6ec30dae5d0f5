#include "nanotron/io/checkpoint_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <future>
#include <utility>

#include "block_queue.hpp"
#include "checkpoint_image.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/comm/agreement.hpp"
#include "nanotron/io/manifest.hpp"
#include "nanotron/io/shared_file.hpp"
#include "step_folders.hpp"
#include "system_calls.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using comm::collectively;

[[noreturn]] void system_failure(const std::string& what) {
  fail(ExitCode::system_error, {.what = fmt::format("writing a checkpoint: {}: {}", what, std::strerror(errno))});
}

// fsync() of a file or a directory.
void sync_to_disk(const fs::path& path) {
  const NotedRegion region("fsync");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) system_failure(path.string());
  const int status = uninterrupted([&] { return ::fsync(descriptor); });
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  if (status != 0 && cause != EINVAL && cause != ENOTSUP) system_failure(path.string());
}

void write_text(const fs::path& path, const std::string& text) {
  const NotedRegion region("write and fsync");
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) system_failure(path.string());
  const char* from = text.data();
  std::size_t left = text.size();
  while (left > 0) {
    const ssize_t put = ::write(descriptor, from, left);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    from += put;
    left -= static_cast<std::size_t>(put);
  }
  const bool good = left == 0 && uninterrupted([&] { return ::fsync(descriptor); }) == 0;
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  if (!good) system_failure(path.string());
}

// The name may lead to another file than the one that was written.
void require_size(const fs::path& path, std::int64_t bytes) {
  std::error_code error;
  const std::uintmax_t found = fs::file_size(path, error);
  if (error) fail(ExitCode::system_error, {.what = fmt::format("{}: {}", path.string(), error.message())});
  if (found != static_cast<std::uintmax_t>(bytes))
    fail(ExitCode::system_error,
         {.what = fmt::format("{} has {} bytes, {} were written", path.string(), found, bytes)});
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    system_failure(fmt::format("renaming {} to {}", from.string(), to.string()));
}

// Replaces the folder `old` by `with`: in one atomic step if the file system can, so that `old` is a
// good checkpoint at any time.
void replace_folder(const fs::path& with, const fs::path& old) {
  if (::renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) != 0) {
    const fs::path aside = old.string() + replaced_suffix + partial_suffix;
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    rename_or_fail(old, aside);
    rename_or_fail(with, old);
    fs::remove_all(aside, ignored);
    return;
  }
  std::error_code ignored;
  fs::remove_all(with, ignored);
}

// The newest checkpoint with a manifest before `step`, in the parent of `folder`; empty if there is none.
fs::path whole_one_before(const fs::path& folder, std::int64_t step) {
  try {
    const fs::path directory = folder.has_parent_path() ? folder.parent_path() : ".";
    for (const auto& [older, candidate] : list_step_folders(directory).steps)
      if (older < step && !absence_of(candidate)) return candidate;
  } catch (const Error&) {  // ignored: the result is only a hint for users
  }
  return {};
}

}  // namespace

CheckpointWriter::CheckpointWriter(MPI_Comm world, fs::path directory, std::int64_t keep_last, Log& log)
    : world_(world),
      directory_(std::move(directory)),
      keep_last_(keep_last),
      log_(log),
      memory_(std::make_unique<PageBuffers>()) {
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank_));
}

// One checkpoint on its way to disk.
struct CheckpointWriter::Draft {
  fs::path folder;
  Manifest manifest;
  BlockQueue blocks;
  std::future<void> work{};  // this rank writes its blocks and reads them back

  Draft(const fs::path& partial, std::int64_t step, std::int64_t bytes, std::size_t room, PageBuffers& memory)
      : folder(partial),
        manifest{.step = step, .bytes = bytes, .blocks = {}},
        blocks(partial / checkpoint_file_name, manifest_block_bytes, room, memory) {}
};

CheckpointWriter::~CheckpointWriter() = default;

template <class F>
void CheckpointWriter::guarded(const fs::path& partial, const F& work) {
  try {
    work();
  } catch (const Error& error) {
    draft_.reset();
    std::error_code ignored;
    if (rank_ == 0) fs::remove_all(partial, ignored);
    fail(ExitCode::system_error,
         {.what = reason(error),
          .where = partial.string(),
          .change = "free disk space or set checkpoint%directory to a folder with free space and write "
                    "permission that all nodes share; earlier checkpoints are unchanged"});
  }
}

void CheckpointWriter::write(const CheckpointContents& contents) {
  begin(contents, static_cast<std::size_t>(blocks_in_memory * manifest_block_bytes));
  finish();
  memory_->release();
}

void CheckpointWriter::start(const CheckpointContents& contents) { begin(contents, SIZE_MAX); }

void CheckpointWriter::begin(const CheckpointContents& contents, std::size_t room) {
  finish();
  guarded(partial_folder(contents), [&] { assemble(contents, room); });
}

bool CheckpointWriter::advance() {
  if (!draft_) return false;
  const fs::path folder = draft_->folder;
  bool published = false;
  guarded(folder, [&] {
    int ready = draft_->work.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &ready, 1, MPI_INT, MPI_MIN, world_));
    if (ready == 0) return;
    collectively(world_, [&] { draft_->work.get(); });
    gather_hashes();
    publish_draft();
    published = true;
  });
  return published;
}

bool CheckpointWriter::finish() {
  bool published = false;
  if (draft_) {
    const NotedRegion region("write, fsync and read back");
    draft_->work.wait();
    published = advance();
  }
  return published;
}

fs::path CheckpointWriter::partial_folder(const CheckpointContents& contents) const {
  return step_folder(directory_, contents.state.step).string() + partial_suffix;
}

// Begins a draft. Nothing of HDF5 touches the disk.
void CheckpointWriter::assemble(const CheckpointContents& contents, std::size_t room) {
  const fs::path partial = partial_folder(contents), path = partial / checkpoint_file_name;
  FileImage image(path.string());
  const ImageLayout layout = lay_out(world_, image, contents);
  collectively(world_, [&] {
    if (rank_ != 0) return;
    fs::remove_all(partial);
    fs::create_directories(partial);
    reserve_space(path, 0, layout.bytes);
    fs::resize_file(path, static_cast<std::uintmax_t>(layout.bytes));
  });
  require_same_file(world_, path, ExitCode::system_error);
  collectively(world_,
               [&] { draft_ = std::make_unique<Draft>(partial, contents.state.step, layout.bytes, room, *memory_); });
  collectively(world_, [&] {
    assemble_blocks(world_, {layout.bytes, manifest_block_bytes}, image, layout.tensors, draft_->blocks);
  });
  draft_->work = draft_->blocks.close();
}

// All blocks are on disk and were read back.
void CheckpointWriter::gather_hashes() {
  Manifest& manifest = draft_->manifest;
  const BlockedFile file{manifest.bytes, manifest.block_bytes};
  manifest.blocks.assign(static_cast<std::size_t>(file.blocks()), 0);
  for (const auto& [block, hash] : draft_->blocks.file().hashes())
    manifest.blocks[static_cast<std::size_t>(block)] = hash;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, manifest.blocks.data(), static_cast<int>(manifest.blocks.size()),
                                   MPI_UINT64_T, MPI_BOR, world_));
}

void CheckpointWriter::publish_draft() {
  const std::int64_t step = draft_->manifest.step;
  collectively(world_, [&] {
    if (rank_ != 0) return;
    require_size(draft_->folder / checkpoint_file_name, draft_->manifest.bytes);
    const fs::path folder = draft_->folder, temporary = folder / (std::string(manifest_file_name) + ".tmp");
    write_text(temporary, to_json(draft_->manifest));
    rename_or_fail(temporary, folder / manifest_file_name);
    sync_to_disk(folder);
    publish(folder, step);
  });
  draft_.reset();
  newest_ = step_folder(directory_, step);
  std::erase(known_good_, step);
  std::erase(not_yet_good_, step);
  not_yet_good_.push_back(step);
  if (rank_ == 0) remove_partial();
}

void CheckpointWriter::publish(const fs::path& partial, std::int64_t step) {
  const fs::path final = step_folder(directory_, step);
  if (fs::exists(final))
    replace_folder(partial, final);
  else
    rename_or_fail(partial, final);
  sync_to_disk(directory_);
  // A link for users; the program does not read it.
  std::error_code ignored;
  const fs::path link = directory_ / "latest", temporary = directory_ / "latest.tmp";
  fs::remove(temporary, ignored);
  fs::create_directory_symlink(final.filename(), temporary, ignored);
  if (!ignored) fs::rename(temporary, link, ignored);
}

void CheckpointWriter::begin_anew() {
  collectively(world_, [&] {
    if (rank_ == 0) set_aside_newer(-1);
  });
}

void CheckpointWriter::continue_from(const fs::path& folder, std::int64_t step) {
  bool here = false;
  newest_ = folder;
  newest_known_good_ = comm::text_of_root(world_, [&] {
    std::error_code ignored;
    here = fs::equivalent(folder, step_folder(directory_, step), ignored);
    set_aside_newer(here ? step : -1);
    return whole_one_before(folder, step).string();
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(&here, sizeof here, MPI_BYTE, 0, world_));
  if (here) not_yet_good_.push_back(step);
}

void CheckpointWriter::continue_at(std::int64_t step) {
  newest_known_good_ = comm::text_of_root(world_, [&] {
    set_aside_newer(step);
    return whole_one_before(step_folder(directory_, step), step + 1).string();
  });
  newest_ = newest_known_good_;
}

void CheckpointWriter::set_aside_newer(std::int64_t step) {
  fs::path beside = fs::absolute(directory_).lexically_normal();
  if (!beside.has_filename()) beside = beside.parent_path();  // a trailing slash
  const fs::path aside = first_free(beside, ".superseded-");
  for (const auto& [newer, folder] : list_step_folders(directory_).steps) {
    if (newer <= step) continue;
    std::error_code error;
    fs::create_directories(aside, error);
    rename_or_fail(folder, aside / folder.filename());
    log_.warn("checkpoint {} is not part of the history of this run: moved to {}", folder.string(), aside.string());
  }
}

void CheckpointWriter::mark_known_good() {
  if (not_yet_good_.empty() && newest_ == newest_known_good_) return;
  newest_known_good_ = newest_;
  known_good_.insert(known_good_.end(), not_yet_good_.begin(), not_yet_good_.end());
  not_yet_good_.clear();
  if (rank_ == 0) remove_old();
}

void CheckpointWriter::remove_partial() {
  try {
    std::error_code ignored;
    for (const fs::path& leftover : list_step_folders(directory_).partial) fs::remove_all(leftover, ignored);
  } catch (const Error& error) {
    log_.warn("half-written checkpoints are left: {}", reason(error));
  }
}

void CheckpointWriter::remove_old() try {
  const auto keep = static_cast<std::size_t>(keep_last_);
  if (keep_last_ <= 0 || known_good_.size() < keep) return;
  const std::int64_t oldest_kept = known_good_[known_good_.size() - keep];
  for (const auto& [step, folder] : list_step_folders(directory_).steps) {
    if (step >= oldest_kept) continue;
    // The manifest first: a half-removed folder is then no checkpoint.
    std::error_code error;
    fs::remove(folder / manifest_file_name, error);
    if (!error) fs::remove_all(folder, error);
    if (error) log_.warn("{} could not be removed: {}", folder.string(), error.message());
  }
} catch (const Error& error) {
  log_.warn("old checkpoints are left: {}", reason(error));
}

}  // namespace nanotron::io
