#include "nanotron/tensor/arena.hpp"

#include <fmt/format.h>

#include <numeric>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::uint64_t hash_prime = 1099511628211u;  // FNV-1a's

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

const char* name_of(MemoryKind kind) {
  constexpr std::array<const char*, memory_kinds> names{"parameters", "gradients", "optimizer", "activations",
                                                        "workspace"};
  return names[static_cast<std::size_t>(kind)];
}

std::size_t MemoryPlan::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}); }

std::string MemoryPlan::table() const {
  constexpr double mib = 1024.0 * 1024.0;
  std::string text;
  for (std::size_t kind = 0; kind < memory_kinds; ++kind) {
    text += fmt::format("  {:<12} {:>12.1f} MiB\n", name_of(static_cast<MemoryKind>(kind)),
                        static_cast<double>(bytes[kind]) / mib);
  }
  text += fmt::format("  {:<12} {:>12.1f} MiB\n", "total", static_cast<double>(total()) / mib);
  return text;
}

Arena Arena::planning(Processor processor) { return Arena(processor); }

std::size_t Arena::bytes_of(const MemoryPlan& plan) { return plan.total() + alignment; }

Arena::Arena(const MemoryPlan& plan) : planning_(false), plan_(plan) {
  try {
    memory_ = static_cast<std::byte*>(Kokkos::kokkos_malloc<MemorySpace>("nanotron::Arena", bytes_of(plan)));
  } catch (const std::exception&) {  // Kokkos: several types, by version
    fail(ExitCode::system_error,
         {.what = "not enough memory for the run",
          .expected = "on this rank, in MiB\n" + plan.table(),
          .found = "less",
          .change = "more ranks, a smaller data%micro_batch_size or parallel%recompute = 'full'; "
                    "nanotron_hpc --plan shows the memory of a deck"});
  }
  clear();
}

Arena::Arena(const MemoryPlan& plan, std::span<std::byte> memory)
    : planning_(false), owns_(false), plan_(plan), memory_(memory.data()) {
  NANOTRON_REQUIRE(memory.size() >= bytes_of(plan), "an arena of {} bytes in {}", bytes_of(plan), memory.size());
  clear();
}

void Arena::clear() {
  Kokkos::View<std::byte*, MemorySpace, Kokkos::MemoryUnmanaged> all(memory_, bytes_of(plan_));
  Kokkos::deep_copy(all, std::byte{0});
}

Arena::Arena(Arena&& other) noexcept
    : planning_(other.planning_),
      owns_(other.owns_),
      processor_(other.processor_),
      plan_(other.plan_),
      used_(other.used_),
      memory_(std::exchange(other.memory_, nullptr)) {}

Arena::~Arena() {
  if (owns_ && memory_ != nullptr) Kokkos::kokkos_free<MemorySpace>(memory_);
}

void* Arena::take_bytes(MemoryKind kind, std::size_t bytes) {
  const std::size_t size = aligned(bytes);
  if (planning_) {
    plan_.offsets = (plan_.offsets ^ plan_.total()) * hash_prime;
    plan_.bytes[static_cast<std::size_t>(kind)] += size;
    return nullptr;
  }
  NANOTRON_REQUIRE(used_ + size <= plan_.total(), "the arena was planned for {} bytes and asked for {}", plan_.total(),
                   used_ + size);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_);
  std::byte* start = memory_ + (alignment - address % alignment) % alignment;
  void* result = start + used_;
  used_ += size;
  return result;
}

}  // namespace nanotron
