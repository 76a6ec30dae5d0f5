#pragma once

#include <filesystem>

#include "command_line.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::apps::bench {

// The deck, resolved for the ranks of world, with a file of random tokens in a temporary folder on
// every node, which the destructor removes. Construction is collective over world.
class Workload {
 public:
  Workload(const Options& options, const comm::Communicator& world);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  const deck::Config& config() const { return config_; }

 private:
  // The destructor removes the folder on the rank that owns it, one rank per node.
  struct Folder {
    bool owned;
    std::filesystem::path path;
    ~Folder();
  };

  Folder folder_;
  deck::Config config_;
};

}  // namespace nanotron::apps::bench
