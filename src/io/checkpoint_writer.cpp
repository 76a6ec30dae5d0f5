#include "nanotron/io/checkpoint_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/io/parallel_hdf5.hpp"
#include "nanotron/io/manifest.hpp"
#include "checkpoint_attributes.hpp"
#include "step_folders.hpp"
#include "system_calls.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t attribute_limit = 32 << 10;  // HDF5 keeps an attribute below 64 KiB

[[noreturn]] void system_failure(const std::string& what) {
  fail(ExitCode::system_error,
       {.what = fmt::format("writing a checkpoint: {}: {}", what, std::strerror(errno))});
}

// fsync() of a file or a directory.
void sync_to_disk(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) system_failure(path.string());
  const int status = uninterrupted([&] { return ::fsync(descriptor); });
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  if (status != 0 && cause != EINVAL && cause != ENOTSUP) system_failure(path.string());
}

void write_text(const fs::path& path, const std::string& text) {
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

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    system_failure(fmt::format("renaming {} to {}", from.string(), to.string()));
}

// Replaces the folder `old` by `with`: in one atomic step if the file system can, so that `old` is a
// good checkpoint at any time.
void replace_folder(const fs::path& with, const fs::path& old) {
  if (::renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) != 0) {
    const fs::path aside = old.string() + ".replaced.partial";
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

hdf5::Group create_group(hid_t file, const char* name) {
  return hdf5::Group(hdf5::check(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                 ExitCode::system_error,
                                 fmt::format("creating the group {}", name)));
}

void write_deck(hid_t file, const std::string& text) {
  const hdf5::Datatype type = hdf5::string_type(text.size());
  const hdf5::Dataspace scalar(H5Screate(H5S_SCALAR));
  const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_obj_track_times(creation.id(), false);
  hdf5::Dataset deck(hdf5::check(
      H5Dcreate2(file, "deck", type.id(), scalar.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT),
      ExitCode::system_error, "creating /deck"));
  if (!text.empty())
    hdf5::check(H5Dwrite(deck.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()),
                ExitCode::system_error, "writing /deck");
}

void write_provenance(hid_t file, const Provenance& provenance) {
  const hdf5::Group group = create_group(file, "provenance");
  for (const auto& [key, value] : provenance)
    if (!key.empty() && H5Aexists(group.id(), key.c_str()) == 0)
      hdf5::write_string(group.id(), key.c_str(),
                         std::string_view(value).substr(0, attribute_limit));
}

void write_tokenizer(hid_t file, const data::TokenizerId& tokenizer) {
  if (!tokenizer.known() && tokenizer.name.empty()) return;
  const hdf5::Group group = create_group(file, "tokenizer");
  const auto write = [&](const char* key, std::string_view value) {
    if (!value.empty()) hdf5::write_string(group.id(), key, value.substr(0, attribute_limit));
  };
  write("name", tokenizer.name);
  write("sha256", tokenizer.sha256);
  write("vocabulary_xxh3_128", tokenizer.vocabulary);
}

void create_dataset(hid_t file, const std::string& path, const StateTensor& tensor, ScalarType type) {
  const std::vector<hsize_t> shape(tensor.global_shape.begin(), tensor.global_shape.end());
  const hdf5::Dataspace space(
      H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
  const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE)),
      links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_layout(creation.id(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.id(), false);
  H5Pset_create_intermediate_group(links.id(), 1);
  hdf5::Dataset(
      hdf5::check(H5Dcreate2(file, path.c_str(), native_type(type), space.id(), links.id(), creation.id(), H5P_DEFAULT),
                  ExitCode::system_error, fmt::format("creating {}", path)));
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

template <class Visitor>
void for_each_group(const CheckpointContents& contents, const Visitor& visitor) {
  visitor("parameters/", contents.parameters, contents.master);
  for (const StateGroup& group : contents.moments) {
    visitor("optimizer/" + group.name + "/", std::span<const StateTensor>(group.tensors), group.type);
  }
  visitor("compression/", contents.compression, contents.master);
}

// An upper bound of the file size.
std::int64_t expected_bytes(const CheckpointContents& contents) {
  std::int64_t bytes = std::int64_t{1} << 20;
  for_each_group(contents, [&](const std::string&, std::span<const StateTensor> tensors, ScalarType type) {
    for (const StateTensor& tensor : tensors) {
      std::int64_t elements = 1;
      for (const index_t extent : tensor.global_shape) elements *= extent;
      const std::int64_t size = elements * static_cast<std::int64_t>(size_of(type));
      bytes += size + (size >= (64 << 10) ? std::int64_t{1} << 20 : 4096);
    }
  });
  return bytes;
}

// Writes all metadata and allocates all datasets. One process: nothing here depends on other ranks.
void create_checkpoint(const fs::path& path, const CheckpointContents& contents) {
  reserve_space(path, 0, expected_bytes(contents));
  hdf5::File file = create_file(path);
  hdf5::write_string(file.id(), "format", checkpoint_format);
  hdf5::write_integer(file.id(), "version", checkpoint_version);
  write_model(create_group(file.id(), "parameters").id(), contents.model);
  write_state(create_group(file.id(), "state").id(), contents.state);
  write_tokenizer(file.id(), contents.tokenizer);
  write_deck(file.id(), contents.deck);
  write_provenance(file.id(), contents.provenance);
  if (!contents.moments.empty())
    hdf5::write_string(create_group(file.id(), "optimizer").id(), "name", contents.optimizer);
  if (!contents.compression.empty()) {
    hdf5::write_string(create_group(file.id(), "compression").id(), "layout", contents.compression_layout);
  }
  for_each_group(contents, [&](const std::string& group, std::span<const StateTensor> tensors, ScalarType type) {
    for (const StateTensor& tensor : tensors) create_dataset(file.id(), group + tensor.name, tensor, type);
  });
  file.close(ExitCode::system_error, fmt::format("closing {}", path.string()));
  reserve_space(path, 0, static_cast<std::int64_t>(fs::file_size(path)));
}

}  // namespace

CheckpointWriter::CheckpointWriter(MPI_Comm world, fs::path directory, std::int64_t keep_last,
                                   Log& log)
    : world_(world), directory_(std::move(directory)), keep_last_(keep_last), log_(log) {
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world_, &rank_));
}

