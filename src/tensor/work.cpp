#include "nanotron/tensor/work.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"

namespace nanotron {

void WorkList::open(std::string_view kernel, const Work& work) {
  const auto same = [&](const WorkRow& row) { return row.kernel == kernel && row.work == work; };
  const auto found = std::ranges::find_if(rows_, same);
  const auto row = static_cast<std::size_t>(found - rows_.begin());
  if (found == rows_.end()) rows_.push_back({.kernel = kernel, .work = work});
  ++rows_[row].calls;
  open_.push_back(row);
}

void WorkList::close() { open_.pop_back(); }

void WorkList::add_launch() {
  NANOTRON_REQUIRE(!open_.empty(), "a launch outside of a KernelRegion");
  ++rows_[open_.back()].launches;
}

}  // namespace nanotron
