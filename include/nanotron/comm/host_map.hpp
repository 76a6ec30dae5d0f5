#pragma once

// Which ranks a host has, and the rank of another host that is each rank's partner: hosts form a ring in the order of
// their first rank, as in SCR's PARTNER scheme (Moody et al. 2010, "Design, modeling, and evaluation of a scalable
// multi-level checkpointing system").

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace nanotron::comm {

/// Pure functions of the host names by rank: the same on every rank. Holds 8 bytes a rank and each name once.
class HostMap {
 public:
  HostMap() = default;
  HostMap(const std::vector<std::string>& host_of_rank);     // NOLINT: a list of names is a map
  HostMap(std::initializer_list<std::string> host_of_rank);  // NOLINT
  bool operator==(const HostMap&) const = default;

  /// The map as text and back: a few bytes for each host where its ranks are consecutive.
  std::string packed() const;
  static HostMap unpacked(const std::string& text);

  std::size_t size() const { return host_of_.size(); }  // ranks
  int hosts() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }  // of the hosts
  const std::string& name(int host) const { return names_[static_cast<std::size_t>(host)]; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  const std::string& operator[](std::size_t rank) const { return name(host_of_[rank]); }
  /// Ascending.
  std::span<const int> ranks_of(int host) const {
    const auto at = static_cast<std::size_t>(host);
    return {ranks_.data() + begins_[at], static_cast<std::size_t>(begins_[at + 1] - begins_[at])};
  }
  /// The first rank of its host.
  bool leads(int rank) const { return ranks_of(host_of(rank)).front() == rank; }

  /// For the j-th rank of host i: the (j mod n)-th of the n ranks of host i + 1. With one host: on the same host.
  int partner_of(int rank) const;
  /// The ranks whose partner this is, ascending.
  std::vector<int> partners_to(int rank) const;

 private:
  void sort_ranks();

  std::vector<std::string> names_;
  std::vector<int> host_of_;         // by rank
  std::vector<int> ranks_, begins_;  // of host h: from begins_[h] on
};

}  // namespace nanotron::comm
