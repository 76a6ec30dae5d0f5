#pragma once

// The order in which LayoutInvariantReducer adds the gradients of neighbouring ranks: the parts of a sequence in a
// binary tree (tensor/sum_order.hpp), then the sequences one by one.

#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::parallel {

template <class M>
Vector<M> slice(const Vector<M>& v, index_t begin, index_t count) {
  return Vector<M>(v.data() + begin, count);
}

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

}  // namespace nanotron::parallel
