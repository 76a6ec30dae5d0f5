// A program for test_hangs.py: ranks that use every kind of group of a grid, step after step, under a watchdog, and one
// of them makes a mistake.
//
//   hanging_ranks <folder> <timeout> <dp> <pp> <cp> <tp> <ep> <fault> <group> <rank> <step>
//
// fault: none, stall (in no operation), late (stall for half the timeout), or in <group>: skip, add, count (half),
// less and more (by one element), operation (another one), reduction (another one), type (another one of the same size)

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "nanotron/base/process.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/comm/watch/recorded_groups.hpp"
#include "nanotron/trainer/hang/watchdog.hpp"

namespace nanotron {
namespace {

constexpr std::size_t count = 200'000;  // of floats: several slots of shared memory

struct Fault {
  std::string kind, group;
  int rank, step;
  double timeout;
};

class Ranks {
 public:
  Ranks(comm::ProcessGrid& grid, const Fault& fault)
      : grid_(grid), fault_(fault), data_(8 * count), other_(8 * count) {}

  void step(int step) {
    flight_recorder().begin_step(step);
    const auto begin = FlightRecorder::now();
    step_ = step;
    if (is_mine("")) stall();
    for (int layer = 0; layer < 3; ++layer) {
      const NotedLayer noted(layer);
      flight_recorder().at_part("attention");
      collective("tp", grid_.tp(), layer == 1);
      ring("cp", grid_.cp(), layer == 1);
      flight_recorder().at_part("mlp");
      exchange("ep", grid_.ep(), layer == 1);
    }
    ring("pp", grid_.pp(), true);
    collective("dp", grid_.data_parallel(), true);
    collective("dp", grid_.data_parallel(), false);
    value("world", grid_.world(), true);
    comm::max_and_check_call_order(grid_.world(), 0);
    flight_recorder().step_done(FlightRecorder::now() - begin);
  }

 private:
  bool is_mine(const std::string& group) const {
    return fault_.rank == grid_.world().rank() && fault_.step == step_ && (group.empty() || group == fault_.group);
  }
  // Of this operation of the faulty rank.
  bool does(const char* kind, const std::string& group, bool here) const {
    return here && is_mine(group) && fault_.kind == kind;
  }

  void stall() const {
    using Seconds = std::chrono::duration<double>;
    const NotedRegion region("a stall");
    if (fault_.kind == "late") std::this_thread::sleep_for(Seconds(0.5 * fault_.timeout));
    if (fault_.kind == "stall") std::this_thread::sleep_for(Seconds(1e6));
  }

  void collective(const char* name, comm::Group& group, bool here) {
    if (group.size() == 1 || does("skip", name, here)) return;
    if (does("operation", name, here)) {
      comm::all_gather(group, data_.data(), count, other_.data());
      return;
    }
    if (does("type", name, here)) {
      comm::all_reduce(group, reinterpret_cast<double*>(data_.data()), count / 2, comm::ReduceOp::max);
      return;
    }
    const std::size_t n = size(name, here);
    const auto op = does("reduction", name, here) ? comm::ReduceOp::sum : comm::ReduceOp::max;
    for (int i = 0; i < (does("add", name, here) ? 2 : 1); ++i) {
      if (std::string(name) == "dp") {
        comm::Request request = comm::start_all_reduce(group, data_.data(), n, op);
        request.wait();
      } else {
        comm::all_reduce(group, data_.data(), n, op);
      }
    }
  }
  std::size_t size(const char* name, bool here) const {
    return does("count", name, here)  ? count / 2
           : does("less", name, here) ? count - 1
           : does("more", name, here) ? count + 1
                                      : count;
  }

  void exchange(const char* name, comm::Group& group, bool here) {
    if (group.size() == 1 || does("skip", name, here)) return;
    if (does("operation", name, here)) return comm::all_reduce(group, data_.data(), count, comm::ReduceOp::max);
    const std::vector<std::size_t> counts(static_cast<std::size_t>(group.size()), count / 8);
    for (int i = 0; i < (does("add", name, here) ? 2 : 1); ++i) {
      comm::all_to_all(group, data_.data(), counts, other_.data(), counts);
    }
  }

  void ring(const char* name, comm::Group& group, bool here) {
    if (group.size() == 1) return;
    comm::Request received = comm::start_receive(group, other_.data(), count, comm::Neighbour::previous);
    for (int i = does("skip", name, here) ? 1 : 0; i < (does("add", name, here) ? 2 : 1); ++i) {
      comm::start_send(group, data_.data(), size(name, here), comm::Neighbour::next).wait();
    }
    received.wait();
  }

  void value(const char* name, comm::Group& group, bool here) {
    if (does("skip", name, here)) return;
    if (does("operation", name, here)) return comm::barrier(group);
    for (int i = 0; i < (does("add", name, here) ? 2 : 1); ++i) comm::max(group, 1.0);
  }

  comm::ProcessGrid& grid_;
  const Fault& fault_;
  std::vector<float> data_, other_;
  int step_ = 0;
};

int run(MPI_Comm mpi, char** argv) {
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  const double timeout = std::atof(argv[2]);
  const Fault fault{.kind = argv[8], .group = argv[9], .rank = number(10), .step = number(11), .timeout = timeout};
  const comm::Communicator world = comm::Communicator::duplicate(mpi);
  const comm::GridShape shape{.dp = number(3), .pp = number(4), .cp = number(5), .tp = number(6), .ep = number(7)};
  comm::ProcessGrid grid(world, shape, comm::Transport::mpi);
  comm::record_groups(grid);
  if (world.rank() == 0) trainer::remove_old_hang_reports(argv[1]);
  comm::barrier(grid.world());
  const trainer::Watchdog watchdog(
      {.output_dir = argv[1], .timeout = timeout, .rank = world.rank(), .hosts = grid.hosts()});
  Ranks ranks(grid, fault);
  for (int step = 1; step <= 40; ++step) ranks.step(step);
  comm::barrier(grid.world());
  if (world.rank() == 0) fmt::print("all steps are done\n");
  return 0;
}

}  // namespace
}  // namespace nanotron

int main(int argc, char** argv) {
  using namespace nanotron;
  hold_stop_signals();
  comm::MpiSession mpi(argc, argv);
  if (argc != 12) return static_cast<int>(ExitCode::deck_error);
  return comm::run_guarded(mpi.world(), [&] { return run(mpi.world(), argv); });
}
