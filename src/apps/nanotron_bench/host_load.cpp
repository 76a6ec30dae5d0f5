#include "host_load.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/base/timer.hpp"

namespace nanotron::apps::bench {
namespace {

double seconds_of(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

double own_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

}  // namespace

// The first line of /proc/stat: user nice system idle iowait irq softirq steal, in ticks of all
// cores.
HostLoad::Seconds HostLoad::now() const {
  Seconds s;
  s.wall = wall_seconds();
  double own = own_seconds();
  NANOTRON_CHECK_MPI(MPI_Allreduce(&own, &s.own, 1, MPI_DOUBLE, MPI_SUM, node_));
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    s.busy = (user + nice + system + irq + softirq) / ticks;
    s.stolen = steal / ticks;
  }
  return s;
}

HostLoad::HostLoad(MPI_Comm node) : node_(node), begin_(now()) {}

HostLoad::Others HostLoad::others() const {
  const Seconds end = now();
  const double wall = std::max(end.wall - begin_.wall, 1e-3);
  if (end.busy == 0.0) return {};
  return {.cores = std::max(0.0, (end.busy - begin_.busy) - (end.own - begin_.own)) / wall,
          .stolen = (end.stolen - begin_.stolen) / wall,
          .of = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))};
}

}  // namespace nanotron::apps::bench
