#include "nanotron/comm/host_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

HostMap::HostMap(const std::vector<std::string>& host_of_rank) {
  std::map<std::string, int> numbers;
  for (const std::string& name : host_of_rank) {
    const auto [host, is_new] = numbers.try_emplace(name, hosts());
    if (is_new) names_.push_back(name);
    host_of_.push_back(host->second);
  }
  sort_ranks();
}

HostMap::HostMap(std::initializer_list<std::string> host_of_rank) : HostMap(std::vector<std::string>(host_of_rank)) {}

void HostMap::sort_ranks() {
  begins_.assign(names_.size() + 1, 0);
  for (const int host : host_of_) ++begins_[static_cast<std::size_t>(host) + 1];
  for (std::size_t h = 0; h < names_.size(); ++h) begins_[h + 1] += begins_[h];
  std::vector<int> next(begins_.begin(), begins_.end() - 1);
  ranks_.resize(host_of_.size());
  for (std::size_t rank = 0; rank < host_of_.size(); ++rank) {
    int& at = next[static_cast<std::size_t>(host_of_[rank])];
    ranks_[static_cast<std::size_t>(at++)] = static_cast<int>(rank);
  }
}

// A line for each name, an empty line, and pairs of a host and its number of consecutive ranks.
std::string HostMap::packed() const {
  std::string text;
  for (const std::string& name : names_) text += name + "\n";
  text += "\n";
  for (std::size_t first = 0, next = 0; first < size(); first = next) {
    while (next < size() && host_of_[next] == host_of_[first]) ++next;
    text += fmt::format("{} {} ", host_of_[first], next - first);
  }
  return text;
}

HostMap HostMap::unpacked(const std::string& text) {
  HostMap map;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name) && !name.empty();) map.names_.push_back(name);
  std::size_t ranks = 0;
  for (int host = 0; in >> host >> ranks;) {
    NANOTRON_REQUIRE(host >= 0 && host < map.hosts(), "host {} of {}", host, map.hosts());
    map.host_of_.insert(map.host_of_.end(), ranks, host);
  }
  if (map.hosts() > 0) map.sort_ranks();
  return map;
}

int HostMap::partner_of(int rank) const {
  const std::span<const int> here = ranks_of(host_of(rank)), next = ranks_of((host_of(rank) + 1) % hosts());
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
