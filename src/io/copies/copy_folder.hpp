#pragma once

// The folder of a host in which the copies of a run lie: <directory>/nanotron_hpc-<user id>/<run>/. One process.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/blocks/file_image.hpp"

namespace nanotron::io {

/// One rank's blocks of the copies that belong together: of a step, written at the same time.
struct CopyName {
  std::int64_t step = 0;
  std::uint64_t generation = 0;  // drawn for each writing: a step may be written again after a restart
  std::int64_t rank = 0, ranks = 0;

  std::string text() const;  // "step_00000020.0123456789abcdef.rank_3_of_8"
  static std::optional<CopyName> parse(const std::string& text);
  friend bool operator==(const CopyName&, const CopyName&) = default;
};

class CopyFolder {
 public:
  /// `directory` may hold %h, which stands for `host`. Nothing is made yet.
  CopyFolder(const std::string& directory, const std::string& host, const std::string& run);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path blocks_of(const CopyName& name) const { return path_ / (name.text() + ".blocks"); }
  std::filesystem::path table_of(const CopyName& name) const { return path_ / (name.text() + ".table"); }

  /// Makes the folders, mode 0700. Error(system_error) where one is a link, another user's, or open to others.
  void create() const;
  /// The copies that have a table; none where there is no such folder of this user's. Error(system_error)
  /// where the host does not say.
  std::vector<CopyName> list() const;
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

// What makes the blocks of a copy usable: whose they are, their hashes, and the metadata of the image. Written last.

struct CopyTable {
  CopyName name;
  std::string run;
  BlockedFile file;                                              // the whole image
  std::vector<std::pair<std::int64_t, std::uint64_t>> blocks{};  // number and XXH3-64 of those of this copy
  std::string metadata{};                                        // packed_extents of the image
};

/// What HDF5 wrote into an image. unpack adds it to an empty one.
std::string packed_extents(const FileImage& image);
void unpack_extents(const std::string& packed, FileImage& image);

/// Ends with the hash of what is before. Error(data_error) for any other bytes.
std::string to_bytes(const CopyTable& table);
CopyTable parse_copy_table(const std::string& bytes);

/// Of a file in the folder; it must be that of `name` and `run`. Error(data_error).
CopyTable read_copy_table(const CopyFolder& folder, const CopyName& name, const std::string& run);

/// Reads all blocks. Error(data_error) that names the first that is missing or has another hash; Error(system_error)
/// where a read fails.
void verify_copy(const std::filesystem::path& blocks, const CopyTable& table);

}  // namespace nanotron::io
