#pragma once

// Saves and restores the training state.

#include <optional>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"
#include "nanotron/trainer/checkpoint/persistent_tensors.hpp"
#include "nanotron/trainer/checkpoint/state_tensors.hpp"
#include "nanotron/trainer/report/saved_checkpoint.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

/// What this rank writes: its share of what its replicate group owns.
Parts written_parts(comm::ProcessGrid& grid);

/// Reads the master weights of a whole model, written on any grid. The compute weights are not refreshed. Collective
/// over the reader's communicator.
template <class T>
void read_parameters(io::CheckpointReader& reader, model::Transformer<T>& model);

/// Bytes of the copies on other hosts and this one (io/copies/neighbour_copies.hpp) for each rank of a host: of its
/// state and of its partner's, twice. 0 where there are none.
template <class T>
std::size_t neighbour_bytes(const deck::Config& config, comm::ProcessGrid& grid, const TrainingState<T>& state);

/// Estimated max bytes of the host that writing a checkpoint needs besides the memory of the plan: the blocks that are
/// assembled and sent (io/blocks/block_exchange.hpp), the pinned buffer through which device memory passes and, where
/// it is asynchronous, all that this rank writes.
template <class T>
std::size_t checkpoint_workspace(const deck::Config& config, comm::ProcessGrid& grid, const TrainingState<T>& state);

/// What a run starts with.
struct StartingPoint {
  std::string deck{};     // of the checkpoint that it resumed from; empty: none
  std::string weights{};  // what identifies them
};

template <class T>
class Checkpointing {
 public:
  using M = master_t<T>;

  // Every checkpoint contains provenance, the tokenizer of the training file, what is known of all files and, as it was
  // read, what the converter kept of an imported model. copies: null where the run has none.
  Checkpointing(const deck::Config& config, const Provenance& provenance, const data::TokenizerId& tokenizer,
                const std::vector<io::DataFile>& data, comm::ProcessGrid& grid, Device& device, TrainingState<T>& state,
                io::NeighbourCopies* copies, Log& log);

  /// Reads `checkpoint`, or what checkpoint%resume names (a newer copy on the hosts, with 'auto'), into the state,
  /// written on any grid. Returns its counters, or zeros and run%seed if there is nothing to resume from.
  /// Error(deck_error) if the deck's model differs, Error(data_error) if the tokenizer differs and data%other_tokenizer
  /// does not accept it; other data or another order of them: compare_data (run_data.hpp). Collective.
  io::CheckpointState restore(std::optional<io::CheckpointReader> checkpoint = {});
  /// Of the last restore(), where sequences are pairs.
  const StartingPoint& start_of_weights() const { return start_; }

  /// Writes the state after `counters.step` updates. Collective.
  SavedCheckpoint save(const io::CheckpointState& counters);
  /// The same without waiting for the disk, see io::CheckpointWriter. finish_copy() comes before the next change of
  /// parameters or moments; advance() and finish() return what was published. Collective; an earlier one must be
  /// finished.
  void start(const io::CheckpointState& counters);
  void finish_copy();
  bool is_writing() const { return writer_.is_writing(); }
  double seconds_under_way() const;  // since start(); 0: nothing is being written
  std::optional<SavedCheckpoint> advance();
  std::optional<SavedCheckpoint> finish();

  /// Copies the state to other hosts, see io::NeighbourCopies: returns where the copy is, or nothing. Collective.
  std::optional<std::filesystem::path> copy(const io::CheckpointState& counters);

  // See io::CheckpointWriter.
  void mark_known_good() { writer_.mark_known_good(); }
  const std::filesystem::path& newest_known_good() const { return writer_.newest_known_good(); }
  /// The newest complete checkpoint that is older; empty if there is none. Collective.
  std::filesystem::path older_than(const std::filesystem::path& folder) const { return writer_.older_than(folder); }
  /// Seconds that training waited for the checkpoint under way, or the last one.
  double seconds_waited() const { return pending_.waited; }

 private:
  void restore_base();  // unless its weights are in memory as they were read
  bool has_our_moments(const io::CheckpointInfo& info) const;
  bool read_into(io::CheckpointReader& reader);  // false, and nothing read: types that are not converted
  void read_compression(io::CheckpointReader& reader);
  nn::BufferLayout owned_part(const nn::BufferLayout& layout) const;
  template <class Layout>
  std::vector<io::StateGroup> moment_groups(const Parts& part, const Layout& layout);
  template <class Write>
  void with_contents(io::CheckpointState counters, const Write& write);

  const deck::Config& config_;
  Provenance provenance_;
  data::TokenizerId tokenizer_;
  std::vector<io::DataFile> data_;
  std::string hugging_face_;     // of the checkpoint that the run resumed from, passed on
  std::string adapters_;         // of this run, see io::CheckpointContents
  std::uint64_t base_bits_ = 0;  // of the weights that a run with adapters does not change, as they were read
  StartingPoint start_;
  comm::ProcessGrid& grid_;
  Device& device_;
  TrainingState<T>& state_;
  io::NeighbourCopies* copies_;
  Log& log_;
  io::CheckpointWriter writer_;
  PersistentTensors<M> persistent_;
  std::vector<optim::Moment<M>> moments_;
  SavedCheckpoint pending_;  // since start()
  double pending_since_ = 0.0;
};

}  // namespace nanotron::trainer
