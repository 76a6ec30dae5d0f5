#pragma once

// Between the buffers of a rank and the logical tensors of a checkpoint.

#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/io/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint_writer.hpp"
#include "nanotron/trainer/carried_tensors.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {

/// Which part of each tensor a rank touches.
enum class Part {
  held,   // all it computes with: for reading
  owned,  // what it answers for, so that the group covers each element once: for writing
  none,   // nothing: replicas of a rank that writes
};

/// By who holds the tensor.
struct Parts {
  Part dense, experts;
  Parts(Part all) : dense(all), experts(all) {}  // NOLINT: one for both
  Parts(Part rest, Part of_experts) : dense(rest), experts(of_experts) {}
  Part of(comm::Holders holders) const { return holders == comm::Holders::data_parallel ? dense : experts; }
};

/// What this rank writes: of the ranks that hold the same, the first.
Parts written_parts(comm::ProcessGrid& grid);

/// The tensors of one buffer (parameters or a moment), `data` being its first element on the host, `place` what it
/// holds.
template <class M>
std::vector<io::StateTensor> state_tensors(const model::ParameterTable& table, const nn::BufferLayout& place, M* data,
                                           const Parts& part);

/// The same of a moment, `place` being all of it or a part: the tensors it covers.
template <class M>
std::vector<io::StateTensor> moment_tensors(const model::ParameterTable& table, const optim::Moment<M>& moment,
                                            const nn::BufferLayout& place, M* data, const Parts& part);

/// Bytes that writing a checkpoint takes for a while, besides the memory of the plan, about at most: MPI-IO's own, and what
/// is read back at once to be compared. (A GPU build also keeps on the host what it writes.)
template <class T>
std::size_t checkpoint_workspace(const TrainingState<T>& state);

template <class T>
class Checkpointing {
 public:
  using M = master_t<T>;

  // provenance and the tokenizer of the training file go into every checkpoint.
  Checkpointing(const deck::Config& config, const Provenance& provenance, const data::TokenizerId& tokenizer,
                comm::ProcessGrid& grid, TrainingState<T>& state, Log& log);

  /// Reads what checkpoint%resume names into the state, on any grid. Returns the counters, all zero when
  /// there was nothing to resume from. Error(deck_error) when the deck's model is another one, Error(data_error) when the
  /// tokenizer is, unless data%other_tokenizer accepts it. Collective.
  io::CheckpointState restore();

  /// Writes the state behind `counters.step` updates. Collective; returns its seconds.
  double save(io::CheckpointState counters);

  // See io::CheckpointWriter.
  void mark_known_good() { writer_.mark_known_good(); }
  const std::filesystem::path& newest_known_good() const { return writer_.newest_known_good(); }

 private:
  bool has_our_moments(const io::CheckpointInfo& info) const;
  void read_into(io::CheckpointReader& reader);
  void read_compression(io::CheckpointReader& reader);
  nn::BufferLayout answered(const nn::BufferLayout& place) const;
  template <class PlaceOf>
  std::vector<io::StateGroup> moment_groups(const Parts& part, const PlaceOf& place_of);

  const deck::Config& config_;
  Provenance provenance_;
  data::TokenizerId tokenizer_;
  comm::ProcessGrid& grid_;
  TrainingState<T>& state_;
  Log& log_;
  io::CheckpointWriter writer_;
  /// The buffers as the host sees them: themselves on a CPU, staging memory on a GPU build.
  typename Vector<M>::HostMirror master_;
  CarriedTensors<M> carried_;
  std::vector<optim::Moment<M>> moments_;
  std::vector<typename Vector<M>::HostMirror> host_moments_;  // of each
};

}  // namespace nanotron::trainer