void CheckpointWriter::write(const CheckpointContents& contents) {
  const std::int64_t step = contents.state.step;
  const fs::path partial = step_folder(directory_, step).string() + partial_suffix;
  try {
    collectively(world_, [&] {
      if (rank_ != 0) return;
      fs::remove_all(partial);
      fs::create_directories(partial);
      create_checkpoint(partial / checkpoint_file_name, contents);
    });
    write_tensors(partial / checkpoint_file_name, contents);
    write_manifest(partial, step);
    collectively(world_, [&] {
      if (rank_ == 0) publish(partial, step);
    });
  } catch (const Error& error) {
    std::error_code ignored;
    if (rank_ == 0) fs::remove_all(partial, ignored);
    fail(ExitCode::system_error,
         {.what = reason(error),
          .where = partial.string(),
          .change = "free disk space or set checkpoint%directory to a folder with free space and write "
                    "permission that all nodes share; earlier checkpoints are unchanged"});
  }
  newest_ = step_folder(directory_, step);
  std::erase(known_good_, step);
  std::erase(not_yet_good_, step);
  not_yet_good_.push_back(step);
  if (rank_ == 0) remove_partial();
}

void CheckpointWriter::write_tensors(const fs::path& path, const CheckpointContents& contents) {
  hdf5::File file = open_to_write(world_, path);
  std::vector<Slab> slabs;
  collectively(world_, [&] {
    for_each_group(contents, [&](const std::string& group, std::span<const StateTensor> tensors, ScalarType type) {
      for (const StateTensor& tensor : tensors)
        slabs.push_back({hdf5::open_dataset(file.id(), group + tensor.name, path.string()), &tensor, type,
                         fmt::format("{}: {}{}", path.string(), group, tensor.name)});
    });
  });
  const std::string closing = fmt::format("closing {}", path.string());
  write_slabs(world_, slabs);
  collectively(world_, [&] {
    hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), ExitCode::system_error, closing);
  });
  compare_slabs(world_, slabs);
  slabs.clear();
  collectively(world_, [&] { file.close(ExitCode::system_error, closing); });
  collectively(world_, [&] { sync_to_disk(path); });
}

void CheckpointWriter::write_manifest(const fs::path& folder, std::int64_t step) {
  const fs::path file = folder / checkpoint_file_name;
  Manifest manifest;
  manifest.step = step;
  collectively(world_, [&] { manifest.bytes = static_cast<std::int64_t>(fs::file_size(file)); });
  manifest.blocks = hash_blocks(world_, file, manifest.bytes, manifest.block_bytes);
  collectively(world_, [&] {
    if (rank_ != 0) return;
    const fs::path temporary = folder / (std::string(manifest_file_name) + ".tmp");
    write_text(temporary, to_json(manifest));
    rename_or_fail(temporary, folder / manifest_file_name);
    sync_to_disk(folder);
  });
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
