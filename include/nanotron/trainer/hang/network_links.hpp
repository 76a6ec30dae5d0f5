#pragma once

// Distinguishes a disconnected host from those that wait for it: where files use another network than messages, all
// of them write reports, and each waits for the others.

#include <filesystem>
#include <set>
#include <string>

namespace nanotron::trainer {

/// Remembers which links of this host were up: network interfaces without loopback, and ports of InfiniBand.
class NetworkLinks {
 public:
  explicit NetworkLinks(std::filesystem::path classes = "/sys/class");

  /// "eth0 is down": the links that are no longer up; empty: none.
  std::string lost() const;

 private:
  std::set<std::string> up_now() const;

  std::filesystem::path classes_;
  std::set<std::string> at_start_;
};

}  // namespace nanotron::trainer
