#pragma once

// Streams and events of an emulated GPU, by CUDA's rules and by none of its habits: work is queued at launch and run
// later, in a random order of all that the rules allow, and not before something demands it.
//
//   stream   its work runs in the order in which it was queued
//   event    a point of a stream; another stream that waits for it continues when the point is passed
//   queue    CUDA_DEVICE_MAX_CONNECTIONS (8) hardware queues, which streams share (CUDA C++ Programming Guide, "CUDA
//            Environment Variables"): work begins there in the order of its launch, so that a wait for an event holds
//            up what other streams launched later. A kernel that has begun does not, nor does the event behind it:
//            Megatron-LM lets collectives and GEMMs overlap in one queue. A new stream gets the queue with the fewest.
//   host     waits (run_until) run the queues; now and then a launch does, too
//
// The order is drawn from NANOTRON_EMULATION_SEED (NANOTRON_SEED, else 1), each rank its own. One thread per process.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace nanotron::emulation {

// What the runtime reads from the environment: how many hardware queues its streams share. With CUDA, when modules are
// loaded, which waits for the device; HIP loads code in the call of a first launch and waits for nothing.
#ifdef NANOTRON_WITH_HIP
inline constexpr const char* variable_of_queues = "GPU_MAX_HW_QUEUES";
inline constexpr int usual_queues = 4;
inline constexpr bool is_nccl = false;  // but RCCL
#else
inline constexpr const char* variable_of_queues = "CUDA_DEVICE_MAX_CONNECTIONS";
inline constexpr int usual_queues = 8;
inline constexpr bool is_nccl = true;
#endif

/// Ends the process with exit code 99 and the words, which name the rule that was broken. Tests look for them.
[[noreturn]] void fault(const std::string& words);

/// Rank of this process in the job, also before MPI_Init.
int world_rank();

/// After a try to run queued work. waits: for another rank; it is tried again, other streams run meanwhile.
enum class Progress { done, waits };

struct Task {
  std::function<std::string()> describe;  // what it is and, where it waits, for whom
  std::function<Progress()> run;
};

/// A task that runs f with access to device memory.
Task kernel(std::string name, std::function<void()> f);

class Stream;

class Event {
 public:
  using Clock = std::chrono::steady_clock;
  bool is_passed() const { return point_->passed; }
  /// When the stream got there; the beginning of the clock for an event that was never recorded.
  Clock::time_point time() const { return point_->time; }

 private:
  friend class Scheduler;
  struct Point {
    bool passed = true;
    Clock::time_point time{};
    std::uint64_t number = 0;  // of the launch that records it
  };
  std::shared_ptr<Point> point_ = std::make_shared<Point>();  // of the last record
};

class Stream {
 public:
  /// blocking: waits for the default stream's earlier work, which waits for this one's (CUDA's legacy rule).
  Stream(bool blocking, std::uint64_t connection) : blocking_(blocking), connection_(connection) {}
  bool is_empty() const { return queue_.empty(); }
  bool is_blocking() const { return blocking_; }

 private:
  friend class Scheduler;
  struct Item {
    Task task;
    std::function<bool()> may_run{};  // empty: at once
    std::uint64_t number = 0;         // of its launch, among those of all streams
    bool has_begun = false;           // true from the start for an event: it comes with the end of what is before it
  };
  std::deque<Item> queue_;
  bool blocking_;
  std::uint64_t connection_;
};

class Scheduler {
 public:
  static Scheduler& instance();

  Stream& default_stream() { return *default_; }
  Stream* create(bool blocking);
  /// CUDA lets queued work finish.
  void destroy(Stream* stream);

  void launch(Stream& stream, Task task);
  /// A kernel. Unless CUDA_MODULE_LOADING = EAGER, the first launch of a name loads its module: the host waits for the
  /// device.
  void launch_kernel(Stream& stream, const std::string& name, std::function<void()> f);
  /// The next kernel is not launched, as with a grid or shared memory that a GPU does not have.
  void refuse_next_launch() { refuses_ = true; }
  /// What gpuGetLastError() gives: a gpuError_t, cleared by taking it.
  void set_error(int error) { error_ = error; }
  int take_error() { return std::exchange(error_, 0); }
  /// At the first use of `kernel` its module is loaded, which may need the whole device: the host waits for it. A
  /// library's, which it loads itself, whatever CUDA_MODULE_LOADING says.
  void load_module(const std::string& kernel);
  void record(Stream& stream, const std::shared_ptr<Event>& event);
  void wait(Stream& stream, const std::shared_ptr<Event>& event);

  /// Runs queues until `reached`. `what` names the wait where it is forever.
  void run_until(const std::function<bool()>& reached, const std::string& what);
  void synchronize(Stream& stream);
  void synchronize(const Event& event);
  void synchronize_all();
  bool has_work() const {
    return !default_->is_empty() ||
           !std::ranges::all_of(streams_, [](const auto& stream) { return stream->is_empty(); });
  }
  /// Waits of the host for work that was queued since the wait before.
  std::uint64_t host_waits() const { return host_waits_; }

  /// Runs some of what may run, none of it for certain.
  void poll();
  /// Draws of the order, also for what else a test leaves to chance.
  std::uint64_t draw(std::uint64_t below) {
    return std::uniform_int_distribution<std::uint64_t>(0, below - 1)(random_);
  }
  std::uint64_t seed() const { return seed_; }
  /// Another order from here on.
  void reseed(std::uint64_t seed);

 private:
  Scheduler();
  void push(Stream& stream, Stream::Item item);
  /// Of the host, for launches before this one.
  void count_wait(std::uint64_t launch);
  /// One try at the head of a stream drawn at random. False when no stream got on.
  bool step();
  /// Of each hardware queue the earliest item that has not begun; null where there is none.
  std::vector<const Stream::Item*> next_of_queues() const;

  std::unique_ptr<Stream> default_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::uint64_t seed_ = 1;
  std::mt19937_64 random_;
  bool running_ = false, refuses_ = false;
  int error_ = 0;
  std::uint64_t queued_ = 0, waited_for_ = 0, host_waits_ = 0;
  std::set<std::string> loaded_;
};

}  // namespace nanotron::emulation
