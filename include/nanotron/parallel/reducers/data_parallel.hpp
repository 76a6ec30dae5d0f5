#pragma once

// Nothing sharded: the flat gradient buffer is cut into buckets, and a bucket is all-reduced once everything in it
// is final. Backward completes the buffer from its end to its beginning, so "final" is one number: all behind it is.

#include <vector>

#include "nanotron/parallel/reducers/gradient_sum.hpp"

namespace nanotron::parallel {

/// When buckets go off and come back; what is sent of one is the derived class's.
template <class T>
class BucketedSum : public GradientSum<T> {
 public:
  using M = master_t<T>;

  void begin_step() override;
  void begin(index_t) override {}
  void end(index_t unit) override;
  void finish() override;

 protected:
  BucketedSum(model::Transformer<T>& model, const model::Section& section, comm::Group& replicas, Device& device,
              const SumRule& rule);

  comm::Group& replicas() const { return *replicas_; }
  Device& device() const { return *device_; }
  Vector<M> gradient(const Range& bucket) const { return Vector<M>(gradient_.data() + bucket.begin, bucket.size()); }

 private:
  /// A bucket is final; it is sent off when as many more as lag() are, or at the end.
  virtual index_t lag() const { return 0; }
  virtual void prepare(const Range&) {}
  /// Sends a bucket of the gradient buffer off.
  virtual comm::Request start(const Range& bucket) = 0;
  /// Its request is complete.
  virtual void land(const Range& bucket) = 0;

  Range bucket(std::size_t number) const;
  void prepare_next();
  void start_next() { running_[started_] = start(bucket(started_)), ++started_; }
  void send_final();

  model::Transformer<T>* model_;
  comm::Group* replicas_;
  Device* device_;
  model::Section section_;
  Vector<M> gradient_;  // of the section
  UnitCount count_;
  std::vector<char> is_final_;          // by unit; a pipeline ends them in any order
  std::size_t not_final_;               // of the section's units, those in front of this have one that is not
  bool overlap_;
  index_t bucket_;                      // elements
  std::vector<comm::Request> running_;  // by bucket, from the end of the buffer
  std::size_t prepared_ = 0;
  std::size_t started_ = 0;
  std::size_t done_ = 0;
};

/// In the master type, in place.
template <class T>
class DataParallel final : public BucketedSum<T> {
 public:
  DataParallel(model::Transformer<T>& model, const model::Section& section, comm::Group& replicas, Device& device,
               const SumRule& rule)
      : BucketedSum<T>(model, section, replicas, device, rule) {}

 private:
  comm::Request start(const Range& bucket) override;
  void land(const Range&) override {}
};

/// Every rank's part rounded to bf16 on its way: half the bytes. Sums of one node are added in float and rounded once.
template <class T>
class RoundedSum final : public BucketedSum<T> {
 public:
  /// rounded: as many elements as the section has.
  RoundedSum(model::Transformer<T>& model, const model::Section& section, comm::Group& replicas, Device& device,
             const SumRule& rule, Vector<bf16> rounded)
      : BucketedSum<T>(model, section, replicas, device, rule), rounded_(rounded) {}

 private:
  Vector<bf16> part(const Range& bucket) const { return Vector<bf16>(rounded_.data() + bucket.begin, bucket.size()); }
  comm::Request start(const Range& bucket) override;
  void land(const Range& bucket) override;

  Vector<bf16> rounded_;
};

}  // namespace nanotron::parallel
