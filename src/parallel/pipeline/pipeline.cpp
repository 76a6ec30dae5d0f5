#include "nanotron/parallel/pipeline/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::parallel {
namespace {

// Two lanes, since messages of activations and of gradients may overtake each other.
constexpr int forward_lane = 0, gradient_lane = 1;

// NCCL begins its operations in the order in which a process launches them, whatever their streams (src/enqueue.cc of
// 2.30, launchOrder): a send after an unfinished one on its link blocks receives on other links. With groups of
// micro-batches that are not full, the ranks of a loop may wait for each other in a circle. (A planned group does not
// know by what a run moves its messages: 'mpi' has no such order.)
void require_no_circle(const PipelineSchedule& schedule, const comm::Group& ranks) {
  const bool is_interleaved = schedule.placement == Placement::loop && schedule.virtual_stages > 1;
  if (ranks.is_planned() || ranks.transport() != comm::Transport::nccl || !is_interleaved || ranks.size() < 3) return;
  if (schedule.micro_batches % ranks.size() == 0 || schedule.micro_batches < 2 * ranks.size()) return;
  fail(ExitCode::deck_error,
       {.what = "NCCL would deadlock in this pipeline schedule",
        .expected = fmt::format("with pp_schedule = 'interleaved_1f1b' a number of micro-batches that pp = {} divides",
                                ranks.size()),
        .found = fmt::format("{} micro-batches", schedule.micro_batches),
        .where = "data%global_batch_size, data%rampup_batch_size and rampup_increment, of each step",
        .change = "another batch or micro_batch_size, or pp_schedule = '1f1b'"});
}

}  // namespace

index_t gradient_buffers(const PipelineSchedule& schedule, int rank) {
  index_t held = 0, most = 0;  // gradients passed between two virtual stages of this rank
  for (const Action& a : schedule.actions[static_cast<std::size_t>(rank)]) {
    if (!is_gradient(a.work)) continue;
    const int stage = schedule.stage_of(rank, a.virtual_stage);
    if (stage + 1 < schedule.stages() && schedule.location_of(stage + 1).rank == rank) --held;
    if (stage > 0 && schedule.location_of(stage - 1).rank == rank) ++held;
    most = std::max(most, held);
  }
  return most + 3;  // in use by backward, posted receive, send in flight
}

template <class T>
Pipeline<T>::Pipeline(const PipelineSchedule& schedule, comm::Group& ranks, PipelineStages<T>& stages, Device& device)
    : schedule_(schedule),
      ranks_(&ranks),
      stages_(&stages),
      device_(&device),
      rank_(ranks.rank()),
      sending_(static_cast<std::size_t>(schedule.virtual_stages)),
      is_busy_(sending_.size()),
      slot_of_(sending_.size(), std::vector<index_t>(static_cast<std::size_t>(schedule.micro_batches))),
      buffers_(static_cast<std::size_t>(gradient_buffers(schedule, ranks.rank()))),
      left_behind_(static_cast<std::size_t>(schedule.micro_batches)) {
  require_no_circle(schedule, ranks);
  const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(rank_)];
  const Slots slots = assign_slots(actions, schedule.virtual_stages);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    training_.push_back({actions[i], slots.of_action[i]});
    if (actions[i].work == Work::forward) forwards_.push_back(training_.back());
  }
  for (std::size_t c = 0; c < sending_.size(); ++c) {
    sending_[c].resize(static_cast<std::size_t>(slots.of_stage[c]));
    is_busy_[c].resize(sending_[c].size());
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].memory = stages.gradient_buffer(static_cast<index_t>(i));
    free_.push_back(static_cast<index_t>(i));
  }
  ranks.open_messages();
}

template <class T>
bool Pipeline<T>::is_local(int from, int to) const {
  return schedule_.location_of(from).rank == schedule_.location_of(to).rank;
}

