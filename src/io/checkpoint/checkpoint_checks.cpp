#include "nanotron/io/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <climits>
#include <filesystem>

#include "nanotron/deck/config.hpp"

namespace nanotron::io {
namespace {

// Whether `path` is `folder` or in it, by their names.
bool is_within(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto plain = [](const std::filesystem::path& given) {
    std::filesystem::path absolute = std::filesystem::absolute(given).lexically_normal();
    return absolute.has_filename() ? absolute : absolute.parent_path();  // a trailing slash
  };
  const std::filesystem::path relative = plain(path).lexically_relative(plain(folder));
  return !relative.empty() && *relative.begin() != "..";
}

// Longer names fail when the first file is made, hours after the job was submitted.
void check_length(const std::string& key, const std::string& folder, deck::Findings& f) {
  constexpr std::size_t longest_name = NAME_MAX, room = 128;  // of names below the folder
  if (!f.is_valid({key})) return;
  if (folder.size() + room > PATH_MAX)
    f.error({key}, fmt::format("a path of {} characters", folder.size()),
            fmt::format("at most {}, with room for the names of the files in it", PATH_MAX - room));
  for (const std::filesystem::path& part : std::filesystem::path(folder)) {
    const std::size_t size = part.native().size();
    if (size <= longest_name) continue;
    f.error({key}, fmt::format("a folder's name of {} characters", size), fmt::format("at most {}", longest_name));
    return;
  }
}

void check_neighbours(const deck::Config& c, deck::Findings& f) {
  const std::string& folder = c.checkpoint.neighbour_directory;
  if (!f.is_valid({"checkpoint.neighbour_every_steps", "checkpoint.neighbour_directory"}) ||
      c.checkpoint.neighbour_every_steps == 0)
    return;
  const char* expected = "a folder in memory or on a local disk of each host: '/dev/shm'";
  if (folder.empty())
    return f.error({"checkpoint.neighbour_every_steps", "checkpoint.neighbour_directory"},
                   "neighbour_every_steps > 0 needs a neighbour_directory", expected);
  if (!std::filesystem::path(folder).is_absolute())
    return f.error({"checkpoint.neighbour_directory"}, "neighbour_directory is not an absolute path", expected);
  for (const std::string& shared : {c.run.output_dir, deck::checkpoint_directory(c)}) {
    if (shared.empty() || !is_within(folder, shared)) continue;
    return f.error({"checkpoint.neighbour_directory"},
                   "neighbour_directory lies in '" + shared + "', which all hosts share", expected);
  }
}

}  // namespace

void check_checkpoint(const deck::Config& c, deck::Findings& f) {
  if (c.checkpoint.resume.empty()) {
    f.error({"checkpoint.resume"}, "resume is empty", "'auto', 'none' or the path of a checkpoint");
  }
  if (c.checkpoint.every_minutes > 0.0 && c.checkpoint.node_mtbf > 0.0) {
    f.error({"checkpoint.node_mtbf", "checkpoint.every_minutes"},
            "node_mtbf and every_minutes both set the time between checkpoints", "one of the two");
  }
  check_length("run.output_dir", c.run.output_dir, f);
  check_length("checkpoint.directory", c.checkpoint.directory, f);
  check_neighbours(c, f);
}

}  // namespace nanotron::io
