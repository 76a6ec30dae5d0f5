#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/io/files/shared_file.hpp"

namespace nanotron::io {
namespace {

constexpr index_t max_sampled = 1024;  // blocks of the list, at least one for each file

// For each value whether all ranks have the same.
template <class T>
std::vector<char> are_same(MPI_Comm world, const std::vector<T>& values, MPI_Datatype type) {
  std::vector<T> largest = values, smallest = values;
  const int count = static_cast<int>(values.size());
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, largest.data(), count, type, MPI_MAX, world));
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, smallest.data(), count, type, MPI_MIN, world));
  std::vector<char> same;
  for (std::size_t i = 0; i < values.size(); ++i) same.push_back(largest[i] == smallest[i] ? 1 : 0);
  return same;
}

// Whether all hosts say that each file is one file: inode, size and times.
bool is_one_list(MPI_Comm world, const std::vector<ListedTokens>& files) {
  std::vector<std::int64_t> values;
  for (const ListedTokens& listed : files) {
    const data::FileStatus& status = listed.file->status();
    values.insert(values.end(), {status.inode, status.bytes, status.modified, status.changed});
  }
  return std::ranges::all_of(are_same(world, values, MPI_INT64_T), [](char same) { return same != 0; });
}

}  // namespace

void require_same_tokens(MPI_Comm world, MPI_Comm host, const std::vector<ListedTokens>& files, deck::Verify verify,
                         bool documents, Log& log) {
  const double begin = wall_seconds();
  int ranks = 1, rank = 0, of_host = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &ranks));
  NANOTRON_CHECK_MPI(MPI_Comm_rank(host, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(host, &of_host));
  if (ranks == 1 || files.empty() || verify == deck::Verify::none) return;
  int is_only_host = of_host == ranks ? 1 : 0;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &is_only_host, 1, MPI_INT, MPI_MIN, world));
  if (is_only_host != 0) return log.info("{} token files: seen by all ranks of one host", files.size());

  std::int64_t bytes = 0;
  for (const ListedTokens& listed : files) bytes += listed.file->status().bytes;
  const bool one_list = is_one_list(world, files);
  const bool sample =
      verify == deck::Verify::sample || (verify == deck::Verify::automatic && one_list && bytes > max_bytes_read_fully);
  const index_t blocks = std::clamp<index_t>(max_sampled / static_cast<index_t>(files.size()), 1, sampled_blocks);
  if (!sample && bytes > max_bytes_read_fully) {
    log.info("{} token files: every host reads {:.1f} GB to compare; data%verify = 'sample' reads {} blocks of each",
             files.size(), static_cast<double>(bytes) / 1e9, blocks);
  }
  std::vector<std::uint64_t> hashes(files.size());
  comm::collectively(world, [&] {
    for (std::size_t i = static_cast<std::size_t>(rank); i < files.size(); i += static_cast<std::size_t>(of_host))
      hashes[i] = hash_part(*files[i].file, sample, documents, 0, 1, blocks);
  });
  NANOTRON_CHECK_MPI(
      MPI_Allreduce(MPI_IN_PLACE, hashes.data(), static_cast<int>(hashes.size()), MPI_UINT64_T, MPI_SUM, host));
  const std::vector<char> same = are_same(world, hashes, MPI_UINT64_T);
  const auto other = std::ranges::find(same, 0);
  if (other != same.end()) {
    const ListedTokens& listed = files[static_cast<std::size_t>(other - same.begin())];
    require_same_tokens(world, *listed.file, listed.key, deck::Verify::full, documents, log);
    fail(ExitCode::data_error, {.what = "the hosts of this run see different token files under the same path",
                                .expected = "the same tokens on every host",
                                .found = "other hashes",
                                .where = fmt::format("{} = '{}'", listed.key, listed.file->path()),
                                .change = "name a file on a file system that all hosts share"});
  }
  log.info("{} token files: the same on all hosts, compared by {} ({:.2f} s)", files.size(),
           sample ? fmt::format("{} blocks of each", blocks) : "all tokens", wall_seconds() - begin);
}

}  // namespace nanotron::io
