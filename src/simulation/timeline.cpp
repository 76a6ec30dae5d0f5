#include "nanotron/simulation/timeline.hpp"

#include <algorithm>
#include <map>

#include "nanotron/base/error.hpp"

namespace nanotron::simulation {
namespace {

constexpr double unknown = -1.0;

Share share_of(comm::GroupKind group) {
  switch (group) {
    case comm::GroupKind::tp:
      return Share::tensor_parallel;
    case comm::GroupKind::cp:
      return Share::context_parallel;
    case comm::GroupKind::ep:
      return Share::expert_parallel;
    case comm::GroupKind::pp:
    case comm::GroupKind::embedding:
      return Share::pipeline;
    default:
      return Share::data_parallel;
  }
}

Share share_of(std::string_view kernel) {
  return kernel.starts_with("gemm")                                         ? Share::gemm
         : kernel.starts_with("attention") || kernel.starts_with("softmax") ? Share::attention
                                                                            : Share::kernels;
}

// One message between neighbours of the pipeline.
struct Message {
  double sent = unknown, posted = unknown, seconds = 0.0;
  bool is_matched() const { return sent != unknown && posted != unknown; }
  double end() const { return std::max(sent, posted) + seconds; }
};

// Messages of one direction and lane out of one rank, in their order.
struct Mailbox {
  std::vector<Message> messages;
  std::size_t sent = 0, posted = 0;
  Message& at(std::size_t i) {
    if (messages.size() <= i) messages.resize(i + 1);
    return messages[i];
  }
};

struct Ticket {
  double end = 0.0;
  Mailbox* mailbox = nullptr;  // of a message; else end is known
  std::size_t message = 0;
  Share share = Share::data_parallel;
};

class Pipeline {
 public:
  Pipeline(const std::vector<RankWork>& ranks, const TimelineRules& rules) : rules_(rules), players_(ranks.size()) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      players_[r].work = &ranks[r];
      for (const WorkRow& row : ranks[r].list->rows()) players_[r].share_of_row.push_back(share_of(row.kernel));
    }
  }

  std::vector<RankTimes> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < players_.size(); ++r) moved = play(r) || moved;
    }
    double end = 0.0;
    for (std::size_t r = 0; r < players_.size(); ++r) {
      NANOTRON_REQUIRE(players_[r].at == players_[r].work->list->events().size(),
                       "rank {} of the pipeline waits forever after {} events", r, players_[r].at);
      end = std::max(end, players_[r].now);
    }
    std::vector<RankTimes> times;
    for (Player& p : players_) {
      p.seconds[static_cast<std::size_t>(Share::pipeline)] += end - p.now;
      times.push_back({p.seconds, p.now});
    }
    return times;
  }

 private:
  struct Player {
    const RankWork* work = nullptr;
    std::vector<Share> share_of_row;
    std::size_t at = 0;
    double now = 0.0, in_flight_until = 0.0;
    std::array<double, 2> free{};  // when a level of the network is
    std::vector<Ticket> tickets;
    std::size_t finished = 0;  // tickets before this one are waited for
    std::map<std::pair<bool, int>, Mailbox> out;
    Seconds seconds{};
  };

  // Runs events until a message is missing; whether any ran.
  bool play(std::size_t r) {
    Player& p = players_[r];
    const std::vector<StepEvent>& events = p.work->list->events();
    const std::size_t before = p.at;
    for (; p.at < events.size(); ++p.at) {
      const StepEvent& event = events[p.at];
      switch (event.kind) {
        case StepEvent::Kind::kernel:
          run_kernel(p, event.index);
          break;
        case StepEvent::Kind::start:
          start(r, p, event.index);
          break;
        case StepEvent::Kind::wait:
          if (!wait(p, p.tickets[event.index - 1])) return p.at > before;
          break;
        case StepEvent::Kind::finish:
          for (; p.finished < p.tickets.size(); ++p.finished) {
            if (!wait(p, p.tickets[p.finished])) return p.at > before;
          }
      }
    }
    return p.at > before;
  }

  void run_kernel(Player& p, std::uint32_t row) const {
    const double work = p.work->kernels[row], kept = 1.0 - rules_.collective_share;
    const double beside = std::min(work, std::max(0.0, p.in_flight_until - p.now) * kept);
    const double lost = beside * rules_.collective_share / kept;
    p.now += work + lost;
    p.seconds[static_cast<std::size_t>(p.share_of_row[row])] += work;
    p.seconds[static_cast<std::size_t>(Share::beside_collectives)] += lost;
  }

  void start(std::size_t r, Player& p, std::uint32_t index) {
    const comm::PlannedOperation& operation = p.work->list->operations()[index];
    const OperationTime& time = p.work->operations[index];
    const Share share = share_of(operation.group);
    const bool is_message =
        operation.operation == comm::Operation::send || operation.operation == comm::Operation::receive;
    if (is_message && operation.group == comm::GroupKind::pp) return start_message(r, p, operation, time);
    double& free = p.free[static_cast<std::size_t>(time.level)];
    // A ring in which all ranks send and receive alike: the receive takes the time, the send is beside it.
    const double seconds = operation.operation == comm::Operation::send ? 0.0 : time.seconds;
    const double end = std::max(p.now, free) + seconds;
    free = end;
    const bool blocks = !rules_.overlaps || (share == Share::tensor_parallel && !rules_.overlaps_tensor_parallel);
    p.tickets.push_back({.end = end, .share = share});
    if (blocks) {
      wait(p, p.tickets.back());
    } else {
      p.in_flight_until = std::max(p.in_flight_until, end);
    }
  }

  void start_message(std::size_t r, Player& p, const comm::PlannedOperation& operation, const OperationTime& time) {
    const bool sends = operation.operation == comm::Operation::send;
    const std::size_t other = (operation.to_next ? r + 1 : r + players_.size() - 1) % players_.size();
    // Out of the sender, to its next rank or its previous one.
    Mailbox& box =
        sends ? p.out[{operation.to_next, operation.lane}] : players_[other].out[{!operation.to_next, operation.lane}];
    const std::size_t number = sends ? box.sent++ : box.posted++;
    Message& message = box.at(number);
    (sends ? message.sent : message.posted) = p.now;
    message.seconds = time.seconds;
    p.tickets.push_back({.mailbox = &box, .message = number, .share = Share::pipeline});
  }

  static bool wait(Player& p, const Ticket& ticket) {
    double end = ticket.end;
    if (ticket.mailbox != nullptr) {
      const Message& message = ticket.mailbox->at(ticket.message);
      if (!message.is_matched()) return false;
      end = message.end();
    }
    if (end > p.now) {
      p.seconds[static_cast<std::size_t>(ticket.share)] += end - p.now;
      p.now = end;
    }
    return true;
  }

  TimelineRules rules_;
  std::vector<Player> players_;
};

}  // namespace

std::string_view name_of(Share share) {
  constexpr std::array<std::string_view, shares> names{
      "GEMMs",       "attention",   "other kernels", "beside collectives", "tp, exposed", "cp, exposed",
      "ep, exposed", "dp, exposed", "pipeline"};
  return names[static_cast<std::size_t>(share)];
}

std::vector<RankTimes> simulate(const std::vector<RankWork>& pipeline, const TimelineRules& rules) {
  return Pipeline(pipeline, rules).run();
}

}  // namespace nanotron::simulation
