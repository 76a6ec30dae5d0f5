#include "checkpoint_draft.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <utility>

#include "io/files/durable_files.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "step_folders.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using comm::collectively;

// The name may lead to another file than the one that was written.
void require_size(const fs::path& path, std::int64_t bytes) {
  const std::optional<std::int64_t> found = files::bytes_of(path);
  if (found != bytes)
    fail(ExitCode::system_error,
         {.what = fmt::format("{} has {} bytes, {} were written", path.string(), found.value_or(0), bytes)});
}

// Writes the manifest and gives the folder its name; a link for users, which the program does not read, follows.
void give_name(const fs::path& directory, const fs::path& folder, const Manifest& manifest) {
  const fs::path final = step_folder(directory, manifest.step);
  require_size(folder / checkpoint_file_name, manifest.bytes);
  const fs::path temporary = folder / (std::string(manifest_file_name) + ".tmp");
  write_durably(temporary, to_json(manifest));
  rename_or_fail(temporary, folder / manifest_file_name);
  sync_to_disk(folder);
  if (files::kind_of_name(final) != files::Kind::nothing)
    replace_folder(folder, final);
  else
    rename_or_fail(folder, final);
  sync_to_disk(directory);
  std::error_code ignored;
  const fs::path link = directory / latest_name, beside = link.string() + ".tmp";
  fs::remove(beside, ignored);
  fs::create_directory_symlink(final.filename(), beside, ignored);
  if (!ignored) fs::rename(beside, link, ignored);
}

std::future<void> nothing_to_do() {
  std::promise<void> done;
  done.set_value();
  return done.get_future();
}

}  // namespace

fs::path partial_folder(const fs::path& directory, std::int64_t step) {
  return step_folder(directory, step).string() + partial_suffix;
}

CheckpointDraft::CheckpointDraft(MPI_Comm world, const fs::path& directory, const CheckpointContents& contents,
                                 std::size_t max_buffered_bytes, PageBuffers& memory)
    : world_(world),
      directory_(directory),
      folder_(partial_folder(directory, contents.state.step)),
      image_((folder_ / checkpoint_file_name).string()),
      layout_(lay_out(world, image_, contents)),
      manifest_{.step = contents.state.step, .bytes = layout_.bytes, .blocks = {}} {
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank_));
  make_file();
  collectively(world_, [&] {
    blocks_.emplace(folder_ / checkpoint_file_name, manifest_block_bytes, max_buffered_bytes, memory);
  });
  assembly_.emplace(world_, BlockedFile{layout_.bytes, manifest_block_bytes}, image_, layout_.tensors);
}

CheckpointDraft::~CheckpointDraft() {
  values_.reset();
  if (thread_.joinable()) thread_.join();
}

void CheckpointDraft::make_file() {
  const fs::path path = folder_ / checkpoint_file_name;
  collectively(world_, [&] {
    if (rank_ != 0) return;
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    reserve_space(path, 0, layout_.bytes);
    fs::resize_file(path, static_cast<std::uintmax_t>(layout_.bytes));
  });
  require_same_file(world_, path, ExitCode::system_error);
}

void CheckpointDraft::assemble() {
  const NotedRegion region("assemble and write");
  collectively(world_, [&] { assembly_->into(*blocks_); });
  work_ = blocks_->close();
}

void CheckpointDraft::assemble_beside() {
  std::packaged_task<void()> task([this, values = values_->get_future()]() mutable {
    values.get();
    assembly_->into_beside(*blocks_);
    blocks_->close().get();
  });
  work_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

void CheckpointDraft::values_are_there() {
  if (!values_ || !thread_.joinable()) return;
  values_->set_value();
  values_.reset();
}

void CheckpointDraft::wait() {
  const NotedRegion region("write, fsync and read back");
  if (work_.valid()) work_.wait();
}

bool CheckpointDraft::is_ready() {
  if (!work_.valid()) return true;
  if (work_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) return false;
  try {
    work_.get();
  } catch (...) {
    failure_ = std::current_exception();
  }
  return true;
}

// A failure is not waited for: the others may wait for this rank's bytes.
bool CheckpointDraft::advance() {
  std::array<int, 2> all{is_ready() ? 1 : 0, failure_ ? 0 : 1};  // ready, well
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, all.data(), 2, MPI_INT, MPI_MIN, world_));
  if (all[1] == 0) {
    collectively(world_, [&] {
      if (failure_) std::rethrow_exception(failure_);
    });
  }
  if (all[0] == 0) return false;
  if (std::exchange(is_written_, true)) return true;
  gather_hashes();
  work_ = rank_ != 0 ? nothing_to_do()
                     : std::async(std::launch::async, [this] { give_name(directory_, folder_, manifest_); });
  return false;
}

void CheckpointDraft::gather_hashes() {
  const BlockedFile file{manifest_.bytes, manifest_.block_bytes};
  manifest_.blocks.assign(static_cast<std::size_t>(file.blocks()), 0);
  for (const auto& [block, hash] : blocks_->file().hashes()) manifest_.blocks[static_cast<std::size_t>(block)] = hash;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, manifest_.blocks.data(), static_cast<int>(manifest_.blocks.size()),
                                   MPI_UINT64_T, MPI_BOR, world_));
}

bool CheckpointDraft::drop(std::unique_ptr<CheckpointDraft> draft) {
  constexpr auto patience = std::chrono::seconds(1);  // for the other ranks, which may drop it too
  if (!draft || !draft->thread_.joinable()) return true;
  draft->values_.reset();
  draft->blocks_->abandon();
  if (draft->work_.valid() && draft->work_.wait_for(patience) == std::future_status::timeout) {
    draft.release();
    return false;
  }
  return true;
}

}  // namespace nanotron::io
