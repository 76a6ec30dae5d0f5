#pragma once

// Executes a pipeline schedule. Per action: wait for its input (hidden states, or their gradient in backward), compute,
// start the send of its output. The next input and the next gradient are received ahead of time, an input only if its
// slot is free; sends overlap the actions that follow.

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::parallel {

/// The virtual stages of this rank, called by Pipeline. dx: gradient of a virtual stage's output on entry, of its input
/// on return; the last stage only writes it.
template <class T>
class PipelineStages {
 public:
  virtual ~PipelineStages() = default;

  virtual Matrix<T> input(index_t virtual_stage, index_t slot) = 0;
  virtual Matrix<T> output(index_t virtual_stage, index_t slot) = 0;
  /// i in [0, gradient_buffers(schedule, rank)).
  virtual Matrix<T> gradient_buffer(index_t i) = 0;

  /// Queues what forward() needs besides its input. Called before a wait for the input.
  virtual void prepare(index_t /*virtual_stage*/) {}
  virtual void forward(const Action& action, index_t slot) = 0;
  /// For Work::backward and Work::backward_input.
  virtual void backward(const Action& action, index_t slot, Matrix<T> dx) = 0;
  virtual void backward_weight(const Action& action, index_t slot) = 0;
};

/// Number of buffers for gradients of hidden states that `rank` needs.
index_t gradient_buffers(const PipelineSchedule& schedule, int rank);

template <class T>
class Pipeline {
 public:
  /// ranks: the pp group, of schedule.ranks ranks. ranks, stages and device must outlive it.
  Pipeline(const PipelineSchedule& schedule, comm::Group& ranks, PipelineStages<T>& stages, Device& device);

  /// All actions of the schedule; only its forwards. Collective over the group.
  void run() { execute(training_); }
  void run_forward() { execute(forwards_); }
  /// Runs forward, and backward, of one micro-batch through each of this rank's virtual stages, as run() and
  /// run_forward() do, with zeros instead of received data. cuBLASLt and cuDNN load code at the first use of a kernel:
  /// here, since loading may wait for the device, which in run() waits for other ranks.
  void compute_once() { compute_once(training_); }
  void compute_once_forward() { compute_once(forwards_); }
  /// What this rank sends in run().
  comm::StepTraffic traffic() const;

 private:
  struct Step {
    Action action;
    index_t slot;
  };
  struct Buffer {
    Matrix<T> memory;
    comm::Request sending;
  };
  struct Posted {
    std::size_t step = 0;  // that needs it
    comm::Request request;
    index_t buffer = -1;  // of a received gradient
    bool is_there = false;
  };

  void execute(const std::vector<Step>& steps);
  void compute_once(const std::vector<Step>& steps);
  void post_receives(const std::vector<Step>& steps, std::size_t from);
  void post(Posted& posted, const std::vector<Step>& steps, std::size_t step);
  void forward(const std::vector<Step>& steps, std::size_t at);
  void backward(const std::vector<Step>& steps, std::size_t at);
  index_t take_buffer();
  void wait(comm::Request& request);

  // Whether the action's input (in backward: the gradient of its output) comes from another rank.
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
  std::vector<std::vector<char>> is_busy_;           // slot holds a micro-batch; by virtual stage and slot
  std::vector<std::vector<index_t>> slot_of_;        // by virtual stage and micro-batch
  std::vector<Buffer> buffers_;
  std::vector<index_t> free_;  // buffers, whose sends may be under way, the oldest first
  std::vector<index_t>
      left_behind_;  // buffer with the gradient for this rank's preceding virtual stage, by micro-batch
  Posted input_, gradient_;
};

}  // namespace nanotron::parallel
