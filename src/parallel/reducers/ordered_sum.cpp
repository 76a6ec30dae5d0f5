#include "nanotron/parallel/reducers/ordered_sum.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::parallel {
namespace {

// The norms and biases of each unit's layer; the final norm is the head's, whose sum is `head`.
std::vector<std::vector<Range>> vectors_by_sum(const model::ParameterTable& table, index_t head) {
  std::vector<std::vector<Range>> vectors(table.units.size() + 1);
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.is_vector) continue;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t unit = spec.is_stacked ? table.layer_unit(layer) : head;
      const index_t begin = spec.offset_of(layer);
      vectors[static_cast<std::size_t>(unit)].push_back({begin, begin + spec.local_size()});
    }
  }
  return vectors;
}

template <class M>
void copy(Device& device, const Vector<M>& from, const Vector<M>& to) {
  if (from.extent(0) > 0) Kokkos::deep_copy(device.exec(), to, from);
}

template <class M>
Vector<M> slice(const Vector<M>& v, index_t begin, index_t count) {
  return Vector<M>(v.data() + begin, count);
}

}  // namespace

template <class T>
OrderedSum<T>::OrderedSum(model::Transformer<T>& model, const model::Section& section, const model::Sharding& sharding,
                          const OrderedMemory<M>& memory, const ReplicaGroups& groups, Device& device, const SumRule& rule)
    : model_(&model),
      section_(section),
      sharding_(sharding),
      memory_(memory),
      groups_(groups),
      device_(&device),
      samples_(rule.micro_batches),
      samples_of_shard_(rule.micro_batches_of_shard),
      context_(rule.context),
      sequences_(rule.sequences),
      tied_(section.units.begin == 0 && model.table().units.front().uses > 1),
      uses_(model.table().units.size() + 1),
      inputs_(uses_.size()),
      vectors_(vectors_by_sum(model.table(), head_of(model.table().head_unit()))),
      send_counts_(static_cast<std::size_t>(groups.replicas.size())) {}

template <class T>
auto OrderedSum<T>::gradient(const Range& flat, index_t sequence) const -> Vector<M> {
  const nn::ParameterBuffers<T>& p = model_->parameters();
  const index_t first = sequence == 0 ? 0 : sequence * unit(section_.units.begin).range.size();
  return slice(p.gradient, p.places.gradient.at(flat.begin) + first, flat.size());
}

template <class T>
auto OrderedSum<T>::kept(const Range& flat) const -> Vector<M> {
  const nn::ParameterBuffers<T>& p = model_->parameters();
  return slice(p.gradient, p.places.reduced.at(flat.begin), flat.size());
}

template <class T>
auto OrderedSum<T>::kept_of(index_t sum, const Range& flat) const -> Vector<M> {
  if (sum < units()) return kept(flat);
  return slice(memory_.head_sum, flat.begin - piece_of(unit(sum), sharding_).begin, flat.size());
}

template <class T>
auto OrderedSum<T>::vectors_of(index_t micro_batch) const -> Vector<M> {
  const index_t size = model_->table().vectors.size();
  return slice(memory_.vectors, micro_batch * size, size);
}

// Shard s of a group has piece s of the unit, and copy c of that rank part c of the piece.
template <class T>
Range OrderedSum<T>::piece_of_replica(index_t u, int replica) const {
  const int shards = sharding_.of(unit(u).holders).size, copies = groups_.replicas.size() / shards;
  model::Sharding of_rank = sharding_;
  of_rank.rank = of_rank.experts.rank = replica % shards;
  const Range piece = piece_of(unit(u), of_rank);
  const index_t size = piece.size() / copies, begin = piece.begin + replica / shards * size;
  return {begin, begin + size};
}

template <class T>
void OrderedSum<T>::begin_step() {
  const nn::ParameterBuffers<T>& p = model_->parameters();
  for (const nn::Placement::Part& part : p.places.reduced.within(section_.flat)) {
    kernels::fill<M>(*device_, slice(p.gradient, part.at, part.range.size()), 0.0);
  }
  if (section_.vectors.size() > 0) kernels::fill<M>(*device_, memory_.vectors, 0.0);
  if (tied_) kernels::fill<M>(*device_, memory_.head_sum, 0.0);
  std::ranges::fill(uses_, 0);
  std::ranges::fill(inputs_, 0);
}

template <class T>
void OrderedSum<T>::begin(index_t u) {
  begin_sum(u);
}

template <class T>
void OrderedSum<T>::end(index_t u) {
  end_sum(u);
}

template <class T>
void OrderedSum<T>::begin_head(index_t u) {
  begin_sum(head_of(u));
}

template <class T>
void OrderedSum<T>::end_head(index_t u) {
  end_sum(head_of(u));
}

template <class T>
void OrderedSum<T>::end_inputs(index_t u) {
  set_vectors_apart(u, inputs_[static_cast<std::size_t>(u)]++);
}

