#pragma once

// Works off a pipeline schedule: receives what an action needs, has it done, sends on what comes out. Receives are
// posted one action ahead where their buffer is free, sends run behind what follows.

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/step_traffic.hpp"
#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::parallel {

/// What a pipeline drives: the virtual stages of this rank. dx: gradient of a virtual stage's output on entry, of its
/// input on return; for the last stage it is only written.
template <class T>
class PipelineStages {
 public:
  virtual ~PipelineStages() = default;

  virtual Matrix<T> input(index_t virtual_stage, index_t slot) = 0;
  virtual Matrix<T> output(index_t virtual_stage, index_t slot) = 0;
  /// i < gradient_buffers(schedule, rank).
  virtual Matrix<T> gradient_buffer(index_t i) = 0;

  virtual void forward(const Action& action, index_t slot) = 0;
  /// backward and backward_input.
  virtual void backward(const Action& action, index_t slot, Matrix<T> dx) = 0;
  virtual void backward_weight(const Action& action, index_t slot) = 0;
};

/// Buffers for gradients of the residual stream that rank needs.
index_t gradient_buffers(const PipelineSchedule& schedule, int rank);

template <class T>
class Pipeline {
 public:
  /// stages of the group `ranks`, as many as the schedule's. All references must outlive it.
  Pipeline(const PipelineSchedule& schedule, comm::Group& ranks, PipelineStages<T>& stages, Device& device);

  /// All actions of the schedule; its forwards alone. Collective over the group.
  void run() { work_off(training_); }
  void run_forward() { work_off(forwards_); }
  /// Of run(): what this rank sends.
  comm::StepTraffic traffic() const;

 private:
  struct Step {
    Action action;
    index_t slot;
  };
  struct Buffer {
    Matrix<T> memory;
    comm::Request sending;
    bool is_taken = false;
  };
  struct Posted {
    std::size_t step = 0;  // for which it is
    comm::Request request;
    index_t buffer = -1;  // of a gradient
    bool is_there = false;
  };

  void work_off(const std::vector<Step>& steps);
  void post_receives(const std::vector<Step>& steps, std::size_t from);
  void post(Posted& posted, const std::vector<Step>& steps, std::size_t step);
  void forward(const std::vector<Step>& steps, std::size_t at);
  void backward(const std::vector<Step>& steps, std::size_t at);
  index_t take_buffer();
  void wait(comm::Request& request);

  // Whether the action's input, or its gradient, comes from another rank.
  bool receives(const Action& action) const;
  bool sends(const Action& action) const;
  bool is_local(int from, int to) const;
  comm::Neighbour towards(int from, int to) const;
  int stage_of(const Action& action) const { return schedule_.stage_of(rank_, action.virtual_stage); }
  comm::Request& output_sending(const Action& action, index_t slot) {
    return sending_[static_cast<std::size_t>(action.virtual_stage)][static_cast<std::size_t>(slot)];
  }

  PipelineSchedule schedule_;
  comm::Group* ranks_;
  PipelineStages<T>* stages_;
  Device* device_;
  int rank_;
  std::vector<Step> training_, forwards_;
  std::vector<std::vector<comm::Request>> sending_;  // outputs, by virtual stage and slot
  std::vector<std::vector<char>> is_busy_;           // slots with a micro-batch, by virtual stage and slot
  std::vector<std::vector<index_t>> slot_of_;        // by virtual stage and micro-batch
  std::vector<Buffer> buffers_;
  std::vector<index_t>
      left_behind_;  // buffer with the gradient for the other virtual stage of this rank, by micro-batch
  Posted input_, gradient_;
};

}  // namespace nanotron::parallel
