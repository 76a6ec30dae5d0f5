#pragma once

// How much of this host others used meanwhile: what a noisy measurement is explained by.

#include <mpi.h>

namespace nanotron::apps::bench {

class HostLoad {
 public:
  // Begins now. Collective over node: the ranks of this host.
  explicit HostLoad(MPI_Comm node);

  struct Others {
    double cores = 0.0;   // busy with other processes, on average
    double stolen = 0.0;  // taken by the hypervisor, in cores
    int of = 0;           // cores of the host; 0 where the system does not tell
  };
  // Since the beginning. Collective.
  Others others() const;

 private:
  struct Seconds {
    double wall = 0.0, busy = 0.0, stolen = 0.0, own = 0.0;
  };
  Seconds now() const;

  MPI_Comm node_;
  Seconds begin_;
};

}  // namespace nanotron::apps::bench
