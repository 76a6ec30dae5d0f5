#include "nanotron/data/order/best_fit.hpp"

namespace nanotron::data {

std::size_t BestFit::place(index_t length) {
  const auto best = with_room_.lower_bound(length);
  std::size_t bin = bins_;
  index_t room = capacity_;
  if (best == with_room_.end()) {
    ++bins_;
  } else {
    bin = best->second.back();
    room = best->first;
    best->second.pop_back();
    if (best->second.empty()) with_room_.erase(best);
  }
  if (room > length) with_room_[room - length].push_back(bin);
  return bin;
}

}  // namespace nanotron::data
