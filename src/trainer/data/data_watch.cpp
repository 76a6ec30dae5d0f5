#include "nanotron/trainer/data/loaders.hpp"

#include <fmt/format.h>

#include <set>

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
    if (now.metadata_hash() != opened.metadata_hash()) return false;
    return by_hashes ? now.hashes().exist() && now.hashes().content == opened.hashes().content
                     : data::content_of(now) == content;
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::system_error) throw;
    return false;
  }
}

}  // namespace

DataWatch::DataWatch(std::span<const data::TokenFile> training, std::span<const data::TokenFile> validation,
                     std::span<const std::uint64_t> contents, const FileTurns& turns)
    : in_turn_(!training.empty() && !training.front().stays_open()) {
  std::size_t i = 0;
  for (const auto& files : {training, validation}) {
    for (const data::TokenFile& file : files) {
      if (!in_turn_ || static_cast<int>(i % static_cast<std::size_t>(turns.ranks)) == turns.rank)
        files_.push_back({&file, file.status(), i < contents.size() ? contents[i] : 0});
      ++i;
    }
  }
}

void DataWatch::check(Watched& watched, deck::OnChange on_change, std::vector<Note>& notes) {
  const data::TokenFile& file = *watched.file;
  const Change change = file.change_since(watched.before);
  if (change == Change::none) return;
  if (change == Change::replaced && !file.stays_open()) {
    fail(ExitCode::data_error,
         {.what = "token file changed during the run",
          .expected = "the files of a long list where they were: they are opened when they are read",
          .found = "another file under the path, or none",
          .where = file.path(),
          .change = "restore the file that the run started with, and resume from the last checkpoint"});
  }
  if (change == Change::replaced) {
    if (!watched.is_replaced) {
      notes.push_back(
          {true, fmt::format("the path {} now names another file, or none: this run continues with the one that it "
                             "opened",
                             file.path())});
    }
    watched.is_replaced = true;
    return;
  }
  watched.before = file.status_now();
  if (has_same_content(file, watched.content)) {
    notes.push_back({false, fmt::format("the token file {} was modified, but has the same content, {}", file.path(),
                                        file.hashes().exist() ? "according to its hashes" : "which was read again")});
    return;
  }
  const bool is_known = file.hashes().exist() || watched.content != 0;
  if (!is_known && on_change == deck::OnChange::warn) {
    notes.push_back(
        {true, fmt::format("token file changed during the run: {}; data read from now on may differ", file.path())});
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
  if (files_.empty() && !in_turn_) return;
  std::vector<Note> notes;
  comm::collectively(world, [&] {
    for (Watched& watched : files_) check(watched, on_change, notes);
  });
  if (in_turn_) notes = notes_of_ranks(world, notes);
  for (const Note& note : notes) {
    if (note.is_warning) {
      log.warn("{}", note.text);
    } else {
      log.info("{}", note.text);
    }
  }
}

// Each once: several hosts may have the same.
std::vector<DataWatch::Note> DataWatch::notes_of_ranks(MPI_Comm world, const std::vector<Note>& mine) {
  std::string lines;
  for (const Note& note : mine) lines += fmt::format("{}{}\n", note.is_warning ? 'w' : 'i', note.text);
  const auto lines_in = [](const std::string& text, std::set<std::string>& into) {
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      into.insert(text.substr(begin, end - begin));
    }
  };
  const std::vector<std::string> of_ranks = comm::texts_at_root(world, lines);
  std::set<std::string> all;
  lines_in(comm::text_of_root(world,
                              [&] {
                                std::set<std::string> different;
                                for (const std::string& text : of_ranks) lines_in(text, different);
                                std::string joined;
                                for (const std::string& line : different) joined += line + "\n";
                                return joined;
                              }),
           all);
  std::vector<Note> notes;
  for (const std::string& line : all) notes.push_back({line.front() == 'w', line.substr(1)});
  return notes;
}

}  // namespace nanotron::trainer
