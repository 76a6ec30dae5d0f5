#pragma once

// Activities whose rates change, ended in the order of time. Private to the simulation.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace nanotron::simulation {

class Activities {
 public:
  double now() const { return now_; }

  /// A new one, at rest; they are numbered from 0.
  void add() { all_.emplace_back(); }

  /// One at rest begins: `work` at a rate above 0 of work per second.
  void begin(std::size_t i, double work, double rate) {
    all_[i].left = work;
    all_[i].since = now_;
    set_rate(i, rate);
  }

  /// One that runs continues at this rate.
  void resume(std::size_t i, double rate) {
    Activity& a = all_[i];
    if (a.rate == rate) return;
    a.left = std::max(0.0, a.left - (now_ - a.since) * a.rate);
    a.since = now_;
    set_rate(i, rate);
  }

  /// The one that ends next; it is at rest then, and `now` is its end. None if all are at rest. Of equal ends the one
  /// whose rate was set first.
  std::optional<std::size_t> next() {
    while (!ends_.empty()) {
      const End end = ends_.top();
      ends_.pop();
      if (all_[end.activity].changes != end.change) continue;
      now_ = end.time;
      return end.activity;
    }
    return std::nullopt;
  }

 private:
  struct Activity {
    double left = 0.0, since = 0.0, rate = 0.0;
    std::uint64_t changes = 0;  // an end that was foreseen before a change is none
  };
  struct End {
    double time;
    std::uint64_t order;
    std::size_t activity;
    std::uint64_t change;
    bool operator<(const End& o) const { return time != o.time ? time > o.time : order > o.order; }
  };

  void set_rate(std::size_t i, double rate) {
    Activity& a = all_[i];
    a.rate = rate;
    ends_.push({a.since + a.left / rate, order_++, i, ++a.changes});
  }

  std::vector<Activity> all_;
  std::priority_queue<End> ends_;
  double now_ = 0.0;
  std::uint64_t order_ = 0;
};

}  // namespace nanotron::simulation
