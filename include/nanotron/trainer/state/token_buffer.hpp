#pragma once

// Global batches on their way from the token files to the device. The host reads one ahead, while a GPU computes.

#include <array>
#include <exception>
#include <span>
#include <vector>

#include "nanotron/data/batch_loader.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::trainer {

/// Numbers of the global batch that the device holds.
struct LoadedBatch {
  std::uint64_t token_hash = 0;  // this rank's share of the sum
  index_t samples = 0;           // over all ranks
  index_t targets = 0;           // on this rank: positions whose target is not no_target
  index_t loss_terms = 0;        // over all ranks: what the loss is the mean of, targets or pairs
  index_t tokens = 0;            // over all ranks: positions that have a token
  index_t micro_batches = 0;     // of this rank
  /// With a document mask: nn::Packing::documents of each micro-batch. In this buffer's memory, until the next load.
  std::span<const index_t> documents{};
  /// The same of the document starts of this rank, as BatchLoader::load_documents says; empty without a mask.
  std::span<const std::int32_t> document_starts{};
  /// Of a batch of training: this rank's sequences; else unknown.
  SampleNumbers sequences{};

  /// The factor from the sum of losses to their mean; 0 without any.
  double loss_scale() const { return loss_terms > 0 ? 1.0 / static_cast<double>(loss_terms) : 0.0; }
};

class TokenBuffer {
 public:
  /// Where batches go on the device: inputs and targets (max micro-batches, tokens of one), document_starts and
  /// sequence_tokens as BatchLoader::load_documents and load_tokens say; later inputs and targets (max micro-batches,
  /// steps, tokens of one) as BatchLoader::Later says, if any. A smaller batch takes the first micro-batches.
  TokenBuffer(Vector<std::int32_t> inputs, Vector<std::int32_t> targets, Vector<std::int32_t> document_starts,
              Vector<std::int32_t> sequence_tokens, Vector<std::int32_t> later_inputs = {},
              Vector<std::int32_t> later_targets = {});

  /// Reads the global batch that begins at `first_sample`; if it is the next to be loaded, load will not read it again.
  /// Errors are thrown by that load. The device has finished with the batch before the one it holds.
  void read_ahead(data::BatchLoader& loader, index_t first_sample);

  /// Queues copies to the device after its earlier work; nothing waits for them.
  LoadedBatch load(Device& device, data::BatchLoader& loader, index_t first_sample);

 private:
  // On the host. One is read while the other one is copied.
  struct Batch {
    Batch(std::size_t tokens, std::size_t positions, std::size_t sequences, std::size_t later)
        : inputs(tokens),
          targets(tokens),
          document_starts(positions),
          sequence_tokens(sequences),
          later_inputs(later),
          later_targets(later) {}
    PinnedArray<std::int32_t> inputs, targets, document_starts, sequence_tokens, later_inputs, later_targets;
    std::vector<index_t> documents;             // of each micro-batch
    const data::BatchLoader* loader = nullptr;  // null: none was read
    index_t first_sample = 0;
    LoadedBatch about;
    std::exception_ptr error;
  };
  static void read(Batch& batch, data::BatchLoader& loader, index_t first_sample);
  static void count_documents(Batch& batch, const data::BatchLoader& loader);

  static data::BatchLoader::Later later_of(const Batch& batch, const data::BatchLoader& loader, index_t micro_batch);

  Vector<std::int32_t> inputs_, targets_, document_starts_, sequence_tokens_, later_inputs_, later_targets_;
  std::array<Batch, 2> batches_;
  std::size_t next_ = 0;
};

}  // namespace nanotron::trainer
