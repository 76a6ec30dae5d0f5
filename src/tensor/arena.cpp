#include "nanotron/tensor/arena.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::uint64_t hash_prime = 1099511628211u;  // FNV-1a's

constexpr bool is_on_host(MemoryKind kind) {
  return kind == MemoryKind::host_optimizer || kind == MemoryKind::host_activations;
}

// On a host that gives pages of 2 MiB on request (transparent_hugepage = madvise): fewer misses of address
// translations, and the processor fetches ahead over 4 KiB. A hint, before the first access.
void request_huge_pages([[maybe_unused]] std::byte* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  if constexpr (built_for != Processor::cpu) return;
  constexpr std::size_t page = std::size_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + page - 1) / page * page, end = (begin + bytes) / page * page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

const char* name_of(MemoryKind kind) {
  constexpr std::array<const char*, memory_kinds> names{"parameters", "gradients", "optimizer",  "activations",
                                                        "workspace",  "optimizer", "activations"};
  return names[static_cast<std::size_t>(kind)];
}

std::size_t MemoryPlan::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}) - on_host();
}

std::size_t MemoryPlan::on_host() const {
  return bytes[static_cast<std::size_t>(MemoryKind::host_optimizer)] +
         bytes[static_cast<std::size_t>(MemoryKind::host_activations)];
}

MemoryPlan MemoryPlan::covering(std::span<const MemoryPlan> plans) {
  MemoryPlan all = *std::ranges::max_element(plans, {}, &MemoryPlan::total);
  const std::size_t most = std::ranges::max_element(plans, {}, &MemoryPlan::on_host)->on_host();
  all.bytes[static_cast<std::size_t>(MemoryKind::host_activations)] += most - all.on_host();
  return all;
}

std::string MemoryPlan::table() const {
  constexpr double mib = 1024.0 * 1024.0;
  std::string text;
  const auto add = [&](const char* name, std::size_t size, const char* where) {
    text += fmt::format("  {:<12} {:>12.1f} MiB{}\n", name, static_cast<double>(size) / mib, where);
  };
  for (std::size_t i = 0; i < memory_kinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    if (!is_on_host(kind)) add(name_of(kind), bytes[i], "");
  }
  add("total", total(), "");
  for (const MemoryKind kind : {MemoryKind::host_optimizer, MemoryKind::host_activations}) {
    const std::size_t size = bytes[static_cast<std::size_t>(kind)];
    if (size > 0) add(name_of(kind), size, " in host memory, besides");
  }
  return text;
}

Arena Arena::planning(Processor processor) { return Arena(processor); }

std::size_t Arena::bytes_of(const MemoryPlan& plan) { return plan.total() + alignment; }

std::size_t Arena::host_bytes_of(const MemoryPlan& plan) {
  return plan.on_host() == 0 ? 0 : plan.on_host() + alignment;
}

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
  request_huge_pages(memory_, bytes_of(plan));
  take_host_memory();
  clear();
}

Arena::Arena(const MemoryPlan& plan, std::span<std::byte> memory)
    : planning_(false), owns_(false), plan_(plan), memory_(memory.data()) {
  NANOTRON_REQUIRE(memory.size() >= bytes_of(plan), "an arena of {} bytes in {}", bytes_of(plan), memory.size());
  take_host_memory();
  clear();
}

Arena::Arena(const MemoryPlan& plan, const Arena& whole)
    : planning_(false), owns_(false), plan_(plan), memory_(whole.memory_), host_memory_(whole.host_memory_) {
  NANOTRON_REQUIRE(whole.plan_.total() >= plan.total() && whole.plan_.on_host() >= plan.on_host(),
                   "an arena of {} and {} bytes in {} and {}", plan.total(), plan.on_host(), whole.plan_.total(),
                   whole.plan_.on_host());
  clear();
}

void Arena::take_host_memory() {
  if (host_bytes_of(plan_) == 0) return;
  try {
    own_host_memory_ = std::make_unique<PinnedMemory>(host_bytes_of(plan_));
  } catch (const std::exception& error) {
    fail(ExitCode::system_error,
         {.what = "not enough host memory for what the deck moves there",
          .expected = fmt::format("{:.1f} MiB on this rank, page-locked on a GPU",
                                  static_cast<double>(plan_.on_host()) / (1024.0 * 1024.0)),
          .found = error.what(),
          .change = plan_.bytes[static_cast<std::size_t>(MemoryKind::host_activations)] > 0
                        ? "a smaller parallel%offload_layers"
                        : "more ranks with zero_stage >= 1, moments = 'bf16', or optimizer%state_memory = 'device'"});
  }
  host_memory_ = own_host_memory_->data();
}

void Arena::clear() {
  if (const std::size_t bytes = host_bytes_of(plan_); bytes > 0) std::memset(host_memory_, 0, bytes);
  Kokkos::View<std::byte*, MemorySpace, Kokkos::MemoryUnmanaged> all(memory_, bytes_of(plan_));
  Kokkos::deep_copy(all, std::byte{0});
}

Arena::Arena(Arena&& other) noexcept
    : planning_(other.planning_),
      owns_(other.owns_),
      processor_(other.processor_),
      plan_(other.plan_),
      used_(other.used_),
      host_used_(other.host_used_),
      memory_(std::exchange(other.memory_, nullptr)),
      host_memory_(std::exchange(other.host_memory_, nullptr)),
      own_host_memory_(std::move(other.own_host_memory_)) {}

Arena::~Arena() {
  if (owns_ && memory_ != nullptr) Kokkos::kokkos_free<MemorySpace>(memory_);
}

void* Arena::take_bytes(MemoryKind kind, std::size_t bytes) {
  const std::size_t size = aligned(bytes);
  const bool on_host = is_on_host(kind);
  if (planning_) {
    if (!on_host) plan_.offsets = (plan_.offsets ^ plan_.total()) * hash_prime;
    plan_.bytes[static_cast<std::size_t>(kind)] += size;
    return nullptr;
  }
  const std::size_t planned = on_host ? plan_.on_host() : plan_.total();
  std::size_t& used = on_host ? host_used_ : used_;
  NANOTRON_REQUIRE(used + size <= planned, "the arena was planned for {} bytes and asked for {}", planned, used + size);
  std::byte* const memory = on_host ? host_memory_ : memory_;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  void* const result = memory + (alignment - address % alignment) % alignment + used;
  used += size;
  return result;
}

}  // namespace nanotron
