#pragma once

// Gradients of the 1-D parameters of a section in LayoutInvariantReducer. They are few: those of each sequence are
// kept, and added in the order of all gradients after the last micro-batch. backward_input and backward_weight of one
// micro-batch both add to them, with other micro-batches in between: each moves its contribution to the buffer of its
// micro-batch.

#include <vector>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/parallel/reducers/reducers.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {

template <class M>
Vector<M> slice(const Vector<M>& v, index_t begin, index_t count) {
  return Vector<M>(v.data() + begin, count);
}

/// The order in which LayoutInvariantReducer adds the gradients of neighbouring ranks: the parts of a sequence in a
/// binary tree (tensor/sum_order.hpp), then the sequences one by one.
struct SequenceSums {
  int parts;    // of all sequences, by rank
  int context;  // consecutive parts of one sequence

  /// add(the sum over a sequence), in order, of `all` (parts, size), which is overwritten.
  template <class M, class Add>
  void for_each(Device& device, const Vector<M>& all, index_t size, const Add& add) const {
    for (int first = 0; first < parts; first += context) {
      const auto part = [&](int c) { return slice(all, (first + c) * size, size); };
      for (int step = 1; step < context; step *= 2) {
        for (int c = 0; c + step < context; c += 2 * step) kernels::add<M>(device, part(c + step), part(c));
      }
      add(part(0));
    }
  }
  template <class M>
  void add_to(Device& device, const Vector<M>& all, const Vector<M>& sum) const {
    for_each(device, all, static_cast<index_t>(sum.extent(0)),
             [&](const Vector<M>& gradient) { kernels::add<M>(device, gradient, sum); });
  }
};

template <class T>
class Gradients1d {
 public:
  using M = master_t<T>;
  /// samples_of_shard: micro-batches of a batch shard. sequences: which a micro-batch has here, each with a gradient.
  Gradients1d(const ReducerContext<T>& context, index_t samples_of_shard, int sequences, const SequenceSums& sums);

  void start_step();
  /// After backward of a unit, by number.
  void set_apart(index_t number, index_t micro_batch);
  /// Collective: the sum over all micro-batches and ranks, to where the optimizer reads it.
  void sum(const model::PartialGradients<T>& partial, index_t micro_batches);
  comm::StepTraffic traffic_of_round() const;

 private:
  // Where backward accumulates them; the kept ones of a sequence; those of a batch shard.
  Vector<M> gradient_of(const Range& flat, index_t sequence) const;
  Vector<M> kept(index_t micro_batch, index_t sequence) const;
  Vector<M> batch_shard(index_t sequence) const;

  const model::Transformer<T>* model_;
  comm::Group* data_;
  Device* device_;
  Range flat_;  // of the parameters
  index_t samples_of_shard_;
  int sequences_;
  SequenceSums sums_;
  std::vector<std::vector<Range>> ranges_of_;  // by number: its 1-D parameters in the flat space

  Vector<M> kept_;         // (micro-batches, sequences, parameters)
  Vector<M> batch_shard_;  // (sequences, parameters): the sums of one batch shard
  Vector<M> sum_;          // (parameters): of all
  Vector<M> gathered_;     // (ranks, sequences, parameters)
};

}  // namespace nanotron::parallel