// With p = 2 both neighbours are the same rank, so the direction round the ring follows from the placement.
template <class T>
comm::Neighbour Pipeline<T>::towards(int from, int to) const {
  const bool up = schedule_.placement == Placement::loop ? to > from : schedule_.location_of(to).rank > rank_;
  return up ? comm::Neighbour::next : comm::Neighbour::previous;
}

template <class T>
bool Pipeline<T>::receives(const Action& action) const {
  const int stage = stage_of(action);
  if (action.work == Work::forward) return stage > 0 && !is_local(stage - 1, stage);
  return is_gradient(action.work) && stage + 1 < schedule_.stages() && !is_local(stage, stage + 1);
}

template <class T>
bool Pipeline<T>::sends(const Action& action) const {
  const int stage = stage_of(action);
  if (action.work == Work::forward) return stage + 1 < schedule_.stages() && !is_local(stage, stage + 1);
  return is_gradient(action.work) && stage > 0 && !is_local(stage - 1, stage);
}

template <class T>
comm::StepTraffic Pipeline<T>::traffic() const {
  comm::StepTraffic sum;
  for (const Step& step : training_) {
    const auto bytes = static_cast<index_t>(stages_->output(step.action.virtual_stage, step.slot).size() * sizeof(T));
    if (sends(step.action)) sum.pipeline += comm::message_bytes(bytes);
  }
  return sum;
}

template <class T>
void Pipeline<T>::wait(comm::Request& request) {
  const Region region(device_->timers(), "pipeline wait");
  request.wait();
}

// Where all sends are under way, the buffer of the oldest one: the neighbour may receive a later one only after what
// this rank is about to post.
template <class T>
index_t Pipeline<T>::take_buffer() {
  NANOTRON_REQUIRE(!free_.empty(), "{} gradient buffers are too few", buffers_.size());
  const auto sending = [&](index_t i) -> comm::Request& { return buffers_[static_cast<std::size_t>(i)].sending; };
  auto found = std::ranges::find_if(free_, [&](index_t i) { return sending(i).test(); });
  if (found == free_.end()) {
    found = free_.begin();
    wait(sending(*found));
  }
  const index_t taken = *found;
  free_.erase(found);
  return taken;
}

template <class T>
void Pipeline<T>::post(Posted& posted, const std::vector<Step>& steps, std::size_t step) {
  const Action& action = steps[step].action;
  const int stage = stage_of(action);
  const bool forward = action.work == Work::forward;
  if (!forward) posted.buffer = take_buffer();
  const Matrix<T> to = forward ? stages_->input(action.virtual_stage, steps[step].slot)
                               : buffers_[static_cast<std::size_t>(posted.buffer)].memory;
  posted.request =
      comm::start_receive(*ranks_, to.data(), elements_of(to), towards(stage, forward ? stage - 1 : stage + 1),
                          device_->stream(), forward ? forward_lane : gradient_lane);
  posted.step = step;
  posted.is_there = true;
}

// Posts the receives of the next input and the next gradient of steps [from, ...), unless the input's slot is in use.
template <class T>
void Pipeline<T>::post_receives(const std::vector<Step>& steps, std::size_t from) {
  bool input_done = input_.is_there, gradient_done = gradient_.is_there;
  for (std::size_t i = from; i < steps.size() && !(input_done && gradient_done); ++i) {
    const auto& [action, slot] = steps[i];
    if (!receives(action)) continue;
    if (action.work == Work::forward && !input_done) {
      input_done = true;
      if (!is_busy_[static_cast<std::size_t>(action.virtual_stage)][static_cast<std::size_t>(slot)])
        post(input_, steps, i);
    } else if (action.work != Work::forward && !gradient_done) {
      gradient_done = true;
      post(gradient_, steps, i);
    }
  }
}

