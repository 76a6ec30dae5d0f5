#include "nanotron/comm/host_map.hpp"

#include <algorithm>
#include <map>

namespace nanotron::comm {

HostMap::HostMap(std::span<const std::string> host_of_rank) {
  std::map<std::string, int> numbers;
  for (const std::string& name : host_of_rank) {
    const auto [host, is_new] = numbers.try_emplace(name, hosts());
    if (is_new) {
      names_.push_back(name);
      ranks_.emplace_back();
    }
    ranks_[static_cast<std::size_t>(host->second)].push_back(static_cast<int>(host_of_.size()));
    host_of_.push_back(host->second);
  }
}

int HostMap::partner_of(int rank) const {
  const std::vector<int>&here = ranks_of(host_of(rank)), &next = ranks_of((host_of(rank) + 1) % hosts());
  const auto place = static_cast<std::size_t>(std::ranges::find(here, rank) - here.begin());
  return next[place % next.size()];
}

std::vector<int> HostMap::partners_to(int rank) const {
  std::vector<int> found;
  for (const int other : ranks_of((host_of(rank) + hosts() - 1) % hosts()))
    if (partner_of(other) == rank) found.push_back(other);
  return found;
}

}  // namespace nanotron::comm
