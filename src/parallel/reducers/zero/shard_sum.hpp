#pragma once

// How ZeRO sums the gradient of a unit over the shard group of S ranks: what is sent, and who adds it. The gradient
// (n elements) is contiguous:
//
//   | shard of rank 0 | shard of rank 1 | ... |      n / S elements each
//
//   start(whole)  ->  request.wait()  ->  store(whole) or add(whole, shard)

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// start is collective over the shard group; store and add are not. Several sums may run; all ranks start them in the
/// same order and wait for them in this order.
template <class T>
class ShardSum {
 public:
  using M = master_t<T>;
  virtual ~ShardSum() = default;

  /// Starts the sum of the ranks' gradients of a unit. `whole` belongs to it until store() or add().
  virtual comm::Request start(const Vector<M>& whole) const = 0;

  /// After the request: overwrites this rank's shard of `whole` with the sum. The other shards are undefined.
  virtual void store(const Vector<M>& whole) const = 0;

  /// After the request: adds this rank's shard of the sum to `shard` (n / S). All of `whole` is undefined.
  virtual void add(const Vector<M>& whole, const Vector<M>& shard) const = 0;

  /// What a rank gives to the collective for so many elements.
  virtual comm::Bytes bytes(index_t elements) const = 0;

 protected:
  /// This rank's shard of `whole`.
  static Vector<M> shard_of_rank(const Vector<M>& whole, const comm::Group& group) {
    const index_t n = static_cast<index_t>(whole.extent(0)) / group.size();
    return Vector<M>(whole.data() + group.rank() * n, n);
  }
};

}  // namespace nanotron::parallel
