#pragma once

// How much other processes used this host during a measurement: explains noise.

#include <mpi.h>

namespace nanotron::apps::bench {

class HostLoad {
 public:
  // Starts to measure. Collective over node: the ranks of this host.
  explicit HostLoad(MPI_Comm node);

  struct Others {
    double cores = 0.0;   // busy with other processes, on average
    double stolen = 0.0;  // taken by the hypervisor, in cores
    int of = 0;           // cores of the host; 0 where the system does not say
  };
  // Since construction. Collective.
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
