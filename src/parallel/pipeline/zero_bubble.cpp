// The zero-bubble V schedule (ZB-V) by greedy simulation in units of time. A free rank takes the first that is ready of
//
//   1. backward_input, since other ranks wait for it
//   2. forward, if there is memory for its activations
//   3. backward_weight, for which no rank waits
//
// and virtual stage 1, closer to the loss, before 0. Memory per rank is that of rank 0 in 1F1B: 2p activations of a
// virtual stage on p ranks. Of these, `reserve` are kept for virtual stage 1; the value with the shortest step wins.

#include "parallel/pipeline/zero_bubble.hpp"

#include <algorithm>
#include <array>

namespace nanotron::parallel {
namespace {

constexpr index_t never = -1;

class Greedy {
 public:
  Greedy(const PipelineSchedule& shape, index_t reserve)
      : shape_(shape),
        memory_(2 * shape.ranks),
        reserve_(reserve),
        ranks_(static_cast<std::size_t>(shape.ranks)),
        output_(static_cast<std::size_t>(shape.stages()),
                std::vector<index_t>(static_cast<std::size_t>(shape.micro_batches), never)),
        gradient_(output_) {}

  /// Length of the step; `never` when it deadlocks.
  index_t run() {
    const auto all = static_cast<std::size_t>(6 * shape_.micro_batches);
    for (index_t time = 0, idle = 0; idle <= shape_.stages(); ++time) {
      bool done = true, moved = false;
      for (int rank = 0; rank < shape_.ranks; ++rank) {
        const std::size_t before = actions(rank).size();
        take(rank, time);
        moved = moved || actions(rank).size() > before;
        done = done && actions(rank).size() == all;
      }
      if (done) return time + 1;
      idle = moved ? 0 : idle + 1;
    }
    return never;
  }

  std::vector<std::vector<Action>> lists() const {
    std::vector<std::vector<Action>> lists;
    for (const Rank& rank : ranks_) lists.push_back(rank.actions);
    return lists;
  }

 private:
  struct Rank {
    std::vector<Action> actions;
    std::array<index_t, 2> forward{}, input{}, weight{};  // by virtual stage: next micro-batch of each kind of work
    index_t alive = 0;                                    // activations stored
  };

  std::vector<Action>& actions(int rank) { return ranks_[static_cast<std::size_t>(rank)].actions; }

  static bool is_there(index_t when, index_t time) { return when != never && when <= time; }

  bool can_forward(int rank, index_t virtual_stage, index_t time) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    const index_t m = r.forward[static_cast<std::size_t>(virtual_stage)];
    if (m == shape_.micro_batches || r.alive >= memory_ - (virtual_stage == 0 ? reserve_ : 0)) return false;
    const int stage = shape_.stage_of(rank, virtual_stage);
    return stage == 0 || is_there(output_[static_cast<std::size_t>(stage - 1)][static_cast<std::size_t>(m)], time);
  }

  bool can_input(int rank, index_t virtual_stage, index_t time) const {
    const index_t m = ranks_[static_cast<std::size_t>(rank)].input[static_cast<std::size_t>(virtual_stage)];
    if (m == shape_.micro_batches) return false;
    const auto stage = static_cast<std::size_t>(shape_.stage_of(rank, virtual_stage));
    const auto at = static_cast<std::size_t>(m);
    return is_there(output_[stage][at], time) &&
           (stage + 1 == output_.size() || is_there(gradient_[stage + 1][at], time));
  }

  bool can_weight(int rank, index_t virtual_stage) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    return r.weight[static_cast<std::size_t>(virtual_stage)] < r.input[static_cast<std::size_t>(virtual_stage)];
  }

  void take(int rank, index_t time) {
    for (const index_t virtual_stage : {index_t{1}, index_t{0}}) {
      if (can_input(rank, virtual_stage, time)) return add(rank, Work::backward_input, virtual_stage, time);
    }
    for (const index_t virtual_stage : {index_t{1}, index_t{0}}) {
      if (can_forward(rank, virtual_stage, time)) return add(rank, Work::forward, virtual_stage, time);
    }
    for (const index_t virtual_stage : {index_t{1}, index_t{0}}) {
      if (can_weight(rank, virtual_stage)) return add(rank, Work::backward_weight, virtual_stage, time);
    }
  }

  void add(int rank, Work work, index_t virtual_stage, index_t time) {
    Rank& r = ranks_[static_cast<std::size_t>(rank)];
    const auto c = static_cast<std::size_t>(virtual_stage);
    const auto stage = static_cast<std::size_t>(shape_.stage_of(rank, virtual_stage));
    index_t& next = work == Work::forward ? r.forward[c] : work == Work::backward_input ? r.input[c] : r.weight[c];
    r.actions.push_back({work, virtual_stage, next});
    if (work == Work::forward) output_[stage][static_cast<std::size_t>(next)] = time + 1;
    if (work == Work::backward_input) gradient_[stage][static_cast<std::size_t>(next)] = time + 1;
    r.alive += work == Work::forward ? 1 : work == Work::backward_weight ? -1 : 0;
    ++next;
  }

  const PipelineSchedule& shape_;
  index_t memory_, reserve_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<index_t>> output_, gradient_;  // when it is ready; by stage and micro-batch
};

}  // namespace

std::vector<std::vector<Action>> zero_bubble_actions(const PipelineSchedule& shape) {
  std::vector<std::vector<Action>> best;
  index_t shortest = never;
  const index_t stride = std::max<index_t>(1, shape.ranks / 8);
  for (index_t reserve = 1; reserve < 2 * shape.ranks; reserve += stride) {
    Greedy greedy(shape, reserve);
    const index_t length = greedy.run();
    if (length == never || (shortest != never && length >= shortest)) continue;
    shortest = length;
    best = greedy.lists();
  }
  return best;
}

}  // namespace nanotron::parallel
