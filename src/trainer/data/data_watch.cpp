#include "nanotron/trainer/data/loaders.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::trainer {
namespace {

using Change = data::TokenFile::Change;

// Of the file as it is now; a file that is being written may be no token file.
bool has_same_content(const data::TokenFile& opened, std::uint64_t content) {
  const bool by_hashes = opened.hashes().exist();
  if (!by_hashes && content == 0) return false;
  try {
    const data::TokenFile now(opened.path(),
                              by_hashes ? data::TokenFile::Hashes::compared : data::TokenFile::Hashes::ignored);
    if (now.metadata() != opened.metadata()) return false;
    return by_hashes ? now.hashes().exist() && now.hashes().content == opened.hashes().content
                     : data::content_of(now) == content;
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::system_error) throw;
    return false;
  }
}

}  // namespace

DataWatch::DataWatch(std::span<const data::TokenFile> training, std::span<const data::TokenFile> validation,
                     std::span<const std::uint64_t> contents) {
  for (const auto& files : {training, validation}) {
    for (const data::TokenFile& file : files) {
      const std::size_t i = files_.size();
      files_.push_back({&file, file.status(), i < contents.size() ? contents[i] : 0});
    }
  }
}

void DataWatch::check(Watched& watched, deck::OnChange on_change, Log& log) {
  const data::TokenFile& file = *watched.file;
  const Change change = file.change_since(watched.before);
  if (change == Change::none) return;
  if (change == Change::replaced) {
    if (!watched.is_replaced) {
      log.warn("the path {} now names another file, or none: this run continues with the one that it opened",
               file.path());
    }
    watched.is_replaced = true;
    return;
  }
  watched.before = file.status_now();
  if (has_same_content(file, watched.content)) {
    log.info("the token file {} was modified, but has the same content, {}", file.path(),
             file.hashes().exist() ? "according to its hashes" : "which was read again");
    return;
  }
  const bool is_known = file.hashes().exist() || watched.content != 0;
  if (!is_known && on_change == deck::OnChange::warn) {
    log.warn("token file changed during the run: {}; data read from now on may differ", file.path());
    return;
  }
  fail(ExitCode::data_error,
       {.what = "token file changed during the run",
        .expected = "the size, modification time and content of the file when it was opened",
        .found = is_known ? "different ones" : "another size or modification time, and no hashes of its content",
        .where = file.path(),
        .change = fmt::format(
            "{}restore the file that the run started with, and resume from the last checkpoint; write new data under "
            "another name. No checkpoint was written after the change",
            is_known
                ? ""
                : fmt::format("if only its times changed, as by touch, run nanotron-verify --add {} and start again: "
                              "with hashes only the content is compared; otherwise ",
                              file.path()))});
}

void DataWatch::check(MPI_Comm world, deck::OnChange on_change, Log& log) {
  if (files_.empty()) return;
  comm::collectively(world, [&] {
    for (Watched& watched : files_) check(watched, on_change, log);
  });
}

}  // namespace nanotron::trainer
