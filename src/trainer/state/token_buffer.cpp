#include "nanotron/trainer/state/token_buffer.hpp"

#include <algorithm>

#include "nanotron/nn/attention/token_batch.hpp"

namespace nanotron::trainer {
namespace {

void queue_copy(Device& device, const PinnedArray<std::int32_t>& from, const Vector<std::int32_t>& to) {
  using HostTokens = Kokkos::View<const std::int32_t*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::deep_copy(device.exec(), to, HostTokens(from.span().data(), from.span().size()));
}

}  // namespace

TokenBuffer::TokenBuffer(Vector<std::int32_t> inputs, Vector<std::int32_t> targets,
                         Vector<std::int32_t> document_starts, Vector<std::int32_t> sequence_tokens,
                         Vector<std::int32_t> later_inputs, Vector<std::int32_t> later_targets)
    : inputs_(inputs),
      targets_(targets),
      document_starts_(document_starts),
      sequence_tokens_(sequence_tokens),
      later_inputs_(later_inputs),
      later_targets_(later_targets),
      batches_{Batch(inputs.size(), document_starts.size(), sequence_tokens.size(), later_inputs.size()),
               Batch(inputs.size(), document_starts.size(), sequence_tokens.size(), later_inputs.size())} {}

void TokenBuffer::read(Batch& batch, data::BatchLoader& loader, index_t first_sample) {
  batch.error = nullptr;
  try {
    batch.about = {.samples = loader.batch_size(first_sample), .micro_batches = loader.micro_batches(first_sample)};
    const index_t tokens = static_cast<index_t>(batch.inputs.span().size()) / loader.max_micro_batches();
    for (index_t m = 0; m < batch.about.micro_batches; ++m) {
      std::int32_t* const targets = batch.targets.span().data() + m * tokens;
      batch.about.token_hash +=
          loader.load(first_sample, m, batch.inputs.span().data() + m * tokens, targets, later_of(batch, loader, m));
      batch.about.targets += tokens - std::count(targets, targets + tokens, data::no_target);
    }
    loader.load_documents(first_sample, batch.document_starts.span());
    if (!batch.document_starts.span().empty()) count_documents(batch, loader);
    loader.load_tokens(first_sample, batch.sequence_tokens.span());
    batch.about.tokens = loader.tokens(first_sample);
  } catch (...) {
    batch.error = std::current_exception();
  }
  batch.loader = &loader;
  batch.first_sample = first_sample;
}

data::BatchLoader::Later TokenBuffer::later_of(const Batch& batch, const data::BatchLoader& loader,
                                               index_t micro_batch) {
  const std::size_t tokens = batch.inputs.span().size(), all = batch.later_inputs.span().size();
  if (all == 0) return {};
  const index_t at = micro_batch * (static_cast<index_t>(all) / loader.max_micro_batches());
  return {.steps = static_cast<index_t>(all / tokens),
          .inputs = batch.later_inputs.span().data() + at,
          .targets = batch.later_targets.span().data() + at};
}

void TokenBuffer::count_documents(Batch& batch, const data::BatchLoader& loader) {
  const std::span<const std::int32_t> starts = batch.document_starts.span();
  const std::size_t positions = starts.size() / static_cast<std::size_t>(loader.max_micro_batches());
  batch.documents.resize(static_cast<std::size_t>(loader.max_micro_batches()));  // once
  for (std::size_t m = 0; m < static_cast<std::size_t>(batch.about.micro_batches); ++m) {
    batch.documents[m] = nn::count_documents(starts.subspan(m * positions, positions), loader.sequence_length());
  }
  batch.about.document_starts = starts;
  batch.about.documents = std::span(batch.documents).first(static_cast<std::size_t>(batch.about.micro_batches));
}

void TokenBuffer::read_ahead(data::BatchLoader& loader, index_t first_sample) {
  read(batches_[next_], loader, first_sample);
}

LoadedBatch TokenBuffer::load(Device& device, data::BatchLoader& loader, index_t first_sample) {
  Batch& batch = batches_[next_];
  if (batch.loader != &loader || batch.first_sample != first_sample) read(batch, loader, first_sample);
  if (batch.error) {
    batch.loader = nullptr;
    std::rethrow_exception(batch.error);
  }
  next_ = 1 - next_;
  queue_copy(device, batch.inputs, inputs_);
  queue_copy(device, batch.targets, targets_);
  queue_copy(device, batch.document_starts, document_starts_);
  queue_copy(device, batch.sequence_tokens, sequence_tokens_);
  queue_copy(device, batch.later_inputs, later_inputs_);
  queue_copy(device, batch.later_targets, later_targets_);
  return batch.about;
}

}  // namespace nanotron::trainer
