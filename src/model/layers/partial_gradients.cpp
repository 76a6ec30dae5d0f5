#include "nanotron/model/layers/partial_gradients.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {
namespace {

// Elements of the all-reduce. A column-parallel tensor whose shards overlap is all-reduced as the logical tensor.
index_t summed_size(const nn::ParameterSpec& spec) {
  return spec.partition == nn::Partition::replicated ? spec.local_size() : spec.rows * spec.columns;
}

index_t largest_whole(const ParameterTable& table, comm::ReplicaSet replicas) {
  index_t largest = 0;
  for (const nn::ParameterSpec& spec : table.specs) {
    if (spec.replicas == replicas && !spec.is_frozen && spec.gradient_is_partial &&
        spec.partition == nn::Partition::column_parallel) {
      largest = std::max(largest, summed_size(spec));
    }
  }
  return largest;
}

}  // namespace

template <class T>
PartialGradients<T>::PartialGradients(const Transformer<T>& model, const Section& section, Device& device, Arena& arena)
    : model_(&model),
      replicas_(section.replicas),
      device_(&device),
      whole_(arena.take<M>(MemoryKind::workspace, largest_whole(model.table(), section.replicas))) {}

// f(spec, offset) for the tensor of each layer that begins in the range.
template <class T>
template <class F>
void PartialGradients<T>::for_each(const Range& range, const F& f) const {
  for (const nn::ParameterSpec& spec : model_->table().specs) {
    if (!spec.gradient_is_partial || spec.replicas != replicas_) continue;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      if (range.contains(spec.offset_of(layer))) f(spec, spec.offset_of(layer));
    }
  }
}

template <class T>
comm::StepTraffic PartialGradients<T>::traffic(const Range& range) const {
  index_t elements = 0;
  for_each(range, [&](const nn::ParameterSpec& spec, index_t) { elements += summed_size(spec); });
  const int ranks = model_->tensor_parallel().size();
  return {.tensor_parallel = comm::all_reduce_bytes(elements * static_cast<index_t>(sizeof(M)), ranks)};
}

template <class T>
void PartialGradients<T>::sum(const Range& range) const {
  if (model_->tensor_parallel().size() == 1) return;
  const nn::ParameterBuffers<T>& p = model_->parameters();
  for_each(range, [&](const nn::ParameterSpec& spec, index_t offset) {
    sum(spec, p.gradient.data() + p.layouts.gradient.at(offset));
  });
}

template <class T>
void PartialGradients<T>::sum(const nn::ParameterSpec& spec, M* local) const {
  comm::Group& tp = model_->tensor_parallel();
  if (spec.partition == nn::Partition::replicated) {
    comm::all_reduce(tp, local, static_cast<std::size_t>(spec.local_size()), comm::ReduceOp::sum, device_->stream());
    return;
  }
  const MatrixRef<M> mine(local, spec.local_rows(), spec.columns);
  const Vector<M> whole(whole_.data(), summed_size(spec));
  const MatrixRef<M> part =
      MatrixRef<M>(whole.data(), spec.rows, spec.columns).row_block(spec.local.begin, spec.local.size());
  kernels::fill<M>(*device_, whole, 0.0);
  kernels::copy_matrix<M>(*device_, mine, part);
  comm::all_reduce(tp, whole.data(), whole.size(), comm::ReduceOp::sum, device_->stream());
  kernels::copy_matrix<M>(*device_, part, mine);
}

NANOTRON_INSTANTIATE_CLASS(PartialGradients)

}  // namespace nanotron::model
