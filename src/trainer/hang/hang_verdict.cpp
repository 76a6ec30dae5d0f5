#include "nanotron/trainer/hang/hang_verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "nanotron/base/rank_ranges.hpp"
#include "operation_order.hpp"

namespace nanotron::trainer {
namespace {

// `from` waits for `to`.
struct Edge {
  int from = 0, to = 0;
  Cause cause = Cause::elsewhere;
};

// Whether no rank leaves it before all have entered.
bool meets(std::string_view name) {
  constexpr std::array<std::string_view, 7> others{"message",    "broadcast",   "MPI_Bcast",   "MPI_Reduce",
                                                   "MPI_Gather", "MPI_Gatherv", "MPI_Scatterv"};
  return std::ranges::find(others, name) == others.end();
}

class Judge {
 public:
  Judge(const std::map<int, RankReport>& reports, const comm::HostMap& hosts, const OperationsOf& operations)
      : reports_(reports), hosts_(hosts), operations_(operations) {}

  HangVerdict verdict() {
    for (const auto& [rank, report] : reports_) add_edges(report);
    HangVerdict verdict;
    for (const auto& candidates : {differing(), silent_ends(), stalled_ends(), cut_off(), left_behind(), departed(),
                                   odd_ones(), early_ones(), held_in_calls()}) {
      if (!candidates.empty()) {
        verdict.culprits = candidates;
        break;
      }
    }
    for (const Culprit& culprit : verdict.culprits) verdict.text += culprit.sentence + "\n";
    if (verdict.culprits.empty())
      verdict.text += "no rank stands out: each is inside the operation that it waits for\n";
    verdict.text += who_waits();
    return verdict;
  }

 private:
  static const std::vector<int>& members_of(const RankReport& r) { return r.groups.at(r.waits_group).ranks; }
  std::uint64_t entered(int rank, const std::string& group) const {
    const auto& groups = reports_.at(rank).groups;
    const auto found = groups.find(group);
    return found == groups.end() ? 0 : found->second.entered;
  }
  bool reported(int rank) const { return reports_.contains(rank); }

  void add_edges(const RankReport& r) {
    if (!r.waits()) return add_edges_of_device(r);
    if (!r.groups.contains(r.waits_group)) return;
    const std::size_t before = edges_.size();
    for (const int m : members_of(r)) {
      if (m == r.rank) continue;
      if (!reported(m))
        edges_.push_back({r.rank, m, Cause::silent});
      else if (entered(m, r.waits_group) < r.waits_sequence)
        edges_.push_back({r.rank, m, Cause::elsewhere});
    }
    if (edges_.size() == before) add_edges_of_entered(r);
  }

  // All have entered: who has left it, or has started it and is not in it now? Where most have left, or nobody has to
  // stay for the others, or the kernel holds this rank in a call for a file, it is this rank that makes no progress.
  void add_edges_of_entered(const RankReport& r) {
    std::vector<Edge> edges;
    std::size_t left = 0;
    for (const int m : members_of(r)) {
      const RankReport& other = reports_.at(m);
      const bool is_in_it = other.waits_group == r.waits_group && other.waits_sequence == r.waits_sequence;
      if (m == r.rank || is_in_it) continue;
      const bool is_complete = has_completed(m, r.waits_group, r.waits_sequence);
      left += is_complete;
      edges.push_back({r.rank, m, is_complete ? Cause::left : Cause::elsewhere});
    }
    const std::size_t size = members_of(r).size();
    const bool stays_alone = left == edges.size() && left > 0 &&
                             (2 * left > size || (2 * left == size && (!meets(r.waits_in) || !r.system_call.empty())));
    if (stays_alone && r.waits_in != "message") {
      left_behind_.insert(r.rank);
    } else if (!stays_alone) {
      edges_.insert(edges_.end(), edges.begin(), edges.end());
    }
  }

  // The host waits for no rank, but the device may: for those that have not queued as much.
  void add_edges_of_device(const RankReport& r) {
    for (const auto& [name, group] : r.groups) {
      for (const int m : group.ranks) {
        if (group.queued == 0 || m == r.rank) continue;
        if (!reported(m))
          edges_.push_back({r.rank, m, Cause::silent});
        else if (entered(m, name) < group.queued)
          edges_.push_back({r.rank, m, Cause::elsewhere});
      }
    }
  }

  bool has_completed(int rank, const std::string& group, std::uint64_t sequence) {
    for (const ReportedOperation& o : ring_of(rank)) {
      if (o.group == group && o.sequence == sequence) return o.is_complete();
    }
    return entered(rank, group) > sequence;
  }

  const std::vector<ReportedOperation>& ring_of(int rank) {
    const auto found = rings_.find(rank);
    return found != rings_.end() ? found->second : rings_.emplace(rank, operations_(rank)).first->second;
  }

  bool has_edges(int rank) const {
    return std::ranges::any_of(edges_, [&](const Edge& e) { return e.from == rank; });
  }

