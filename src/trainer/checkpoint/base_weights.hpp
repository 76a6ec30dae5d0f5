#pragma once

// Frozen weights, which a run reads from lora%base, and what its own checkpoints say of them: they have the adapters
// alone. Private to the trainer layer.

#include <span>
#include <string>

#include "nanotron/base/log.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/model/layers/transformer.hpp"

namespace nanotron::trainer {

/// Reads the frozen weights; nothing without any. Returns CheckpointContents::adapters of this run. Collective.
template <class T>
std::string read_base(const deck::Config& config, MPI_Comm world, model::Transformer<T>& model, Log& log);

/// A hash of all frozen weights that this rank stores.
template <class T>
std::uint64_t base_bits(const model::Transformer<T>& model, Device& device);

/// Error(deck_error) unless the checkpoint has what the run with these adapters (empty: without) trains. Call it before
/// read_trained().
void require_adapters(const io::CheckpointReader& checkpoint, const std::string& adapters);

/// What identifies the weights that a run starts with: of a checkpoint, or the initial ones (null), with these adapters
/// (empty: without). A line of text.
std::string identity_of(const deck::Config& config, const io::CheckpointReader* checkpoint,
                        const std::string& adapters);

/// The table without frozen parameters: what checkpoints of the run have.
model::ParameterTable trained_table(const model::ParameterTable& table);

/// Reads the master weights of trained_table() and moments. Collective.
template <class T>
void read_trained(io::CheckpointReader& reader, model::Transformer<T>& model, std::span<const io::StateGroup> moments);

}  // namespace nanotron::trainer
