#pragma once

// The folder of a host in which the copies of a run lie: <directory>/nanotron_hpc-<user id>/<run>/. One process.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nanotron::io {

/// One rank's blocks of the copies that belong together: of a step, written at the same time.
struct PieceName {
  std::int64_t step = 0;
  std::uint64_t generation = 0;  // drawn for each writing: a step may be written again after a restart
  std::int64_t rank = 0, ranks = 0;

  std::string text() const;  // "step_00000020.0123456789abcdef.rank_3_of_8"
  static std::optional<PieceName> parse(const std::string& text);
  friend bool operator==(const PieceName&, const PieceName&) = default;
};

class CopyFolder {
 public:
  /// `directory` may hold %h, which stands for `host`. Nothing is made yet.
  CopyFolder(const std::string& directory, const std::string& host, const std::string& run);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path blocks_of(const PieceName& name) const { return path_ / (name.text() + ".blocks"); }
  std::filesystem::path table_of(const PieceName& name) const { return path_ / (name.text() + ".table"); }

  /// Makes the folders, mode 0700. Error(system_error) where one is a link, another user's, or open to others.
  void create() const;
  /// The pieces that have a table; none where there is no such folder of this user's. Error(system_error)
  /// where the host does not say.
  std::vector<PieceName> list() const;
  /// Removes the files of this generation, or all but those, or all; then folders that are empty. Errors are ignored.
  void remove(std::uint64_t generation) const;
  void remove_all_but(std::uint64_t generation) const;
  void remove_all() const;

 private:
  bool is_ours() const;
  template <class F>
  void remove_where(const F& goes) const;

  std::filesystem::path user_, path_;
};

/// A new file of `bytes` zeros that take no space, mode 0600. Error(system_error), also where the name is taken.
void create_private_file(const std::filesystem::path& path, std::int64_t bytes);

}  // namespace nanotron::io
