// Which copies a restart finds, and whether they are whole.

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <map>
#include <numeric>
#include <span>

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
  CopyName name;                          // of any of them
  std::vector<std::vector<int>> hosts{};  // rank 0: by rank that wrote, that have its piece and are not known damaged

  bool is_complete() const {
    return std::ranges::none_of(hosts, [](const std::vector<int>& of_piece) { return of_piece.empty(); });
  }
};

namespace {

constexpr std::int64_t max_pieces = std::int64_t{1} << 24;

// Lists of all ranks, one after the other; empty on all but rank 0.
template <class V>
struct Gathered {
  std::vector<V> all;
  std::vector<int> counts;  // by rank
};

std::vector<int> begins_of(const std::vector<int>& counts) {
  std::vector<int> begins(counts.size(), 0);
  for (std::size_t i = 1; i < counts.size(); ++i) begins[i] = begins[i - 1] + counts[i - 1];
  return begins;
}

template <class V>
Gathered<V> gather(MPI_Comm world, int rank, const std::vector<V>& mine) {
  int size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &size));
  Gathered<V> gathered;
  if (rank == 0) gathered.counts.resize(static_cast<std::size_t>(size));
  const int bytes = static_cast<int>(mine.size() * sizeof(V));
  NANOTRON_CHECK_MPI(MPI_Gather(&bytes, 1, MPI_INT, gathered.counts.data(), 1, MPI_INT, 0, world));
  const std::vector<int> begins = begins_of(gathered.counts);
  if (rank == 0) gathered.all.resize(static_cast<std::size_t>(begins.back() + gathered.counts.back()) / sizeof(V));
  NANOTRON_CHECK_MPI(MPI_Gatherv(mine.data(), bytes, MPI_BYTE, gathered.all.data(), gathered.counts.data(),
                                 begins.data(), MPI_BYTE, 0, world));
  for (int& count : gathered.counts) count /= static_cast<int>(sizeof(V));
  return gathered;
}

// This rank's list of those that rank 0 has.
std::vector<std::int64_t> scatter(MPI_Comm world, const std::vector<std::vector<std::int64_t>>& lists) {
  std::vector<int> counts;
  std::vector<std::int64_t> all;
  for (const std::vector<std::int64_t>& list : lists) {
    counts.push_back(static_cast<int>(list.size()));
    all.insert(all.end(), list.begin(), list.end());
  }
  int count = 0;
  NANOTRON_CHECK_MPI(MPI_Scatter(counts.data(), 1, MPI_INT, &count, 1, MPI_INT, 0, world));
  std::vector<std::int64_t> mine(static_cast<std::size_t>(count));
  const std::vector<int> begins = begins_of(counts);
  NANOTRON_CHECK_MPI(
      MPI_Scatterv(all.data(), counts.data(), begins.data(), MPI_INT64_T, mine.data(), count, MPI_INT64_T, 0, world));
  return mine;
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

// The newest first; their hosts are known to rank 0.
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
  const Gathered<CopyName> names = gather(world_, rank_, mine);
  std::map<std::pair<std::int64_t, std::uint64_t>, Candidate> found;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < names.counts.size(); ++rank) {
    for (int i = 0; i < names.counts[rank]; ++i, ++at) {
      const CopyName& name = names.all[at];
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
  std::int64_t count = std::ssize(list);
  NANOTRON_CHECK_MPI(MPI_Bcast(&count, 1, MPI_INT64_T, 0, world_));
  list.resize(static_cast<std::size_t>(count));
  for (Candidate& candidate : list) {
    NANOTRON_CHECK_MPI(MPI_Bcast(&candidate.name, sizeof candidate.name, MPI_BYTE, 0, world_));
  }
  return list;
}

// Rank 0: the rank of a host that reads a piece.
int NeighbourCopies::reader_of(const Candidate& candidate, std::int64_t piece) const {
  const auto p = static_cast<std::size_t>(piece);
  const std::span<const int> readers = hosts_.ranks_of(candidate.hosts[p].front());
  return readers[p % readers.size()];
}

// Reads pieces of this rank's host and compares their hashes. Tables of good ones are added to
// `mine`; the damaged ones of all ranks are returned on rank 0. Collective.
std::vector<std::int64_t> NeighbourCopies::read_pieces(const Candidate& candidate,
                                                       const std::vector<std::int64_t>& pieces,
                                                       std::vector<CopyTable>& mine) {
  std::vector<std::int64_t> bad;
  bool is_unseen = false;
  for (const std::int64_t piece : pieces) {
    CopyName name = candidate.name;
    name.rank = piece;
    try {
      CopyTable table = read_copy_table(*folder_, name, location_.run);
      verify_copy(folder_->blocks_of(name), table);
      mine.push_back(std::move(table));
    } catch (const Error& error) {
      bad.push_back(piece);
      is_unseen = is_unseen || error.exit_code() == ExitCode::system_error;
    }
  }
  note_unseen(is_unseen);
  return gather(world_, rank_, bad).all;
}

// Lets a rank of a host read each piece, and where it is damaged one of another host. False: a piece is good nowhere.
// mine: the tables of those that this rank reads.
bool NeighbourCopies::choose_whole(Candidate& candidate, std::vector<CopyTable>& mine) {
  std::vector<std::int64_t> asked(candidate.hosts.size());
  std::iota(asked.begin(), asked.end(), 0);
  enum State : int { reads, is_whole, is_lost };
  for (int state = reads;;) {
    std::vector<std::vector<std::int64_t>> by_rank(rank_ == 0 ? hosts_.size() : 0);
    for (const std::int64_t piece : asked) {
      by_rank[static_cast<std::size_t>(reader_of(candidate, piece))].push_back(piece);
    }
    asked = read_pieces(candidate, scatter(world_, by_rank), mine);
    for (const std::int64_t piece : asked) {
      std::vector<int>& hosts = candidate.hosts[static_cast<std::size_t>(piece)];
      const std::string damaged = hosts_.name(hosts.front());
      hosts.erase(hosts.begin());
      log_.warn("step {}: the copy of rank {}'s state on host {} is damaged: {}", candidate.name.step, piece, damaged,
                hosts.empty() ? "there is no second copy, so the copies of this step are not used"
                              : fmt::format("using the one on {}", hosts_.name(hosts.front())));
    }
    if (rank_ == 0) state = !candidate.is_complete() ? is_lost : asked.empty() ? is_whole : reads;
    NANOTRON_CHECK_MPI(MPI_Bcast(&state, 1, MPI_INT, 0, world_));
    if (state != reads) return state == is_whole;
  }
}

std::optional<CheckpointReader> NeighbourCopies::open(Candidate& candidate) {
  std::vector<CopyTable> mine;
  if (!choose_whole(candidate, mine)) return std::nullopt;
  int first = rank_ == 0 ? reader_of(candidate, 0) : 0;
  NANOTRON_CHECK_MPI(MPI_Bcast(&first, 1, MPI_INT, 0, world_));
  std::string metadata;
  BlockedFile file;
  for (const CopyTable& table : mine)
    if (table.name.rank == 0) metadata = table.metadata, file = table.file;
  broadcast(world_, metadata, first);
  NANOTRON_CHECK_MPI(MPI_Bcast(&file, sizeof file, MPI_BYTE, first, world_));
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