  // Ends of chains; where nobody waits for anybody, all ranks of that kind.
  template <class Is>
  std::vector<Culprit> ends(Cause cause, const Is& is) {
    std::vector<Culprit> found;
    const int size = static_cast<int>(hosts_.size());
    std::set<int> waited_for;
    for (const Edge& e : edges_) waited_for.insert(e.to);
    for (int rank = 0; rank < size; ++rank) {
      if (is(rank) && (waited_for.contains(rank) || edges_.empty()))
        found.push_back({rank, cause, sentence(rank, cause)});
    }
    return found;
  }
  std::vector<Culprit> silent_ends() {
    return ends(Cause::silent, [&](int rank) { return !reported(rank); });
  }
  std::vector<Culprit> stalled_ends() {
    return ends(Cause::elsewhere, [&](int rank) {
      return reported(rank) && !reports_.at(rank).waits() && !reports_.at(rank).has_failed && !has_edges(rank);
    });
  }
  std::vector<Culprit> left_behind() {
    return ends(Cause::elsewhere, [&](int rank) { return left_behind_.contains(rank); });
  }

  // What a rank without a network waits for, and whom it leaves waiting, is chance.
  std::vector<Culprit> cut_off() const {
    std::vector<Culprit> found;
    for (const auto& [rank, r] : reports_) {
      if (r.network.empty()) continue;
      found.push_back(
          {rank, Cause::network,
           fmt::format("rank {} on {}: network of its host: {}; {}", rank, host(rank), r.network, state_of(rank))});
    }
    return found.size() < reports_.size() ? found : std::vector<Culprit>();
  }

  // In each group whose ranks have entered different operations: those that have not entered what most have, or,
  // without a majority, not what they did in the step before.
  std::vector<Culprit> differing() {
    std::map<std::string, std::map<std::uint64_t, std::vector<int>>> groups;
    for (const auto& [rank, r] : reports_) {
      for (const auto& [name, group] : r.groups) {
        if (r.differs && group.is_compared) groups[name][group.alike].push_back(rank);
      }
    }
    std::vector<Culprit> certain, all;
    for (const auto& [name, classes] : groups) {
      if (classes.size() < 2) continue;
      const std::vector<int> odd = odd_ranks(name, classes);
      std::vector<int> members;
      for (const auto& [alike, ranks] : classes) members.insert(members.end(), ranks.begin(), ranks.end());
      for (const int rank : odd.empty() ? members : odd) {
        (odd.empty() ? all : certain).push_back({rank, Cause::differs, difference(name, rank, members)});
      }
    }
    if (all.empty() && certain.empty()) return ranks_with_other_operations();
    std::vector<Culprit>& found = certain.empty() ? all : certain;
    std::ranges::stable_sort(found, {}, &Culprit::rank);
    const auto same = [](const Culprit& a, const Culprit& b) { return a.rank == b.rank; };
    found.erase(std::unique(found.begin(), found.end(), same), found.end());
    return found;
  }
  // All ranks took part in the exchange that compares; for some it was another one of the world. Those are the fewer.
  std::vector<Culprit> ranks_with_other_operations() const {
    std::vector<Culprit> compared, others;
    for (const auto& [rank, r] : reports_) {
      (r.differs ? compared : others)
          .push_back({rank, Cause::differs,
                      fmt::format("rank {} on {} {} in an exchange of the world where most {}; {}", rank, host(rank),
                                  r.differs ? "compared operations" : "did not compare operations",
                                  r.differs ? "did not" : "did", state_of(rank))});
    }
    if (compared.size() == others.size()) return {};
    return compared.size() < others.size() ? compared : others;
  }
  // Empty: it cannot be told.
  std::vector<int> odd_ranks(const std::string& group, const std::map<std::uint64_t, std::vector<int>>& classes) const {
    std::size_t size = 0, most = 0;
    for (const auto& [alike, ranks] : classes) {
      size += ranks.size();
      most = std::max(most, ranks.size());
    }
    std::vector<int> odd, changed;
    for (const auto& [alike, ranks] : classes) {
      for (const int rank : ranks) {
        if (ranks.size() < most) odd.push_back(rank);
        if (!reports_.at(rank).groups.at(group).is_as_before) changed.push_back(rank);
      }
    }
    if (2 * most > size) return odd;
    return changed.size() < size ? changed : std::vector<int>();
  }
  // What the rings still tell of it.
  std::string difference(const std::string& group, int rank, const std::vector<int>& members) {
    std::map<int, Sequence> rings;
    for (const int m : members) rings[m] = operations_in(ring_of(m), group);
    const std::vector<OddOne> odd = first_disagreement(rings);
    const std::string change = departure(ring_of(rank));
    return fmt::format("{}: rank {} on {} {}", group, rank, host(rank),
                       !odd.empty()      ? "differs: " + odd.front().what
                       : !change.empty() ? change
                                         : fmt::format("has not entered the same operations as the others of ranks {}, "
                                                       "earlier than its last {} operations",
                                                       ranks_text(members), ring_of(rank).size()));
  }

  // Of ranks in a circle: those that did not do what they did a step before.
  std::vector<Culprit> departed() {
    std::vector<Culprit> found;
    for (const auto& [rank, r] : reports_) {
      const std::string what = has_edges(rank) || edges_.empty() ? departure(ring_of(rank)) : "";
      if (what.empty()) continue;
      found.push_back(
          {rank, Cause::mismatch, fmt::format("rank {} on {} {}; {}", rank, host(rank), what, state_of(rank))});
    }
    return 2 * found.size() < reports_.size() + 1 ? found : std::vector<Culprit>();
  }

