// Which copies a restart finds, and whether they are whole.

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <map>

#include "copy_folder.hpp"
#include "distributed_image.hpp"
#include "io/copies/copy_folder.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"

namespace nanotron::io {

using comm::collectively;

// Copies that belong together, of which every piece is on a host.
struct NeighbourCopies::Candidate {
  CopyName name;                        // of any of them
  std::vector<std::vector<int>> hosts;  // by rank that wrote: that have its piece and are not known to be damaged

  bool is_complete() const {
    return std::ranges::none_of(hosts, [](const std::vector<int>& of_piece) { return of_piece.empty(); });
  }
};

namespace {

constexpr std::int64_t max_pieces = std::int64_t{1} << 24;

// The lists of all ranks, one after the other.
std::vector<CopyName> gather_names(MPI_Comm world, const std::vector<CopyName>& mine, std::vector<int>& counts) {
  int size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &size));
  counts.assign(static_cast<std::size_t>(size), 0);
  const int count = static_cast<int>(mine.size() * sizeof(CopyName));
  NANOTRON_CHECK_MPI(MPI_Allgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, world));
  std::vector<int> begins(counts.size(), 0);
  for (std::size_t i = 1; i < counts.size(); ++i) begins[i] = begins[i - 1] + counts[i - 1];
  std::vector<CopyName> all(static_cast<std::size_t>(begins.back() + counts.back()) / sizeof(CopyName));
  NANOTRON_CHECK_MPI(
      MPI_Allgatherv(mine.data(), count, MPI_BYTE, all.data(), counts.data(), begins.data(), MPI_BYTE, world));
  for (int& bytes : counts) bytes /= static_cast<int>(sizeof(CopyName));
  return all;
}

// The text of rank `root` on all ranks.
void broadcast(MPI_Comm world, std::string& text, int root) {
  std::int64_t bytes = std::ssize(text);
  NANOTRON_CHECK_MPI(MPI_Bcast(&bytes, 1, MPI_INT64_T, root, world));
  text.resize(static_cast<std::size_t>(bytes));
  NANOTRON_CHECK_MPI(MPI_Bcast(text.data(), static_cast<int>(bytes), MPI_BYTE, root, world));
}

}  // namespace

// Of the lowest rank that could not look. Collective.
void NeighbourCopies::note_unseen(bool here) {
  int lowest = here ? rank_ : INT_MAX;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, world_));
  if (lowest == INT_MAX) return;
  unseen_host_ = hosts_.name(hosts_.host_of(lowest));
  log_.warn("the copies on host {} cannot be read, using those on other hosts: {}", unseen_host_,
            folder_->path().string());
}

// The newest first.
std::vector<NeighbourCopies::Candidate> NeighbourCopies::candidates(std::int64_t from) {
  std::vector<CopyName> mine;
  bool is_unseen = false;
  try {
    if (hosts_.leads(rank_)) mine = folder_->list();
  } catch (const Error&) {
    is_unseen = true;
  }
  note_unseen(is_unseen);
  std::erase_if(mine, [&](const CopyName& name) { return name.step < from || name.ranks > max_pieces; });
  std::vector<int> counts;
  const std::vector<CopyName> all = gather_names(world_, mine, counts);
  std::map<std::pair<std::int64_t, std::uint64_t>, Candidate> found;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (int i = 0; i < counts[rank]; ++i, ++at) {
      const CopyName& name = all[at];
      Candidate& candidate = found[{-name.step, name.generation}];
      if (candidate.hosts.empty()) {
        candidate.name = name;
        candidate.hosts.resize(static_cast<std::size_t>(name.ranks));
      }
      if (candidate.name.ranks != name.ranks) continue;
      candidate.hosts[static_cast<std::size_t>(name.rank)].push_back(hosts_.host_of(static_cast<int>(rank)));
    }
  }
  std::vector<Candidate> list;
  for (auto& [key, candidate] : found) {
    if (candidate.is_complete())
      list.push_back(std::move(candidate));
    else
      log_.info("copies of step {} are incomplete: a rank's state and its partner's copy are lost",
                candidate.name.step);
  }
  return list;
}

