#pragma once

// The states of an update where kernels find them: in memory of the device; or, of states in host memory on a GPU, in
// the buffers of host_buckets.hpp; on a host, whose memory they are in, as they are. Private to optim.

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "optim/host_states/host_buckets.hpp"

namespace nanotron::optim {

template <class M>
class StatesOfUpdate {
 public:
  /// values: the states, of one type. order: all their elements, as every pass goes through them. bucket: bytes of a
  /// bucket, copied on a host too; 0: as host_buckets.hpp says.
  StatesOfUpdate(std::vector<kernels::StateVector<M>> values, deck::StateMemory memory,
                 const std::vector<SourceElements>& order, std::size_t bucket, Arena& arena)
      : values_(std::move(values)), here_(values_) {
    const bool are_copied = memory == deck::StateMemory::host && (arena.processor() == Processor::gpu || bucket > 0);
    if (!are_copied) return;
    StatesOnHost host{.states = {}, .bucket = bucket};
    for (const kernels::StateVector<M>& value : values_) {
      std::visit(
          [&]<class S>(const Vector<S>& v) {
            host.states.push_back(reinterpret_cast<std::byte*>(v.data()));
            host.element = sizeof(S);
          },
          value);
    }
    buckets_.emplace(order, std::move(host), arena);
  }

  /// Begins a pass.
  void begin(Device& device) {
    if (buckets_) buckets_->begin(device);
  }
  /// f(part of the elements, the states of the part) for parts that cover them; these follow those of the last call.
  template <class F>
  void for_each_part(Device& device, const Range& elements, const F& f) {
    for (Range rest = elements; rest.size() > 0;) {
      const Range bucket = buckets_ ? buckets_->load(device, rest.begin) : rest;
      const Range part{rest.begin, std::min(rest.end, bucket.end)};
      for (std::size_t i = 0; i < values_.size(); ++i) {
        std::visit(
            [&]<class S>(const Vector<S>& whole) {
              S* const first = buckets_ ? reinterpret_cast<S*>(buckets_->state(i)) : whole.data() + bucket.begin;
              here_[i] = Vector<S>(first + (part.begin - bucket.begin), part.size());
            },
            values_[i]);
      }
      f(part, here_);
      rest.begin = part.end;
    }
  }
  /// What the pass has updated goes back: it has gone through all of a source, or through everything.
  void store(Device& device) {
    if (buckets_) buckets_->store(device);
  }
  /// Call it before anything but a pass reads or writes the states, after a whole pass.
  void finish(Device& device) {
    if (buckets_) buckets_->finish(device);
  }

 private:
  std::vector<kernels::StateVector<M>> values_, here_;
  std::optional<HostBuckets> buckets_{};  // empty: kernels reach the states where they are
};

}  // namespace nanotron::optim
