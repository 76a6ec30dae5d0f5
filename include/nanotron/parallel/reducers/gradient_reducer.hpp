#pragma once

// Gradient all-reduce or reduce-scatter over the data-parallel group (dp x cp; experts: their own group), one reducer
// per section. The forward-backward schedule calls begin(source) and end(source) around each backward that adds to the
// gradients of a source (ParameterTable::sources); a complete unit is reduced while backward continues (Li et al.,
// "PyTorch Distributed", VLDB 2020). The result is stored as nn::ParameterLayouts::reduced says.
//
// The base class counts contributions, sums partial gradients over the tensor-parallel group, and passes complete units
// to the strategy. A strategy owns its buffers and its state between steps, with a folder and a row in strategies.cpp.

#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/model/layers/partial_gradients.hpp"

namespace nanotron::parallel {

/// Arguments of a strategy. The groups, model and device must outlive it.
template <class T>
struct ReducerContext {
  const deck::Config& config;  // resolved; read only in constructors
  const model::Transformer<T>& model;
  model::Section section;
  comm::DataGroups& groups;  // of the section
  model::Sharding sharding;
  Device& device;
  Arena& arena;  // planning or real

  index_t micro_batches() const {  // per rank in a step of global_batch_size
    return config.data.global_batch_size / config.parallel.dp / deck::sequences_at_once(config);
  }
};

/// When a unit is passed to the strategy as complete.
struct ReduceWhen {
  static constexpr index_t all_of_step = 0;
  index_t micro_batches = 1;  // after this many of them, or all_of_step
  bool end_apart = false;     // the last end's part of an embedding that both ends of the model use completes apart
};

/// State that a strategy keeps between steps; it is written to the checkpoint.
template <class M>
struct PersistentState {
  struct Values {
    std::string name;
    Vector<M> values;
  };
  std::string layout;        // in words, what the values depend on besides the grid; empty: no state
  std::uint64_t digest = 0;  // of the tensors: equal for the same shards of the same tensors at the same offsets
  std::vector<Values> values;
};

/// Every function is collective over the section's ranks. Sources are passed in the order of backward.
template <class T>
class GradientReducer {
 public:
  using M = master_t<T>;
  virtual ~GradientReducer() = default;

  /// Call it before the first of this many micro-batches of a step: zeroes the sums.
  void begin_step(index_t micro_batches);
  /// Call them before and after a backward adds to the gradient of a source.
  void begin(index_t source);
  void end(index_t source);
  /// Call it after backward_input, which has added to the 1-D parameters of a source. begin and end follow around
  /// backward_weight, with the micro-batches in the same order.
  void end_inputs(index_t source);
  /// Call it after the last micro-batch: returns when gradients are reduced (on a GPU: for work queued afterwards).
  void finish();

  /// Resets the state between steps: when a run begins, and when gradients were not finite and are not used.
  virtual void reset() {}
  virtual PersistentState<M> persistent_state() const { return {}; }
  comm::StepTraffic traffic() const;  // of the largest step
  /// Host seconds spent waiting since construction: communication that did not overlap.
  double exposed_seconds() const { return exposed_seconds_; }

 protected:
  GradientReducer(const ReducerContext<T>& context, const ReduceWhen& when);

  // Counts the host time of a scope as exposed communication.
  class Exposed {
   public:
    explicit Exposed(GradientReducer& r)
        : reducer_(r), region_(r.device_->timers(), "gradient reduction, exposed"), begin_(wall_seconds()) {}
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
  index_t micro_batches() const { return micro_batches_; }  // of this step; before the first, of the largest
  const model::PartialGradients<T>& partial() const { return partial_; }
  /// number: of a unit, or table().units.size(), a part of that of the embedding (ReduceWhen::end_apart).
  const model::Unit& unit(index_t number) const { return table().unit(unit_of(number)); }
  index_t unit_of(index_t number) const { return is_end(number) ? table().embedding_unit() : number; }
  bool is_end(index_t number) const { return number == static_cast<index_t>(table().units.size()); }
  index_t uses_of(index_t number) const;  // how often backward of a micro-batch adds to it
  /// A range of the flat gradient buffer, where gradients are not sharded.
  Vector<M> gradient(const Range& flat) const;
  /// Zeroes the section's gradients in the buffer, stored as `layout` says.
  void clear(const nn::BufferLayout& layout) const;

 private:
  virtual void start_step() = 0;
  /// Called before each backward that adds to a unit; before the first one since the unit was complete.
  virtual void before_use(index_t) {}
  virtual void before_first_use(index_t) {}
  virtual void after_use(index_t) {}
  virtual void after_inputs(index_t) {}
  /// The unit's gradient is complete on this rank, partial gradients summed over the tensor-parallel group.
  virtual void completed(index_t number) = 0;
  /// Called after the last micro-batch and complete_1d().
  virtual void finish_step() = 0;
  /// Completes the gradients of 1-D parameters on this rank; a strategy may override how.
  virtual void complete_1d() { partial_.sum(section_.params_1d); }
  virtual comm::StepTraffic traffic_1d() const { return partial_.traffic(section_.params_1d); }
  /// Traffic of the reduction over the section's ranks.
  virtual comm::StepTraffic strategy_traffic() const = 0;

  index_t number_of(index_t source) const, until_complete() const;  // the latter in micro-batches
  const model::Transformer<T>* model_;
  model::Section section_;
  model::Sharding sharding_;
  comm::DataGroups* groups_;
  Device* device_;
  bool overlap_;
  index_t micro_batches_;
  ReduceWhen when_;
  model::PartialGradients<T> partial_;
  std::vector<index_t> added_;  // by number: backwards that added to it since it was complete
  double exposed_seconds_ = 0.0;
};

}  // namespace nanotron::parallel