// Lets a rank of a host read each piece and compare its hashes, and where they are wrong one of another host. False: a
// piece is good nowhere. mine: the tables of those that this rank reads.
bool NeighbourCopies::choose_whole(Candidate& candidate, std::vector<CopyTable>& mine) {
  const std::size_t pieces = candidate.hosts.size();
  std::vector<std::uint8_t> asked(pieces, 1);
  while (std::ranges::count(asked, 1) > 0) {
    std::vector<std::uint8_t> is_bad(pieces, 0);
    bool is_unseen = false;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::span<const int> readers = hosts_.ranks_of(candidate.hosts[piece].front());
      if (asked[piece] == 0 || readers[piece % readers.size()] != rank_) continue;
      CopyName name = candidate.name;
      name.rank = static_cast<std::int64_t>(piece);
      try {
        CopyTable table = read_copy_table(*folder_, name, location_.run);
        verify_copy(folder_->blocks_of(name), table);
        mine.push_back(std::move(table));
      } catch (const Error& error) {
        is_bad[piece] = 1;
        is_unseen = is_unseen || error.exit_code() == ExitCode::system_error;
      }
    }
    note_unseen(is_unseen);
    NANOTRON_CHECK_MPI(
        MPI_Allreduce(MPI_IN_PLACE, is_bad.data(), static_cast<int>(pieces), MPI_UINT8_T, MPI_MAX, world_));
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      if (is_bad[piece] == 0) continue;
      std::vector<int>& hosts = candidate.hosts[piece];
      const std::string damaged = hosts_.name(hosts.front());
      hosts.erase(hosts.begin());
      log_.warn("step {}: the copy of rank {}'s state on host {} is damaged: {}", candidate.name.step, piece, damaged,
                hosts.empty() ? "there is no second copy, so the copies of this step are not used"
                              : fmt::format("using the one on {}", hosts_.name(hosts.front())));
    }
    if (!candidate.is_complete()) return false;
    asked = is_bad;
  }
  return true;
}

std::optional<CheckpointReader> NeighbourCopies::open(Candidate& candidate) {
  std::vector<CopyTable> mine;
  if (!choose_whole(candidate, mine)) return std::nullopt;
  const std::span<const int> readers = hosts_.ranks_of(candidate.hosts.front().front());
  std::string metadata;
  BlockedFile file;
  for (const CopyTable& table : mine)
    if (table.name.rank == 0) metadata = table.metadata, file = table.file;
  broadcast(world_, metadata, readers.front());
  NANOTRON_CHECK_MPI(MPI_Bcast(&file, sizeof file, MPI_BYTE, readers.front(), world_));
  try {
    std::vector<StoredCopy> held;
    auto image = std::make_unique<FileImage>(folder_of(candidate.name.step).string());
    collectively(world_, [&] {
      for (CopyTable& table : mine) {
        const bool is_same = table.file.bytes == file.bytes && table.file.block_bytes == file.block_bytes;
        if (!is_same) fail(ExitCode::data_error, {.what = "copies of one step are of different files"});
        const std::filesystem::path blocks = folder_->blocks_of(table.name);
        held.push_back({std::move(table), blocks});
      }
      unpack_extents(metadata, *image);
      image->resize(file.bytes);
    });
    return CheckpointReader::over(world_, folder_of(candidate.name.step), std::move(image),
                                  std::make_unique<DistributedImage>(world_, file, std::move(held)));
  } catch (const Error& error) {
    log_.warn("the copies of step {} are not used: {}", candidate.name.step, reason(error));
    return std::nullopt;
  }
}

std::optional<CheckpointReader> NeighbourCopies::newest(std::int64_t from) {
  for (Candidate& candidate : candidates(from)) {
    auto reader = open(candidate);
    if (!reader) continue;
    found_ = candidate.name.generation;
    return reader;
  }
  return std::nullopt;
}

void NeighbourCopies::keep_only(const CheckpointReader* reader) {
  begins_branch_ = reader == nullptr || !reader->is_of_copies();
  if (begins_branch_) return remove_all();
  if (hosts_.leads(rank_)) folder_->remove_all_but(found_);
  generations_ = {found_};
}

}  // namespace nanotron::io
