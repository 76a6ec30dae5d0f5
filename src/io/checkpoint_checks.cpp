#include "nanotron/io/checkpoint_checks.hpp"

#include <filesystem>

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

void check_neighbours(const deck::Config& c, deck::Findings& f) {
  const std::string& folder = c.checkpoint.neighbour_directory;
  if (!f.trusted({"checkpoint.neighbour_every_steps", "checkpoint.neighbour_directory"}) ||
      c.checkpoint.neighbour_every_steps == 0)
    return;
  const char* expected = "a folder in the memory or on a disk of each host: '/dev/shm'";
  if (folder.empty())
    return f.error({"checkpoint.neighbour_every_steps", "checkpoint.neighbour_directory"},
                   "neighbour_every_steps asks for copies and there is no neighbour_directory", expected);
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
            "node_mtbf chooses the minutes between checkpoints, which every_minutes gives", "one of the two");
  }
  check_neighbours(c, f);
}

}  // namespace nanotron::io