template <class T>
void OrderedSum<T>::begin_sum(index_t sum) {
  const Vector<M> here = gradient(unit(sum).range);
  if (tied_ && unit_of(sum) == 0 && in_place_ != sum) {
    if (samples_of_shard_ > 1) kernels::swap<M>(*device_, here, memory_.other_part);
    in_place_ = sum;
  }
  if (uses_[static_cast<std::size_t>(sum)] % samples_of_shard_ > 0) return;
  for (index_t s = 0; s < sequences_; ++s) kernels::fill<M>(*device_, gradient(unit(sum).range, s), 0.0);
}

template <class T>
void OrderedSum<T>::end_sum(index_t sum) {
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  index_t& uses = uses_[static_cast<std::size_t>(sum)];
  set_vectors_apart(sum, uses++);
  if (uses % samples_of_shard_ == 0) add_round(sum);
  this->exposed_seconds_ += wall_seconds() - begin;
}

template <class T>
void OrderedSum<T>::set_vectors_apart(index_t sum, index_t micro_batch) {
  for (const Range& r : vectors_[static_cast<std::size_t>(sum)]) {
    const Vector<M> here = gradient(r);
    kernels::add<M>(*device_, here, slice(vectors_of(micro_batch), r.begin - model_->table().vectors.begin, r.size()));
    kernels::fill<M>(*device_, here, 0.0);
  }
}

template <class T>
void OrderedSum<T>::add_round(index_t sum) {
  comm::Group& replicas = groups_.replicas;
  const Range whole = unit(sum).range;
  if (replicas.size() == 1) {
    for (index_t s = 0; s < sequences_; ++s) kernels::add<M>(*device_, gradient(whole, s), kept_of(sum, whole));
    return;
  }
  const Range mine = piece_of_replica(sum, replicas.rank());
  std::ranges::fill(send_counts_, static_cast<std::size_t>(sequences_ * mine.size()));
  for (int r = 0; r < replicas.size(); ++r) {
    for (index_t s = 0; s < sequences_; ++s) {
      copy(*device_, gradient(piece_of_replica(sum, r), s), slice(memory_.send, (r * sequences_ + s) * mine.size(), mine.size()));
    }
  }
  comm::all_to_all<M>(replicas, memory_.send.data(), send_counts_, memory_.receive.data(), send_counts_,
                      device_->stream());
  add_in_order(slice(memory_.receive, 0, replicas.size() * sequences_ * mine.size()), kept_of(sum, mine));
}

// parts (replicas x sequences, size of sum): those of one sequence in a tree, the sequences one after the other.
template <class T>
void OrderedSum<T>::add_in_order(const Vector<M>& parts, const Vector<M>& sum) {
  const auto size = static_cast<index_t>(sum.extent(0));
  for (int first = 0; first < groups_.replicas.size() * sequences_; first += context_) {
    const auto part = [&](int c) { return slice(parts, (first + c) * size, size); };
    for (int step = 1; step < context_; step *= 2) {
      for (int c = 0; c + step < context_; c += 2 * step) kernels::add<M>(*device_, part(c + step), part(c));
    }
    kernels::add<M>(*device_, part(0), sum);
  }
}

template <class T>
void OrderedSum<T>::sum_vectors() {
  const Range flat = section_.vectors;
  if (flat.size() == 0) return;
  const Vector<M> here = gradient(flat);
  kernels::fill<M>(*device_, memory_.vector_sum, 0.0);
  for (index_t first = 0; first < samples_; first += samples_of_shard_) {
    kernels::fill<M>(*device_, memory_.vector_shard, 0.0);
    for (index_t m = first; m < first + samples_of_shard_; ++m) {
      copy(*device_, vectors_of(m), here);
      model_->sum_partial_gradients(flat);
      kernels::add<M>(*device_, here, memory_.vector_shard);
    }
    if (groups_.replicas.size() == 1) {
      kernels::add<M>(*device_, memory_.vector_shard, memory_.vector_sum);
      continue;
    }
    comm::all_gather<M>(groups_.replicas, memory_.vector_shard.data(), static_cast<std::size_t>(flat.size()),
                        memory_.gathered.data(), device_->stream());
    add_in_order(memory_.gathered, memory_.vector_sum);
  }
  copy(*device_, memory_.vector_sum, here);
}

template <class T>
void OrderedSum<T>::add_head() {
  if (tied_) kernels::add<M>(*device_, memory_.head_sum, kept(piece_of(unit(units()), sharding_)));
}

template <class T>
void OrderedSum<T>::hand_out() {
  for (index_t u = section_.units.begin; u < section_.units.end; ++u) {
    comm::Group& copies = sharding_.of(unit(u).holders).size == 1 ? groups_.replicas : groups_.copies;
    if (copies.size() == 1) continue;
    const Range mine = piece_of_replica(u, groups_.replicas.rank());
    comm::all_gather<M>(copies, kept(mine).data(), static_cast<std::size_t>(mine.size()),
                        kept(piece_of(unit(u), sharding_)).data(), device_->stream());
  }
}

template <class T>
void OrderedSum<T>::finish() {
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  sum_vectors();
  add_head();
  hand_out();
  this->exposed_seconds_ += wall_seconds() - begin;
}

template class OrderedSum<double>;
template class OrderedSum<float>;
template class OrderedSum<bf16>;

}  // namespace nanotron::parallel
