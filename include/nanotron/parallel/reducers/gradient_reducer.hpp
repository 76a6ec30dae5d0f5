#pragma once

// Gradients reduced over the ranks that hold the same parameters, a section at a time. Whoever drives backward says
// when it is about to add to the gradients of a source (ParameterTable::sources) and when it has; what is complete is
// sent off while backward goes on (Li et al., "PyTorch Distributed", VLDB 2020). Where the sum ends up is the
// strategy's: nn::ParameterLayouts::reduced.
//
// The base counts what backward adds, sums the parts of tensor-parallel ranks, and hands completed units to the
// strategy, which owns all else: its memory, its bytes, what it carries from step to step. One folder and one row of
// strategies.cpp each.

#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/model/partial_gradients.hpp"

namespace nanotron::parallel {

/// What a strategy works on. All but the arena must outlive it.
template <class T>
struct ReducerContext {
  const deck::Config& config;  // resolved; only read in constructors
  const model::Transformer<T>& model;
  model::Section section;
  comm::DataGroups& groups;    // of the section
  model::Sharding sharding;
  Device& device;
  Arena& arena;                // planning or real

  index_t micro_batches() const {  // of a step
    return config.data.global_batch_size / config.parallel.dp / config.data.micro_batch_size;
  }
};

/// When a strategy takes a unit for complete.
struct Completion {
  index_t micro_batches = 1;  // after so many of them
  bool head_apart = false;    // where head and embedding share a unit, the head on its own: number table.units.size()
};

/// What a strategy carries from step to step, for the checkpoint.
template <class M>
struct CarriedState {
  struct Values {
    std::string name;
    Vector<M> values;
  };
  std::string layout;        // in words, what the values depend on besides the grid; empty: nothing is carried
  std::uint64_t digest = 0;  // of the tensors, equal for the same parts of the same tensors in the same places
  std::vector<Values> values;
};

/// Every function is collective over the section's ranks; sources are told in the order of backward.
template <class T>
class GradientReducer {
 public:
  using M = master_t<T>;
  virtual ~GradientReducer() = default;

  /// Before the first micro-batch: sums start at zero.
  void begin_step();
  /// Backward is about to add to the gradient of a source, and has added.
  void begin(index_t source);
  void end(index_t source);
  /// Backward in two parts has added to the 1-D parameters of a source; its matrices are begun and ended later,
  /// micro-batches in the same order.
  void end_inputs(index_t source);
  /// After the last micro-batch: returns when the sums are there (on a GPU: when work queued afterwards sees them).
  void finish();

  /// The sums were not finite and are not used, or a run begins: what is carried from step to step starts anew.
  virtual void reset() {}
  virtual CarriedState<M> carried() const { return {}; }
  /// Of one step.
  comm::StepTraffic traffic() const;
  /// Host seconds spent waiting, since construction: communication that was not hidden.
  double exposed_seconds() const { return exposed_seconds_; }

 protected:
  GradientReducer(const ReducerContext<T>& context, const Completion& completion);

  // A scope whose host time is exposed communication.
  class Exposed {
   public:
    explicit Exposed(GradientReducer& r)
        : reducer_(r), region_(r.device_->timers(), "gradient sum, exposed"), begin_(wall_seconds()) {}
    ~Exposed() { reducer_.exposed_seconds_ += wall_seconds() - begin_; }
    Exposed(const Exposed&) = delete;
    Exposed& operator=(const Exposed&) = delete;

   private:
    GradientReducer& reducer_;
    Region region_;
    double begin_;
  };

  const model::Transformer<T>& model() const { return *model_; }
  const model::ParameterTable& table() const { return model_->table(); }
  const model::Section& section() const { return section_; }
  const model::Sharding& sharding() const { return sharding_; }
  comm::DataGroups& groups() const { return *groups_; }
  comm::Group& data() const { return groups_->data; }
  Device& device() const { return *device_; }
  bool overlap() const { return overlap_; }
  index_t micro_batches() const { return micro_batches_; }  // of a step
  const model::PartialGradients<T>& partial() const { return partial_; }
  /// Number of a unit, or of the head apart.
  const model::Unit& unit(index_t number) const { return table().unit(is_head(number) ? table().head_unit() : number); }
  bool is_head(index_t number) const { return number == static_cast<index_t>(table().units.size()); }
  /// Of the flat gradient, where nothing of it is sharded.
  Vector<M> gradient(const Range& flat) const {
    return Vector<M>(model_->parameters().gradient.data() + flat.begin, flat.size());
  }
  /// Fills with zero what the buffer has, as `place` says, of the section.
  void clear(const nn::BufferLayout& place) const;

 private:
  virtual void start_step() = 0;
  /// Each use of a unit, and the first one since it was completed.
  virtual void before_use(index_t) {}
  virtual void before_first_use(index_t) {}
  virtual void after_use(index_t) {}
  virtual void after_inputs(index_t) {}
  /// Its gradient is complete on this rank, the parts of tensor-parallel ranks summed.
  virtual void completed(index_t number) = 0;
  /// After the last micro-batch; the 1-D parameters are complete on this rank as completed units are.
  virtual void finish_step() = 0;
  /// Completes the 1-D parameters; of a strategy that collects them differently its own.
  virtual void complete_vectors() { partial_.sum(section_.vectors); }
  virtual comm::StepTraffic vectors_traffic() const { return partial_.traffic(section_.vectors); }
  /// Over the ranks that hold the section.
  virtual comm::StepTraffic strategy_traffic() const = 0;

  index_t number_of(index_t source) const;

  const model::Transformer<T>* model_;
  model::Section section_;
  model::Sharding sharding_;
  comm::DataGroups* groups_;
  Device* device_;
  bool overlap_;
  index_t micro_batches_;
  Completion completion_;
  model::PartialGradients<T> partial_;
  std::vector<index_t> added_;  // of each unit, and of the head apart, since it was completed
  double exposed_seconds_ = 0.0;
};

}  // namespace nanotron::parallel
