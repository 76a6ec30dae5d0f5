// No pipeline waits forever on streams: there the host runs ahead of its GPU, so it finds no send ended when it asks
// for a free buffer; a send ends only when it is received; and a receive begins after what its rank queued before it.
// What pipeline.cpp queues is written down here by rank and played.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <tuple>

#include "nanotron/parallel/pipeline/pipeline.hpp"

namespace nanotron::parallel {
namespace {

enum class Free { oldest_first, newest_first };  // of buffers whose sends are under way

// A way is (sender, receiver, direction round the ring, lane); a message is its number on the way.
using Way = std::tuple<int, int, bool, int>;
struct Message {
  Way way;
  index_t number = -1;
};
enum class Kind { send, receive, wait_sent, wait_received };
struct Operation {
  Kind kind;
  Message message;
};

// The operations of one rank, in the order of pipeline.cpp.
class Queue {
 public:
  Queue(const PipelineSchedule& schedule, int rank, Free order)
      : schedule_(schedule), rank_(rank), order_(order), actions_(schedule.actions[static_cast<std::size_t>(rank)]) {
    const Slots slots = assign_slots(actions_, schedule.virtual_stages);
    slot_ = slots.of_action;
    for (index_t i = 0; i < gradient_buffers(schedule, rank); ++i) free_.push_back({});
    for (std::size_t i = 0; i < actions_.size(); ++i) run(i);
  }
  std::vector<Operation> operations;

 private:
  bool is_local(int from, int to) const { return schedule_.location_of(from).rank == schedule_.location_of(to).rank; }
  int stage_of(const Action& a) const { return schedule_.stage_of(rank_, a.virtual_stage); }
  bool receives(const Action& a) const {
    const int stage = stage_of(a);
    if (a.work == Work::forward) return stage > 0 && !is_local(stage - 1, stage);
    return is_gradient(a.work) && stage + 1 < schedule_.stages() && !is_local(stage, stage + 1);
  }
  bool sends(const Action& a) const {
    const int stage = stage_of(a);
    if (a.work == Work::forward) return stage + 1 < schedule_.stages() && !is_local(stage, stage + 1);
    return is_gradient(a.work) && stage > 0 && !is_local(stage - 1, stage);
  }
  bool is_upwards(int from, int to) const {
    return schedule_.placement == Placement::loop ? to > from
                                                  : schedule_.location_of(to).rank > schedule_.location_of(from).rank;
  }
  Message next_message(Kind kind, int from, int to, int lane) {
    const Way way{schedule_.location_of(from).rank, schedule_.location_of(to).rank, is_upwards(from, to), lane};
    const Message message{way, counts_[{kind, way}]++};
    operations.push_back({kind, message});
    return message;
  }
  void wait(Kind kind, const Message& message) {
    if (message.number >= 0) operations.push_back({kind, message});
  }
  void take_buffer() {
    ASSERT_FALSE(free_.empty());
    const auto idle = std::ranges::find_if(free_, [](const Message& m) { return m.number < 0; });
    const auto taken = idle != free_.end() ? idle : order_ == Free::oldest_first ? free_.begin() : free_.end() - 1;
    wait(Kind::wait_sent, *taken);
    free_.erase(taken);
  }
  void post_receives(std::size_t from) {
    bool input_done = input_.number >= 0, gradient_done = gradient_.number >= 0;
    for (std::size_t i = from; i < actions_.size() && !(input_done && gradient_done); ++i) {
      const Action& a = actions_[i];
      const int stage = stage_of(a);
      if (!receives(a)) continue;
      if (a.work == Work::forward && !input_done) {
        input_done = true;
        if (!is_busy_[{a.virtual_stage, slot_[i]}]) input_ = next_message(Kind::receive, stage - 1, stage, 0);
      } else if (a.work != Work::forward && !gradient_done) {
        gradient_done = true;
        take_buffer();
        gradient_ = next_message(Kind::receive, stage + 1, stage, 1);
      }
    }
  }
  void run(std::size_t i) {
    const Action& a = actions_[i];
    const int stage = stage_of(a);
    const std::pair place{a.virtual_stage, slot_[i]};
    post_receives(i);
    if (a.work == Work::forward) {
      if (receives(a)) wait(Kind::wait_received, std::exchange(input_, {}));
      is_busy_[place] = true;
      wait(Kind::wait_sent, sending_[place]);
      if (sends(a)) sending_[place] = next_message(Kind::send, stage, stage + 1, 0);
    } else if (is_gradient(a.work)) {
      if (receives(a)) {
        wait(Kind::wait_received, std::exchange(gradient_, {}));
      } else if (stage + 1 == schedule_.stages()) {
        take_buffer();
      }
      wait(Kind::wait_sent, sending_[place]);
      if (stage == 0 || !is_local(stage - 1, stage)) free_.push_back({});
      if (sends(a)) free_.back() = next_message(Kind::send, stage, stage - 1, 1);
    }
    if (a.work == Work::backward || a.work == Work::backward_weight) is_busy_[place] = false;
  }

