#include "nanotron/simulation/timeline.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "nanotron/base/error.hpp"
#include "simulation/activities.hpp"

namespace nanotron::simulation {
namespace {

Share share_of(comm::GroupKind group) {
  switch (group) {
    case comm::GroupKind::tp:
      return Share::tensor_parallel;
    case comm::GroupKind::cp:
    case comm::GroupKind::cp_all_to_all:
    case comm::GroupKind::cp_ring:
      return Share::context_parallel;
    case comm::GroupKind::ep:
    case comm::GroupKind::ep_across:
    case comm::GroupKind::ep_within:
      return Share::expert_parallel;
    case comm::GroupKind::to_host:
    case comm::GroupKind::from_host:
      return Share::host_memory;
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

// What a rank waits for. Of a list in its order.
struct Ticket {
  Share share;
  bool is_done = false, host_waits = false;
};

struct TicketOf {
  std::size_t rank, ticket;
};

// Kernels between two operations of a rank.
struct KernelRun {
  double begin = 0.0, work = 0.0;
  double launch = 0.0;  // > 0: the device waits for the host first
  Seconds of{};
};

struct Transfer {
  enum class Phase { matching, queued, latency, moving };
  Phase phase = Phase::matching;
  std::size_t from = 0, to = 0;  // ranks of the pipeline; equal: a collective, or a copy
  OperationTime time;
  comm::GroupKind group = comm::GroupKind::world;
  std::vector<TicketOf> tickets;  // of a message that of the sender and that of the receiver
  bool is_of_one() const { return from == to; }
  // Copy engines take no multiprocessors.
  bool slows_kernels() const {
    return is_of_one() && group != comm::GroupKind::to_host && group != comm::GroupKind::from_host;
  }
};

// Messages of one direction and lane out of one rank, in their order: those that wait for their other half.
struct Mailbox {
  std::deque<std::size_t> sent, posted;
};

struct Player {
  const RankWork* work = nullptr;
  std::vector<Share> share_of_row;
  std::size_t at = 0;  // event
  KernelRun kernels;
  double launched = 0.0;  // when the host has launched all before `at`
  bool computes = false, waits = false;
  double waits_since = 0.0;
  std::size_t waits_for = 0;  // ticket
  std::vector<Ticket> tickets;
  std::size_t finished = 0;  // tickets before this one are waited for
  int in_flight = 0;         // collectives
  std::map<comm::GroupKind, std::deque<std::size_t>> queues;
  std::map<std::pair<bool, int>, Mailbox> out;
  std::array<std::vector<std::size_t>, links> moving;  // transfers through its links
  Seconds seconds{};
  double end = 0.0;
};

class Timeline {
 public:
  Timeline(const std::vector<RankWork>& ranks, const TimelineRules& rules) : rules_(rules), players_(ranks.size()) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      players_[r].work = &ranks[r];
      for (const WorkRow& row : ranks[r].list->rows()) players_[r].share_of_row.push_back(share_of(row.kernel));
      activities_.add();  // the kernels of rank r are activity r
    }
  }

  std::vector<RankTimes> run() {
    for (std::size_t r = 0; r < players_.size(); ++r) play(r);
    while (const std::optional<std::size_t> ended = activities_.next()) {
      if (*ended < players_.size()) {
        end_kernels(*ended);
      } else {
        end_phase(*ended - players_.size());
      }
    }
    double end = 0.0;
    for (std::size_t r = 0; r < players_.size(); ++r) {
      NANOTRON_REQUIRE(is_at_end(players_[r]), "rank {} of the pipeline waits forever after {} events", r,
                       players_[r].at);
      end = std::max(end, players_[r].end);
    }
    std::vector<RankTimes> times;
    for (Player& p : players_) {
      p.seconds[static_cast<std::size_t>(Share::pipeline)] += end - p.end;
      times.push_back({p.seconds, p.end});
    }
    return times;
  }

 private:
  static bool is_at_end(const Player& p) { return p.at == p.work->list->events().size() && !p.computes; }
  double now() const { return activities_.now(); }

  // Continues with the list until kernels run or a ticket is waited for.
  void play(std::size_t r) {
    Player& p = players_[r];
    const std::vector<StepEvent>& events = p.work->list->events();
    while (p.at < events.size()) {
      const StepEvent& event = events[p.at];
      if (event.kind == StepEvent::Kind::kernel) return run_kernels(r);
      if (event.kind == StepEvent::Kind::start) {
        ++p.at;
        p.launched += rules_.launch_seconds;
        start(r, event.index);
        if (p.waits) return;
      } else if (event.kind == StepEvent::Kind::wait) {
        if (!has_ended(p, event.index - 1)) return;
        if (p.tickets[event.index - 1].host_waits) p.launched = std::max(p.launched, now());
        ++p.at;
      } else {
        while (p.finished < p.tickets.size()) {
          if (!has_ended(p, p.finished)) return;
          ++p.finished;
        }
        ++p.at;
      }
    }
    p.end = now();
  }

  // If not, the rank waits for it.
  bool has_ended(Player& p, std::size_t ticket) const {
    if (p.tickets[ticket].is_done) return true;
    p.waits = true;
    p.waits_since = now();
    p.waits_for = ticket;
    return false;
  }

  void end_ticket(const TicketOf& of) {
    Player& p = players_[of.rank];
    p.tickets[of.ticket].is_done = true;
    if (!p.waits || p.waits_for != of.ticket) return;
    p.waits = false;
    p.seconds[static_cast<std::size_t>(p.tickets[of.ticket].share)] += now() - p.waits_since;
    play(of.rank);
  }

  void run_kernels(std::size_t r) {
    Player& p = players_[r];
    const std::vector<StepEvent>& events = p.work->list->events();
    p.kernels = {};
    do {
      const std::uint32_t row = events[p.at++].index;
      const Share share = p.share_of_row[row];
      const double seconds = p.work->kernels[row], more = share == Share::kernels ? 0.0 : rules_.slowest * seconds;
      p.kernels.work += seconds + more;
      p.kernels.of[static_cast<std::size_t>(share)] += seconds;
      p.kernels.of[static_cast<std::size_t>(Share::slowest)] += more;
      if (rules_.launch_seconds > 0.0) p.launched += rules_.launch_seconds * p.work->launches[row];
    } while (rules_.launch_seconds == 0.0 && p.at < events.size() && events[p.at].kind == StepEvent::Kind::kernel);
    p.computes = true;
    p.kernels.launch = std::max(0.0, p.launched - now());
    if (p.kernels.launch > 0.0) return activities_.begin(r, p.kernels.launch, 1.0);
    begin_kernels(r);
  }
  void begin_kernels(std::size_t r) {
    Player& p = players_[r];
    p.kernels.begin = now();
    activities_.begin(r, p.kernels.work, kernel_rate(p));
  }
  double kernel_rate(const Player& p) const {
    return p.in_flight > 0 && p.kernels.launch == 0.0 ? 1.0 - rules_.collective_share : 1.0;
  }

  void end_kernels(std::size_t r) {
    Player& p = players_[r];
    if (p.kernels.launch > 0.0) {
      p.seconds[static_cast<std::size_t>(Share::launches)] += std::exchange(p.kernels.launch, 0.0);
      return begin_kernels(r);
    }
    p.computes = false;
    for (std::size_t s = 0; s < shares; ++s) p.seconds[s] += p.kernels.of[s];
    const double lost = std::max(0.0, now() - p.kernels.begin - p.kernels.work);
    p.seconds[static_cast<std::size_t>(Share::beside_collectives)] += lost;
    play(r);
  }

  void start(std::size_t r, std::uint32_t index) {
    Player& p = players_[r];
    const comm::PlannedOperation& operation = p.work->list->operations()[index];
    const Share share = share_of(operation.group);
    const TicketOf ticket{r, p.tickets.size()};
    p.tickets.push_back({share});
    const bool is_message =
        operation.operation == comm::Operation::send || operation.operation == comm::Operation::receive;
    if (is_message && operation.group == comm::GroupKind::pp) return start_message(ticket, operation, index);
    OperationTime time = p.work->operations[index];
    // A ring in which all ranks send and receive alike: the receive takes the time, the send is beside it.
    if (operation.operation == comm::Operation::send) time = {.level = time.level};
    time.seconds -= beside_pieces(p, operation, time.seconds);
    std::deque<std::size_t>& queue = p.queues[operation.group];
    queue.push_back(take({.phase = Transfer::Phase::queued,
                          .from = r,
                          .to = r,
                          .time = time,
                          .group = operation.group,
                          .tickets = {ticket}}));
    if (queue.size() == 1) begin(queue.front());
    p.tickets.back().host_waits = time.host_waits;
    const bool blocks = !rules_.overlaps || (share == Share::tensor_parallel && !rules_.overlaps_tensor_parallel) ||
                        (share == Share::expert_parallel && !rules_.overlaps_expert_parallel);
    if (blocks) has_ended(p, ticket.ticket);
  }

  // What pieces of the transfer cost less beside other pieces of the GEMM that reads a gather or made a scatter.
  double beside_pieces(const Player& p, const comm::PlannedOperation& operation, double seconds) const {
    const bool gathers = operation.operation == comm::Operation::all_gather;
    if (rules_.tensor_parallel_pieces == 1 || operation.group != comm::GroupKind::tp) return 0.0;
    if (!gathers && operation.operation != comm::Operation::reduce_scatter) return 0.0;
    const std::vector<StepEvent>& events = p.work->list->events();
    for (std::size_t i = gathers ? p.at : p.at - 1; i < events.size(); gathers ? ++i : --i) {
      if (events[i].kind != StepEvent::Kind::kernel) continue;
      if (p.share_of_row[events[i].index] != Share::gemm) continue;
      const double pieces = rules_.tensor_parallel_pieces;
      const double beside = std::min(seconds, p.work->kernels[events[i].index]) * (pieces - 1.0) / pieces;
      return beside * (1.0 - rules_.collective_share);
    }
    return 0.0;
  }

  void start_message(const TicketOf& ticket, const comm::PlannedOperation& operation, std::uint32_t index) {
    const bool sends = operation.operation == comm::Operation::send;
    const std::size_t r = ticket.rank, other = (operation.to_next ? r + 1 : r + players_.size() - 1) % players_.size();
    // Out of the sender, to its next rank or its previous one.
    Mailbox& box = players_[sends ? r : other].out[{operation.to_next == sends, operation.lane}];
    std::deque<std::size_t>& waiting = sends ? box.posted : box.sent;
    if (waiting.empty()) {
      const std::size_t half = take({.from = sends ? r : other,
                                     .to = sends ? other : r,
                                     .time = players_[r].work->operations[index],
                                     .tickets = {ticket}});
      return (sends ? box.sent : box.posted).push_back(half);
    }
    const std::size_t whole = waiting.front();
    waiting.pop_front();
    transfers_[whole].tickets.push_back(ticket);
    begin(whole);
  }

  // A transfer that ended before is used again.
  std::size_t take(Transfer transfer) {
    if (unused_.empty()) {
      unused_.push_back(transfers_.size());
      transfers_.emplace_back();
      activities_.add();
    }
    const std::size_t t = unused_.back();
    unused_.pop_back();
    transfers_[t] = std::move(transfer);
    return t;
  }
  std::size_t activity_of(std::size_t transfer) const { return players_.size() + transfer; }

  void begin(std::size_t t) {
    transfers_[t].phase = Transfer::Phase::latency;
    if (transfers_[t].slows_kernels()) add_in_flight(transfers_[t].from, 1);
    activities_.begin(activity_of(t), transfers_[t].time.latency, 1.0);
  }

  void add_in_flight(std::size_t r, int more) {
    Player& p = players_[r];
    p.in_flight += more;
    if (p.computes) activities_.resume(r, kernel_rate(p));
  }

  void end_phase(std::size_t t) {
    Transfer& transfer = transfers_[t];
    if (transfer.phase == Transfer::Phase::latency && transfer.time.seconds > 0.0) {
      transfer.phase = Transfer::Phase::moving;
      join(t);
      return activities_.begin(activity_of(t), transfer.time.seconds, rate_of(transfer));
    }
    if (transfer.phase == Transfer::Phase::moving) leave(t);
    const Transfer ended = std::move(transfer);
    unused_.push_back(t);
    if (ended.is_of_one()) {
      if (ended.slows_kernels()) add_in_flight(ended.from, -1);
      std::deque<std::size_t>& queue = players_[ended.from].queues[ended.group];
      queue.pop_front();
      if (!queue.empty()) begin(queue.front());
    }
    for (const TicketOf& ticket : ended.tickets) end_ticket(ticket);
  }

  std::vector<std::size_t>& moving_at(std::size_t r, const Transfer& t) {
    return players_[r].moving[static_cast<std::size_t>(t.time.level)];
  }
  void join(std::size_t t) {
    const Transfer& transfer = transfers_[t];
    moving_at(transfer.from, transfer).push_back(t);
    if (!transfer.is_of_one()) moving_at(transfer.to, transfer).push_back(t);
    share_again(t);
  }
  void leave(std::size_t t) {
    const Transfer& transfer = transfers_[t];
    std::erase(moving_at(transfer.from, transfer), t);
    if (!transfer.is_of_one()) std::erase(moving_at(transfer.to, transfer), t);
    share_again(t);
  }

  // The others of its links continue at another rate.
  void share_again(std::size_t t) {
    const Transfer& transfer = transfers_[t];
    for (const std::size_t r : {transfer.from, transfer.to}) {
      for (const std::size_t other : moving_at(r, transfer)) {
        if (other != t) activities_.resume(activity_of(other), rate_of(transfers_[other]));
      }
      if (transfer.is_of_one()) break;
    }
  }

  double rate_of(const Transfer& t) {
    const auto out =
        std::ranges::count_if(moving_at(t.from, t), [&](std::size_t o) { return transfers_[o].from == t.from; });
    const auto in = std::ranges::count_if(moving_at(t.to, t), [&](std::size_t o) { return transfers_[o].to == t.to; });
    return 1.0 / static_cast<double>(std::max(out, in));
  }

  TimelineRules rules_;
  std::vector<Player> players_;
  std::vector<Transfer> transfers_;
  std::vector<std::size_t> unused_;
  Activities activities_;
};

}  // namespace

std::string_view name_of(Share share) {
  constexpr std::array<std::string_view, shares> names{"GEMMs",
                                                       "attention",
                                                       "other kernels",
                                                       "slowest of the GPUs",
                                                       "beside collectives",
                                                       "launches of the host",
                                                       "tp, exposed",
                                                       "cp, exposed",
                                                       "ep, exposed",
                                                       "dp, exposed",
                                                       "host memory, exposed",
                                                       "pipeline"};
  return names[static_cast<std::size_t>(share)];
}

std::vector<RankTimes> simulate(const std::vector<RankWork>& pipeline, const TimelineRules& rules) {
  return Timeline(pipeline, rules).run();
}

}  // namespace nanotron::simulation