  std::vector<Culprit> odd_ones() {
    std::set<std::string> groups;
    for (const auto& [rank, r] : reports_) {
      if (r.waits() && r.groups.contains(r.waits_group)) groups.insert(r.waits_group);
    }
    std::vector<Culprit> found;
    for (const std::string& group : groups) {
      std::map<int, Sequence> rings;
      for (const auto& [rank, r] : reports_) {
        if (r.groups.contains(group)) rings[rank] = operations_in(ring_of(rank), group);
      }
      for (const OddOne& odd : first_disagreement(rings)) {
        found.push_back({odd.rank, Cause::mismatch, fmt::format("{}: {}", group, odd.what)});
      }
      if (!found.empty()) return found;
    }
    return found;
  }

  std::vector<Culprit> early_ones() {
    std::set<int> ranks;
    for (const Edge& e : edges_) {
      if (e.cause == Cause::left) ranks.insert(e.to);
    }
    std::vector<Culprit> found;
    for (const int rank : ranks) found.push_back({rank, Cause::left, sentence(rank, Cause::left)});
    return found;
  }

  // Inside calls that do not tell whom they wait for: those whose call waits for a file, where not all do.
  std::vector<Culprit> held_in_calls() {
    std::vector<Culprit> found;
    for (const auto& [rank, r] : reports_) {
      if (!r.system_call.empty()) found.push_back({rank, Cause::system_call, sentence(rank, Cause::system_call)});
    }
    return found.size() < reports_.size() ? found : std::vector<Culprit>();
  }

  std::string host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  // The longest wait for the rank.
  const RankReport* waiting_for(int rank, Cause cause) const {
    const RankReport* longest = nullptr;
    for (const Edge& e : edges_) {
      const RankReport& r = reports_.at(e.from);
      if (e.to != rank || (cause == Cause::left && e.cause != cause) || !r.waits()) continue;
      if (longest == nullptr || r.waits_seconds > longest->waits_seconds) longest = &r;
    }
    return longest;
  }

  std::string state_of(int rank) const {
    if (!reported(rank)) return "it wrote no report: the process or its host is stopped or gone, or it cannot write";
    const RankReport& r = reports_.at(rank);
    std::string text = fmt::format("it is at {}", r.where);
    if (r.waits()) text += fmt::format(", in {} {} of {}", r.waits_in, r.waits_sequence, r.waits_group);
    if (!r.system_call.empty()) text += fmt::format(", blocked in the system call {}", r.system_call);
    return text + fmt::format(", {:.0f} s without progress", r.idle);
  }

  std::string sentence(int rank, Cause cause) const {
    const std::string who = fmt::format("rank {} on {}", rank, host(rank));
    const RankReport* const r = waiting_for(rank, cause);
    if (r == nullptr) return fmt::format("{}: {}", who, state_of(rank));
    const std::string operation = fmt::format("{} {} at {}", r->waits_in, r->waits_sequence, r->where);
    if (cause == Cause::left) {
      return fmt::format(
          "{}: {} has left {}, where others have been for {:.0f} s: it failed there, or did not take part; {}",
          r->waits_group, who, operation, r->waits_seconds, state_of(rank));
    }
    const char* const does = !reported(rank)                                     ? "is waited for in"
                             : entered(rank, r->waits_group) < r->waits_sequence ? "has not entered"
                                                                                 : "makes no progress in";
    return fmt::format("{}: {} {} {}; others have waited for {:.0f} s; {}", r->waits_group, who, does, operation,
                       r->waits_seconds, state_of(rank));
  }

  // A line per operation that ranks wait in.
  std::string who_waits() const {
    std::map<std::string, std::vector<int>> waits;
    for (const auto& [rank, r] : reports_) {
      if (r.waits()) waits[fmt::format("{}: {} {}", r.waits_group, r.waits_in, r.waits_sequence)].push_back(rank);
    }
    constexpr std::size_t shown = 20;
    std::string text;
    std::size_t lines = 0;
    for (const auto& [what, ranks] : waits) {
      if (++lines <= shown)
        text += fmt::format("  in {}: {} {}\n", what, ranks.size() > 1 ? "ranks" : "rank", ranks_text(ranks));
    }
    if (lines > shown) text += fmt::format("  and in {} other operations\n", lines - shown);
    return text;
  }

  const std::map<int, RankReport>& reports_;
  const comm::HostMap& hosts_;
  const OperationsOf& operations_;
  std::vector<Edge> edges_;
  std::set<int> left_behind_;  // in an operation that the others have left
  std::map<int, std::vector<ReportedOperation>> rings_;
};

}  // namespace

HangVerdict judge(const std::map<int, RankReport>& reports, const comm::HostMap& host_of_rank,
                  const OperationsOf& operations_of) {
  return Judge(reports, host_of_rank, operations_of).verdict();
}

}  // namespace nanotron::trainer