  const PipelineSchedule& schedule_;
  int rank_;
  Free order_;
  const std::vector<Action>& actions_;
  std::vector<index_t> slot_;
  std::deque<Message> free_;  // the last send of each free buffer
  std::map<std::pair<index_t, index_t>, Message> sending_;
  std::map<std::pair<index_t, index_t>, bool> is_busy_;
  std::map<std::pair<Kind, Way>, index_t> counts_;
  Message input_, gradient_;
};

// Whether all ranks get to the end.
bool ends(const PipelineSchedule& schedule, Free order) {
  std::vector<std::vector<Operation>> queues;
  for (int rank = 0; rank < schedule.ranks; ++rank) queues.push_back(Queue(schedule, rank, order).operations);
  std::vector<std::size_t> at(queues.size(), 0);
  std::map<std::pair<Kind, Way>, index_t> begun;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < queues.size(); ++rank) {
      for (; at[rank] < queues[rank].size(); ++at[rank], moved = true) {
        const auto& [kind, message] = queues[rank][at[rank]];
        if (kind == Kind::send || kind == Kind::receive) {
          ++begun[{kind, message.way}];
        } else if (begun[{Kind::send, message.way}] <= message.number ||
                   begun[{Kind::receive, message.way}] <= message.number) {
          break;
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < queues.size(); ++rank) {
    if (at[rank] < queues[rank].size()) return false;
  }
  return true;
}

struct Case {
  deck::PpSchedule schedule;
  int virtual_stages;
};
const std::vector<Case> cases{{deck::PpSchedule::gpipe, 1},
                              {deck::PpSchedule::one_f_one_b, 1},
                              {deck::PpSchedule::interleaved_1f1b, 2},
                              {deck::PpSchedule::interleaved_1f1b, 3},
                              {deck::PpSchedule::interleaved_1f1b, 4},
                              {deck::PpSchedule::zero_bubble, 2}};

TEST(PipelineWaits, EndInEverySchedule) {
  for (const auto& [schedule, virtual_stages] : cases) {
    for (int ranks = 2; ranks <= 9; ++ranks) {
      for (const index_t m : {1, 2, 3, 5, 8, 13, 21, 34}) {
        EXPECT_TRUE(ends(make_schedule(schedule, ranks, virtual_stages, m), Free::oldest_first))
            << static_cast<int>(schedule) << " ranks " << ranks << " virtual stages " << virtual_stages << " m " << m;
      }
    }
  }
}

TEST(PipelineWaits, WouldNotEndForTheNewestSend) {
  EXPECT_FALSE(ends(make_schedule(deck::PpSchedule::interleaved_1f1b, 2, 2, 8), Free::newest_first));
}

}  // namespace
}  // namespace nanotron::parallel