template <class T>
void Pipeline<T>::forward(const std::vector<Step>& steps, std::size_t at) {
  const auto& [action, slot] = steps[at];
  const int stage = stage_of(action);
  const auto virtual_stage = static_cast<std::size_t>(action.virtual_stage),
             m = static_cast<std::size_t>(action.micro_batch);
  if (receives(action)) {
    NANOTRON_REQUIRE(input_.is_there && input_.step == at, "the input of action {} was not asked for", at);
    stages_->prepare(action.virtual_stage);
    wait(input_.request);
    input_.is_there = false;
  } else if (stage > 0) {
    kernels::copy_matrix<T>(*device_, stages_->output(action.virtual_stage - 1, slot_of_[virtual_stage - 1][m]),
                            stages_->input(action.virtual_stage, slot));
  }
  slot_of_[virtual_stage][m] = slot;
  is_busy_[virtual_stage][static_cast<std::size_t>(slot)] = 1;
  wait(output_sending(action, slot));
  stages_->forward(action, slot);
  if (!sends(action)) return;
  const Matrix<T> out = stages_->output(action.virtual_stage, slot);
  output_sending(action, slot) = comm::start_send(*ranks_, out.data(), elements_of(out), towards(stage, stage + 1),
                                                  device_->stream(), forward_lane);
}

template <class T>
void Pipeline<T>::backward(const std::vector<Step>& steps, std::size_t at) {
  const auto& [action, slot] = steps[at];
  const int stage = stage_of(action);
  const auto m = static_cast<std::size_t>(action.micro_batch);
  index_t taken = 0;
  if (receives(action)) {
    NANOTRON_REQUIRE(gradient_.is_there && gradient_.step == at, "the gradient of action {} was not asked for", at);
    wait(gradient_.request);
    gradient_.is_there = false;
    taken = gradient_.buffer;
  } else {
    taken = stage + 1 == schedule_.stages() ? take_buffer() : left_behind_[m];
  }
  Buffer& buffer = buffers_[static_cast<std::size_t>(taken)];
  wait(output_sending(action, slot));  // complete: the receiver's gradient has come back
  stages_->backward(action, slot, buffer.memory);
  if (stage > 0 && is_local(stage - 1, stage)) {
    left_behind_[m] = taken;
    return;
  }
  free_.push_back(taken);
  if (!sends(action)) return;
  buffer.sending = comm::start_send(*ranks_, buffer.memory.data(), elements_of(buffer.memory),
                                    towards(stage, stage - 1), device_->stream(), gradient_lane);
}

template <class T>
void Pipeline<T>::execute(const std::vector<Step>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& [action, slot] = steps[i];
    const auto virtual_stage = static_cast<std::size_t>(action.virtual_stage);
    post_receives(steps, i);
    if (action.work == Work::forward) forward(steps, i);
    if (is_gradient(action.work)) backward(steps, i);
    if (action.work == Work::backward_weight) stages_->backward_weight(action, slot);
    const bool ends = action.work == Work::backward || action.work == Work::backward_weight || &steps == &forwards_;
    if (ends) is_busy_[virtual_stage][static_cast<std::size_t>(slot)] = 0;
  }
  for (auto& virtual_stage : sending_) {
    for (comm::Request& request : virtual_stage) wait(request);
  }
  for (Buffer& buffer : buffers_) wait(buffer.sending);
}

template <class T>
void Pipeline<T>::compute_once(const std::vector<Step>& steps) {
  const auto zero = [&](Matrix<T> x) { kernels::fill<T>(*device_, flat(x), 0.0); };
  const Matrix<T> dx = buffers_.front().memory;
  zero(dx);
  for (const auto& [action, slot] : steps) {
    if (action.micro_batch != 0) continue;
    if (action.work == Work::forward) {
      zero(stages_->input(action.virtual_stage, slot));
      stages_->forward(action, slot);
    }
    if (is_gradient(action.work)) stages_->backward(action, slot, dx);
    if (action.work == Work::backward_weight) stages_->backward_weight(action, slot);
  }
}

NANOTRON_INSTANTIATE_CLASS(Pipeline)

}  // namespace nanotron::parallel
