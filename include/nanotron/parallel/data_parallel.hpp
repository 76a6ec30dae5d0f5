#pragma once

// Sums gradients over the replicas while backward still runs (Li et al., "PyTorch Distributed", VLDB 2020):
// the flat gradient buffer is cut into buckets, and a bucket is sent off once everything in it is final.
// Backward completes the buffer from its end to its beginning, so "final" is one number: all behind it is.

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::parallel {

struct BucketRule {
  double megabytes = 25.0;  // MiB of one bucket
  bool overlap = true;      // false: everything is sent by finish()
};

template <class M>
class DataParallel {
 public:
  /// gradient: the flat buffer; one and the same length on every rank of the group.
  DataParallel(comm::Group& replicas, Device& device, Vector<M> gradient, const BucketRule& rule);

  /// Elements at and behind `begin` are final in this step. Starts the buckets that lie there and moves the
  /// running ones forward. Call in the order of backward; collective.
  void ready(index_t begin);

  /// Everything is final: returns when the whole buffer is summed (on a GPU: when work queued afterwards
  /// sees the sum). Collective.
  void finish();

  index_t buckets() const { return static_cast<index_t>(running_.size()); }
  /// Host seconds that finish() waited, since construction: communication that was not hidden.
  double exposed_seconds() const { return exposed_seconds_; }

 private:
  void start_next();

  comm::Group* replicas_;
  Device* device_;
  Vector<M> gradient_;
  bool overlap_;
  index_t bucket_;                      // elements
  index_t unsent_;                      // elements [0, unsent_) have not been sent off in this step
  std::vector<comm::Request> running_;  // by bucket, from the end of the buffer
  std::size_t started_ = 0;
  std::size_t done_ = 0;
  double exposed_seconds_ = 0.0;
};

}  // namespace nanotron::parallel
