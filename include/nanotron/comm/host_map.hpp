#pragma once

// Which ranks a host has, and the rank of another host that is each rank's partner: hosts form a ring in the order of
// their first rank, as in SCR's PARTNER scheme (Moody et al. 2010, "Design, modeling, and evaluation of a scalable
// multi-level checkpointing system").

#include <span>
#include <string>
#include <vector>

namespace nanotron::comm {

/// Pure functions of the host names by rank: the same on every rank.
class HostMap {
 public:
  explicit HostMap(std::span<const std::string> host_of_rank);

  int hosts() const { return static_cast<int>(names_.size()); }
  const std::string& name(int host) const { return names_[static_cast<std::size_t>(host)]; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  /// The first rank of its host.
  bool leads(int rank) const { return ranks_of(host_of(rank)).front() == rank; }

  /// For the j-th rank of host i: the (j mod n)-th of the n ranks of host i + 1. With one host: on the same host.
  int partner_of(int rank) const;
  /// The ranks whose partner this is, ascending.
  std::vector<int> partners_to(int rank) const;

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<int>> ranks_;
  std::vector<int> host_of_;
};

}  // namespace nanotron::comm
