#include "operation_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "nanotron/base/rank_ranges.hpp"

namespace nanotron::trainer {
namespace {

// Each rank sends and receives its own number of bytes.
bool has_common_size(const ReportedOperation& o) { return o.name != "all_to_all"; }

std::string kind_of(const ReportedOperation& o) {
  return has_common_size(o) ? fmt::format("{} of {} bytes", o.name, o.bytes) : o.name;
}

// What must be the same at the same sequence number on all ranks. Ends of a message are at different places.
std::string identity_of(const ReportedOperation& o) {
  return o.name == "message" ? kind_of(o) : fmt::format("{} at step {}, {}", kind_of(o), o.step, o.place);
}

const ReportedOperation* find(const Sequence& s, std::uint64_t number) {
  const auto found = s.find(number);
  return found == s.end() ? nullptr : &found->second;
}

// Whether a had the operation that is number n of b one number earlier: a skipped one.
bool is_ahead(const Sequence& a, const Sequence& b, std::uint64_t n) {
  const ReportedOperation *mine = find(a, n), *next = find(b, n + 1), *theirs = find(b, n);
  return mine != nullptr && next != nullptr && theirs != nullptr && identity_of(*mine) == identity_of(*next) &&
         identity_of(*mine) != identity_of(*theirs);
}

// Whether the same place of an earlier step had the same operation.
bool is_usual(const Sequence& s, const ReportedOperation& o) {
  return std::ranges::any_of(s, [&](const auto& item) {
    const ReportedOperation& earlier = item.second;
    return earlier.sequence < o.sequence && earlier.place == o.place && kind_of(earlier) == kind_of(o);
  });
}
bool has_been_at(const Sequence& s, const ReportedOperation& o) {
  return std::ranges::any_of(
      s, [&](const auto& item) { return item.second.sequence < o.sequence && item.second.place == o.place; });
}

using Classes = std::map<std::string, std::vector<int>>;

std::string classes_text(std::uint64_t number, const Classes& classes) {
  std::string text = fmt::format("operation {} is ", number);
  bool is_first = true;
  for (const auto& [kind, ranks] : classes) {
    text += fmt::format("{}{} on {} {}", is_first ? "" : " and ", kind, ranks.size() > 1 ? "ranks" : "rank",
                        ranks_text(ranks));
    is_first = false;
  }
  return text;
}

// The ranks outside of the majority; without one, those whose operation is not what they did there before.
std::vector<OddOne> minority(std::uint64_t number, const Classes& classes, const std::map<int, Sequence>& of_rank) {
  const auto largest = std::ranges::max_element(classes, {}, [](const auto& c) { return c.second.size(); });
  std::size_t all = 0;
  for (const auto& [kind, ranks] : classes) all += ranks.size();
  const bool has_majority = 2 * largest->second.size() > all;
  std::vector<OddOne> odd, every;
  for (const auto& [kind, ranks] : classes) {
    for (const int rank : ranks) {
      const Sequence& s = of_rank.at(rank);
      const ReportedOperation& o = s.at(number);
      const OddOne one{rank, classes_text(number, classes)};
      every.push_back(one);
      if (has_majority ? kind != largest->first : has_been_at(s, o) && !is_usual(s, o)) odd.push_back(one);
    }
  }
  return odd.empty() ? every : odd;
}

// Whether a whole earlier step is known, and had nothing at the place of this operation.
bool is_new(const ReportedOperation& o, const std::map<int, Sequence>& of_rank) {
  const auto knows_a_step = [&](const auto& rank) {
    return !rank.second.empty() && rank.second.begin()->second.step + 2 <= o.step;
  };
  return std::ranges::any_of(of_rank, knows_a_step) &&
         std::ranges::none_of(of_rank, [&](const auto& rank) { return is_usual(rank.second, o); });
}

// Ranks that are one operation ahead of others from this number on skipped one; or those others added one.
std::vector<OddOne> ahead(std::uint64_t number, const Classes& classes, const std::map<int, Sequence>& of_rank) {
  std::vector<OddOne> odd;
  for (const auto& [identity, ranks] : classes) {
    for (const auto& [other, others] : classes) {
      if (!is_ahead(of_rank.at(ranks.front()), of_rank.at(others.front()), number)) continue;
      const bool was_added = is_new(of_rank.at(others.front()).at(number), of_rank);
      for (const int rank : was_added ? others : ranks) {
        odd.push_back(
            {rank, fmt::format("rank {} {} operation {}, {}", rank, was_added ? "added" : "skipped", number, other)});
      }
    }
  }
  return odd;
}

// "skipped ..." or "did ...": where the operations of a step are not those of the one before. is_whole: the step has
// ended, so that an operation may be missing at its end; more may follow, of a validation or a checkpoint.
std::string first_change(const std::vector<const ReportedOperation*>& before,
                         const std::vector<const ReportedOperation*>& now, bool is_whole) {
  const auto same = [](const ReportedOperation& a, const ReportedOperation& b) {
    return a.group == b.group && a.place == b.place && kind_of(a) == kind_of(b);
  };
  const auto text = [](const char* what, const ReportedOperation& o) {
    return fmt::format("{} {} of {} ({})", what, kind_of(o), o.group, o.place);
  };
  std::size_t i = 0;
  while (i < std::min(before.size(), now.size()) && same(*before[i], *now[i])) ++i;
  if (i == now.size()) return is_whole && i < before.size() ? text("skipped", *before[i]) : "";
  if (i == before.size()) return "";
  const bool skipped = i + 1 < before.size() && same(*before[i + 1], *now[i]);
  return skipped ? text("skipped", *before[i]) : text("did", *now[i]);
}

}  // namespace

Sequence operations_in(const std::vector<ReportedOperation>& ring, const std::string& group) {
  Sequence s;
  for (const ReportedOperation& o : ring) {
    if (o.group == group) s[o.sequence] = o;
  }
  return s;
}

std::vector<OddOne> first_disagreement(const std::map<int, Sequence>& of_rank) {
  std::set<std::uint64_t> numbers;
  for (const auto& [rank, s] : of_rank) {
    for (const auto& [number, o] : s) numbers.insert(number);
  }
  for (const std::uint64_t number : numbers) {
    Classes kinds, identities;
    for (const auto& [rank, s] : of_rank) {
      const ReportedOperation* const o = find(s, number);
      if (o == nullptr) continue;
      kinds[kind_of(*o)].push_back(rank);
      identities[identity_of(*o)].push_back(rank);
    }
    if (identities.size() > 1) {
      if (std::vector<OddOne> odd = ahead(number, identities, of_rank); !odd.empty()) return odd;
    }
    if (kinds.size() > 1) return minority(number, kinds, of_rank);
  }
  return {};
}

std::string departure(const std::vector<ReportedOperation>& ring) {
  if (ring.empty()) return "";
  std::map<std::int64_t, std::vector<const ReportedOperation*>> steps;
  for (const ReportedOperation& o : ring) {
    if (o.step > ring.front().step) steps[o.step].push_back(&o);  // the first may not be whole
  }
  const std::vector<const ReportedOperation*>* before = nullptr;
  for (const auto& [step, now] : steps) {
    const bool is_whole = step < ring.back().step;
    std::string what = before != nullptr ? first_change(*before, now, is_whole) : "";
    if (!what.empty()) return fmt::format("{}, in step {}, unlike in the step before", what, step);
    before = &now;
  }
  return "";
}

}  // namespace nanotron::trainer
