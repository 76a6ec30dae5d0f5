#pragma once

// Nothing sharded: the flat gradient buffer is cut into buckets, and a bucket is all-reduced once everything in it
// is final. Backward completes the buffer from its end to its beginning, so "final" is one number: all behind it is.

#include <vector>

#include "nanotron/parallel/gradient_sum.hpp"

namespace nanotron::parallel {

template <class T>
class DataParallel final : public GradientSum<T> {
 public:
  using M = master_t<T>;
  DataParallel(model::Transformer<T>& model, comm::Group& replicas, Device& device, const SumRule& rule);

  void begin_step() override;
  void begin(index_t) override {}
  void end(index_t unit) override;
  void finish() override;

 private:
  void send_final();
  void start_next();

  model::Transformer<T>* model_;
  comm::Group* replicas_;
  Device* device_;
  Vector<M> gradient_;
  UnitCount count_;
  std::vector<char> is_final_;          // by unit; a pipeline ends them in any order
  std::size_t not_final_;               // units [0, not_final_) have one that is not
  bool overlap_;
  index_t bucket_;                      // elements
  index_t unsent_;                      // elements [0, unsent_) have not been sent off in this step
  std::vector<comm::Request> running_;  // by bucket, from the end of the buffer
  std::size_t started_ = 0;
  std::size_t done_ = 0;
};

}  // namespace nanotron::parallel
