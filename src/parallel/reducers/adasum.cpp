#include "nanotron/parallel/reducers/adasum.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/cast.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/reduction/gram.hpp"

namespace nanotron::parallel {
namespace {

std::vector<AdasumTensor> tensors_of(const std::vector<AdasumTensor>& all, const Range& flat) {
  std::vector<AdasumTensor> tensors;
  const auto from_begin = [&](const Range& r) { return Range{r.begin - flat.begin, r.end - flat.begin}; };
  for (const AdasumTensor& t : all) {
    if (flat.contains(t.local.begin)) tensors.push_back({from_begin(t.local), from_begin(t.owned)});
  }
  return tensors;
}

}  // namespace

template <class T>
Adasum<T>::Adasum(model::Transformer<T>& model, const model::Section& section, const AdasumMemory<M>& memory,
                  comm::Group& replicas, Device& device, const SumRule& rule)
    : model_(&model),
      section_(section),
      gradient_(model.parameters().gradient.data() + section.flat.begin, section.flat.size()),
      tensors_(tensors_of(memory.tensors, section.flat)),
      memory_(memory),
      products_(memory.gram.data(), static_cast<index_t>(tensors_.size()) * kernels::gram_pairs(replicas.size())),
      replicas_(&replicas),
      device_(&device),
      count_(model.table(), rule.micro_batches),
      piece_(piece_of(section.flat.size(), replicas.size(), replicas.rank())),
      receive_counts_(static_cast<std::size_t>(replicas.size()), static_cast<std::size_t>(piece_.size())),
      gram_(Kokkos::create_mirror_view(memory.gram)),
      coefficients_(Kokkos::create_mirror_view(memory.coefficients)) {
  for (int r = 0; r < replicas.size(); ++r) {
    send_counts_.push_back(static_cast<std::size_t>(piece_of(section.flat.size(), replicas.size(), r).size()));
  }
}

template <class T>
void Adasum<T>::begin_step() {
  kernels::fill<M>(*device_, gradient_, 0.0);
}

template <class T>
void Adasum<T>::end(index_t unit) {
  if (count_.add(unit)) model_->sum_partial_gradients(model_->table().units[static_cast<std::size_t>(unit)].range);
}

template <class T>
MatrixRef<const master_t<T>> Adasum<T>::rows_of(const Range& range) const {
  const index_t begin = std::clamp(range.begin, piece_.begin, piece_.end);
  const index_t end = std::clamp(range.end, piece_.begin, piece_.end);
  return {memory_.received.data() + begin - piece_.begin, replicas_->size(), end - begin, piece_.size()};
}

template <class T>
void Adasum<T>::exchange() {
  comm::all_to_all(*replicas_, gradient_.data(), send_counts_, memory_.received.data(),
                   receive_counts_, device_->stream());
}

template <class T>
void Adasum<T>::measure() {
  const index_t pairs = kernels::gram_pairs(replicas_->size());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Vector<double> gram(products_.data() + static_cast<index_t>(t) * pairs, pairs);
    kernels::gram<M>(*device_, rows_of(tensors_[t].owned), gram);
  }
  for (comm::Group* group : {replicas_, &model_->tensor_parallel()}) {
    comm::all_reduce(*group, products_.data(), products_.size(), comm::ReduceOp::sum, device_->stream());
  }
}

template <class T>
void Adasum<T>::solve() {
  const auto replicas = static_cast<std::size_t>(replicas_->size());
  const auto pairs = static_cast<std::size_t>(kernels::gram_pairs(replicas_->size()));
  device_->fence();
  Kokkos::deep_copy(gram_, memory_.gram);
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const std::span<double> coefficients(coefficients_.data() + t * replicas, replicas);
    adasum_coefficients({gram_.data() + t * pairs, pairs}, coefficients);
    for (double& c : coefficients) c *= static_cast<double>(replicas);
  }
  Kokkos::deep_copy(memory_.coefficients, coefficients_);
}

template <class T>
void Adasum<T>::combine() {
  const index_t replicas = replicas_->size();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const MatrixRef<const M> rows = rows_of(tensors_[t].local);
    const Vector<const double> coefficients(memory_.coefficients.data() + static_cast<index_t>(t) * replicas, replicas);
    kernels::combine_rows<M>(*device_, rows, coefficients,
                             Vector<M>(memory_.piece.data() + (rows.data - memory_.received.data()), rows.columns));
  }
  const index_t piece = piece_size(section_.flat.size(), replicas_->size());
  comm::all_gather(*replicas_, memory_.piece.data(), static_cast<std::size_t>(piece), memory_.received.data(), device_->stream());
  kernels::cast<M, M>(*device_, Vector<const M>(memory_.received.data(), gradient_.size()), gradient_);
}

template <class T>
void Adasum<T>::finish() {
  model_->sum_partial_gradients(section_.vectors);
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  exchange();
  measure();
  solve();
  combine();
  this->exposed_seconds_ += wall_seconds() - begin;
}

template class Adasum<double>;
template class Adasum<float>;
template class Adasum<bf16>;

}  // namespace nanotron::parallel
