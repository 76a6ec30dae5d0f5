#include "nanotron/io/checkpoint/checkpoint_writer.hpp"

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>

#include "checkpoint_draft.hpp"
#include "io/blocks/block_queue.hpp"
#include "io/checkpoint/step_folders.hpp"
#include "io/files/durable_files.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "state_snapshot.hpp"
#include "step_folders.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using comm::collectively;

constexpr auto max_buffered_bytes = static_cast<std::size_t>(blocks_in_memory * manifest_block_bytes);

// The newest checkpoint with a manifest before `step`, in the parent of `folder`; empty if there is none.
fs::path newest_complete_before(const fs::path& folder, std::int64_t step) {
  const fs::path directory = folder.has_parent_path() ? folder.parent_path() : ".";
  for (const auto& [older, candidate] : list_step_folders(directory).steps)
    if (older < step && !absence_of(candidate)) return candidate;
  return {};
}

}  // namespace

CheckpointWriter::CheckpointWriter(MPI_Comm world, fs::path directory, std::int64_t keep_last, Log& log)
    : world_(world),
      directory_(std::move(directory)),
      keep_last_(keep_last),
      log_(log),
      memory_(std::make_unique<PageBuffers>()),
      snapshot_(std::make_unique<StateSnapshot>()) {
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank_));
  int level = 0;
  NANOTRON_CHECK_MPI(MPI_Query_thread(&level));
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &level, 1, MPI_INT, MPI_MIN, world_));
  has_threads_ = level >= MPI_THREAD_MULTIPLE;
}

CheckpointWriter::~CheckpointWriter() { drop(); }

void CheckpointWriter::drop() {
  draft_is_good_ = false;
  if (draft_ && !CheckpointDraft::drop(std::move(draft_))) {
    comm::leave_thread_behind();
    snapshot_.release();
    memory_.release();
  }
}

template <class F>
void CheckpointWriter::guarded(const fs::path& partial, const F& work) {
  try {
    work();
  } catch (const Error& error) {
    drop();
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
  finish();
  guarded(partial_folder(directory_, contents.state.step), [&] {
    draft_ = std::make_unique<CheckpointDraft>(world_, directory_, contents, max_buffered_bytes, *memory_);
    draft_->assemble();
  });
  finish();
  memory_->release();
}

void CheckpointWriter::reserve(const CheckpointContents& contents) {
  if (has_threads_) snapshot_->reserve(contents);
}

void CheckpointWriter::start(const CheckpointContents& contents) {
  finish();
  guarded(partial_folder(directory_, contents.state.step), [&] {
    if (!has_threads_) {
      draft_ = std::make_unique<CheckpointDraft>(world_, directory_, contents, SIZE_MAX, *memory_);
      return draft_->assemble();
    }
    comm::collectively(world_, [&] { snapshot_->begin(contents); });
    draft_ = std::make_unique<CheckpointDraft>(world_, directory_, snapshot_->contents(), max_buffered_bytes, *memory_);
    draft_->assemble_beside();
  });
}

void CheckpointWriter::finish_copy() {
  if (!draft_) return;
  snapshot_->wait();
  draft_->values_are_there();
}

bool CheckpointWriter::advance() {
  if (!draft_) return false;
  finish_copy();
  bool is_published = false;
  const fs::path folder = draft_->folder();
  guarded(folder, [&] { is_published = draft_->advance(); });
  if (is_published) {
    const std::int64_t step = draft_->step();
    draft_.reset();
    record(step);
  }
  return is_published;
}

bool CheckpointWriter::finish() {
  if (!draft_) return false;
  while (!advance()) draft_->wait();
  return true;
}

void CheckpointWriter::record(std::int64_t step) {
  newest_ = step_folder(directory_, step);
  std::erase(known_good_, step);
  std::erase(not_yet_good_, step);
  not_yet_good_.push_back(step);
  if (rank_ == 0) remove_partial();
  if (std::exchange(draft_is_good_, false)) mark_known_good();
}

void CheckpointWriter::start_fresh() {
  collectively(world_, [&] {
    if (rank_ != 0) return;
    set_aside_newer(-1);
    forget_published();
  });
}

// Else the next 'auto' misses what was moved aside on purpose.
void CheckpointWriter::forget_published() {
  for (const char* name : {latest_name, known_good_name}) {
    std::error_code error;
    fs::remove(directory_ / name, error);
    if (error) log_.warn("{} cannot be removed: {}", (directory_ / name).string(), error.message());
  }
}

void CheckpointWriter::continue_from(const fs::path& folder, std::int64_t step) {
  bool here = false;
  newest_ = folder;
  newest_known_good_ = comm::text_of_root(world_, [&] {
    here = files::is_same(folder, step_folder(directory_, step));
    set_aside_newer(here ? step : -1);
    const auto is_listed = [&] { return here && std::ranges::find(known_good_, step) != known_good_.end(); };
    bool is_known = folder == newest_known_good_ || is_listed();
    if (here) known_good_ = read_known_good(directory_);
    is_known = is_known || is_listed();
    return (is_known ? folder : newest_complete_before(folder, step)).string();
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(&here, sizeof here, MPI_BYTE, 0, world_));
  forget_from(here ? step : 0);
  if (here) not_yet_good_.push_back(step);
}

fs::path CheckpointWriter::older_than(const fs::path& folder) const {
  return comm::text_of_root(world_, [&] {
    for (const auto& [step, listed] : list_step_folders(folder.parent_path()).steps)
      if (listed.filename() == folder.filename()) return newest_complete_before(folder, step).string();
    return std::string();
  });
}

void CheckpointWriter::continue_at(std::int64_t step) {
  newest_ = comm::text_of_root(world_, [&] {
    set_aside_newer(step);
    known_good_ = read_known_good(directory_);
    return newest_complete_before(step_folder(directory_, step), step + 1).string();
  });
  const std::int64_t newest = step_of(newest_.filename().string());
  newest_known_good_ = comm::text_of_root(world_, [&] {
    const bool is_known = std::ranges::find(known_good_, newest) != known_good_.end();
    return (is_known || newest_.empty() ? newest_ : newest_complete_before(newest_, newest)).string();
  });
  forget_from(step + 1);
  if (newest_ != newest_known_good_) not_yet_good_.push_back(newest);
}

// What is no longer part of the history of this run.
void CheckpointWriter::forget_from(std::int64_t step) {
  std::erase_if(known_good_, [step](std::int64_t known) { return known >= step; });
  not_yet_good_.clear();
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
  draft_is_good_ = is_writing();
  if (not_yet_good_.empty() && newest_ == newest_known_good_) return;
  newest_known_good_ = newest_;
  known_good_.insert(known_good_.end(), not_yet_good_.begin(), not_yet_good_.end());
  not_yet_good_.clear();
  if (rank_ != 0) return;
  keep_known_good();
  remove_old();
}

// They come back in the next start.
void CheckpointWriter::keep_known_good() {
  const std::size_t most = std::max<std::size_t>(static_cast<std::size_t>(keep_last_), 1);
  if (known_good_.size() > most)
    known_good_.erase(known_good_.begin(), known_good_.end() - static_cast<std::ptrdiff_t>(most));
  if (const int cause = write_known_good(directory_, known_good_); cause != 0)
    log_.warn("{}: {}: the next start counts known good checkpoints from zero", (directory_ / known_good_name).string(),
              std::generic_category().message(cause));
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
    if (step >= oldest_kept || files::kind_of_name(folder) != files::Kind::folder) continue;  // a link is the user's
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
