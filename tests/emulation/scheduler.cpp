#include "emulation/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "emulation/device_memory.hpp"

namespace nanotron::emulation {
namespace {

std::uint64_t seed_from_environment() {
  for (const char* name : {"NANOTRON_EMULATION_SEED", "NANOTRON_SEED"}) {
    if (const char* value = std::getenv(name)) return std::strtoull(value, nullptr, 10);
  }
  return 1;
}

}  // namespace
}  // namespace nanotron::emulation

// A rank that waits for another one in MPI: its GPU goes on.
extern "C" void nanotron_while_waiting() { nanotron::emulation::Scheduler::instance().poll(); }

namespace nanotron::emulation {
namespace {

std::uint64_t connections() {
  const char* value = std::getenv(variable_of_queues);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : usual_queues;
}

constexpr double longest_look = 0.01;  // seconds

double seconds_without_progress() {
  const char* value = std::getenv("NANOTRON_EMULATION_PATIENCE");
  return value != nullptr ? std::atof(value) : 90.0;  // another rank may compute that long on a busy machine
}

}  // namespace

void fault(const std::string& words) {
  std::fprintf(stderr, "emulated GPU, rank %d, order %llu: %s\n", world_rank(),
               static_cast<unsigned long long>(Scheduler::instance().seed()), words.c_str());
  std::fflush(stderr);
  std::_Exit(99);
}

int world_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

Task kernel(std::string name, std::function<void()> f) {
  return {[name = std::move(name)] { return name; },
          [f = std::move(f)] {
            const DeviceAccess access;
            f();
            return Progress::done;
          }};
}

Scheduler& Scheduler::instance() {
  static Scheduler scheduler;
  return scheduler;
}

Scheduler::Scheduler() : default_(std::make_unique<Stream>(true, 0)) { reseed(seed_from_environment()); }

void Scheduler::reseed(std::uint64_t seed) {
  seed_ = seed;
  random_.seed(seed * 1000003 + static_cast<std::uint64_t>(world_rank()));
  loaded_.clear();
}

Stream* Scheduler::create(bool blocking) {
  std::vector<int> streams(connections());
  ++streams[default_->connection_ % streams.size()];
  for (const auto& other : streams_) ++streams[other->connection_ % streams.size()];
  const auto fewest = std::ranges::min_element(streams) - streams.begin();
  return streams_.emplace_back(std::make_unique<Stream>(blocking, static_cast<std::uint64_t>(fewest))).get();
}

void Scheduler::destroy(Stream* stream) {
  synchronize(*stream);
  std::erase_if(streams_, [&](const auto& held) { return held.get() == stream; });
}

void Scheduler::push(Stream& stream, Stream::Item item) {
  item.number = queued_++;
  stream.queue_.push_back(std::move(item));
  poll();
}

void Scheduler::poll() {
  if (running_) return;
  for (std::uint64_t early = draw(4) == 0 ? draw(8) : 0; early > 0; --early) step();
}

void Scheduler::launch(Stream& stream, Task task) {
  // The legacy default stream: its work and that of blocking streams are in one order.
  std::vector<std::shared_ptr<Event>> before;
  const auto after = [&](Stream& other) {
    if (other.is_empty()) return;
    before.push_back(std::make_shared<Event>());
    record(other, before.back());
  };
  if (&stream == default_.get()) {
    for (const auto& other : streams_) {
      if (other->is_blocking()) after(*other);
    }
  } else if (stream.is_blocking()) {
    after(*default_);
  }
  if (before.empty()) return push(stream, {.task = std::move(task)});
  push(stream, {.task = std::move(task), .may_run = [before = std::move(before)] {
                  return std::ranges::all_of(before, [](const auto& event) { return event->is_passed(); });
                }});
}

void Scheduler::launch_kernel(Stream& stream, const std::string& name, std::function<void()> f) {
  if (std::exchange(refuses_, false)) return set_error(9);  // gpuErrorInvalidConfiguration
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  if (is_nccl && (loading == nullptr || std::string_view(loading) != "EAGER")) load_module(name);
  launch(stream, kernel(name, std::move(f)));
}

void Scheduler::record(Stream& stream, const std::shared_ptr<Event>& event) {
  event->point_ = std::make_shared<Event::Point>(Event::Point{.passed = false, .number = queued_});
  push(stream, {.task = {[] { return std::string("an event"); },
                         [point = event->point_] {
                           point->passed = true;
                           point->time = Event::Clock::now();
                           return Progress::done;
                         }},
                .has_begun = true});
}

void Scheduler::wait(Stream& stream, const std::shared_ptr<Event>& event) {
  push(stream,
       {.task = {[] { return std::string("a wait for an event of another stream"); }, [] { return Progress::done; }},
        .may_run = [point = event->point_] { return point->passed; }});
}

std::vector<const Stream::Item*> Scheduler::next_of_queues() const {
  std::vector<const Stream::Item*> next;
  const auto consider = [&](const Stream& stream) {
    const auto waiting = std::ranges::find(stream.queue_, false, &Stream::Item::has_begun);
    if (waiting == stream.queue_.end()) return;
    if (next.size() <= stream.connection_) next.resize(stream.connection_ + 1);
    const Stream::Item*& first = next[stream.connection_];
    if (first == nullptr || waiting->number < first->number) first = &*waiting;
  };
  consider(*default_);
  for (const auto& stream : streams_) consider(*stream);
  return next;
}

bool Scheduler::step() {
  std::vector<Stream*> ready;
  const std::vector<const Stream::Item*> next = next_of_queues();
  const auto consider = [&](Stream& stream) {
    if (stream.is_empty()) return;
    const Stream::Item& head = stream.queue_.front();
    if (!head.has_begun && next[stream.connection_] != &head) return;
    if (!head.may_run || head.may_run()) ready.push_back(&stream);
  };
  consider(*default_);
  for (const auto& stream : streams_) consider(*stream);
  std::shuffle(ready.begin(), ready.end(), random_);
  for (Stream* stream : ready) {
    running_ = true;
    stream->queue_.front().has_begun = true;
    const Progress progress = stream->queue_.front().task.run();
    running_ = false;
    if (progress == Progress::waits) continue;
    stream->queue_.pop_front();
    return true;
  }
  return false;
}

void Scheduler::run_until(const std::function<bool()>& reached, const std::string& what) {
  using Clock = std::chrono::steady_clock;
  auto looked = Clock::now();
  double without = 0.0;
  while (!reached()) {
    const auto now = Clock::now();
    // A process that was stopped, or got no core, did not look meanwhile.
    without += std::min(longest_look, std::chrono::duration<double>(now - looked).count());
    looked = now;
    if (step()) {
      without = 0.0;
      continue;
    }
    if (without > seconds_without_progress()) {
      std::string heads;
      const std::vector<const Stream::Item*> next = next_of_queues();
      const auto name_head = [&](const Stream& stream) {
        if (stream.is_empty()) return;
        const Stream::Item& head = stream.queue_.front();
        heads += fmt::format("\n  at the head of a stream: {}", head.task.describe());
        if (!head.has_begun && next[stream.connection_] != &head)
          heads += fmt::format(", in its hardware queue behind {}", next[stream.connection_]->task.describe());
      };
      name_head(*default_);
      for (const auto& stream : streams_) name_head(*stream);
      fault(fmt::format("deadlock: {} waits forever{}", what, heads));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void Scheduler::count_wait(std::uint64_t launch) {
  if (launch <= waited_for_) return;
  ++host_waits_;
  waited_for_ = launch;
}

void Scheduler::synchronize(Stream& stream) {
  count_wait(queued_);
  run_until([&] { return stream.is_empty(); }, "the host, in a wait for a stream,");
}

void Scheduler::synchronize(const Event& event) {
  count_wait(event.point_->number);
  run_until([&] { return event.is_passed(); }, "the host, in a wait for an event,");
}

void Scheduler::synchronize_all() {
  count_wait(queued_);
  run_until([&] { return !has_work(); }, "the host, in a wait for the device,");
}

void Scheduler::load_module(const std::string& kernel) {
  if (!loaded_.insert(kernel).second) return;
  count_wait(queued_);
  run_until([&] { return !has_work(); }, fmt::format("the host, which loads the module of {},", kernel));
}

}  // namespace nanotron::emulation
