#pragma once

// Copies of the training state in the memory of the hosts, or on their disks: each rank's share on its own host and on
// that of its partner (comm::HostMap). No share is lost with one host, and a restart need not read the file system.
// Multi-level checkpointing, as in SCR (Moody et al. 2010), FTI (Bautista-Gomez et al. 2011) and VeloC.
//
// What is copied is the image of a checkpoint (block_exchange.hpp): each rank has the blocks that it would write to the
// file. So any number of ranks can read it, on any grid.
//
//   <directory>/nanotron_hpc-<user id>/<run>/      mode 700
//     step_<step>.<generation>.rank_<r>_of_<n>.blocks   the image, with holes where other ranks have blocks; mode 600
//     step_<step>.<generation>.rank_<r>_of_<n>.table    its blocks and their hashes, the image's metadata; comes last

#include <mpi.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/host_map.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"

namespace nanotron::io {

class CopyFolder;
class PageBuffers;
struct CopyName;
struct CopyTable;

inline constexpr std::int64_t copy_block_bytes = std::int64_t{1} << 20;
/// Generations kept for a run, including the one being written; the other one is complete.
inline constexpr std::size_t kept_generations = 2;

struct CopyLocation {
  std::string directory;                // %h: the name of the host
  std::string run;                      // run_identity()
  comm::HostMap hosts;                  // of the ranks of the world
  std::filesystem::path checkpoints{};  // of run.id
};

/// The identity of the run that keeps its checkpoints in `directory`, 16 hexadecimal digits in the first line of
/// <directory>/run.id. With `fresh` a new one; earlier ones follow in the file. Copies of another identity
/// are never read. Collective; Error(system_error).
enum class Identity { of_directory, fresh };
std::string run_identity(MPI_Comm world, const std::filesystem::path& directory, Identity identity);
/// The newest first. Collective.
std::vector<std::string> earlier_identities(MPI_Comm world, const std::filesystem::path& directory);

/// All functions are collective over `world` (borrowed).
class NeighbourCopies {
 public:
  /// `log` is used by the rank that writes it. Error(deck_error) where hosts share the folder.
  NeighbourCopies(MPI_Comm world, CopyLocation place, Log& log);
  ~NeighbourCopies();

  /// The newest state of this run, at step `from` or later, whose blocks all exist on some host with the right hash;
  /// empty if there is none. Damaged copies are logged, and the partner's are used.
  std::optional<CheckpointReader> newest(std::int64_t from);

  /// A host whose copies newest() could not list or read; empty: none. What it has is unknown.
  const std::string& unseen_host() const { return unseen_host_; }

  /// Call it after a restart from `reader` (null: from nothing). If that is what newest() found last, its copies stay;
  /// all others are removed. If it is a checkpoint or null, the run has a new identity from the next copy on: hosts
  /// outside this job may have copies of abandoned steps.
  void keep_only(const CheckpointReader* reader);
  /// Removes, on the hosts of this job, all copies of these ended runs.
  void remove_those_of(const std::vector<std::string>& runs);

  /// Copies the contents. If a host cannot store them (no space), no host keeps them: a warning, and false. The older
  /// copies stay.
  bool write(const CheckpointContents& contents);

  /// Removes all copies of this run.
  void remove_all();

  /// Bytes of one copy on this rank's own host and its partner's, since the last write().
  std::int64_t bytes_held() const { return bytes_held_; }
  /// Where the copies of `step` are, as text.
  std::filesystem::path folder_of(std::int64_t step) const;

 private:
  struct Draft;
  struct Candidate;
  void open_folder();
  void require_own_folders();
  void write_draft(const CheckpointContents& contents, Draft& draft);
  void exchange(Draft& draft);
  void note_unseen(bool here);
  std::vector<Candidate> candidates(std::int64_t from);
  std::optional<CheckpointReader> open(Candidate& candidate);
  int reader_of(const Candidate& candidate, std::int64_t piece) const;
  std::vector<std::int64_t> read_pieces(const Candidate& candidate, const std::vector<std::int64_t>& pieces,
                                        std::vector<CopyTable>& mine);
  bool choose_whole(Candidate& candidate, std::vector<CopyTable>& mine);

  MPI_Comm world_;
  int rank_ = 0;
  CopyLocation location_;
  comm::HostMap hosts_;
  Log& log_;
  std::unique_ptr<CopyFolder> folder_;
  std::unique_ptr<PageBuffers> memory_;
  std::vector<std::uint64_t> generations_;  // complete ones, the newest last
  std::uint64_t found_ = 0;                 // by newest()
  std::string unseen_host_;
  std::int64_t bytes_held_ = 0;
  bool has_failed_ = false;
  bool begins_branch_ = false;  // the next copy has another identity
};

}  // namespace nanotron::io
