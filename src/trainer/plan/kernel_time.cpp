#include "nanotron/trainer/plan/kernel_time.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "nanotron/base/error.hpp"

namespace nanotron::trainer {
namespace {

struct Tile {
  double x, y;
};
constexpr std::array tiles{Tile{256, 128}, Tile{128, 256}, Tile{128, 128}, Tile{128, 64}, Tile{64, 128}, Tile{64, 64}};
constexpr std::array splits{1.0, 2.0, 4.0, 8.0};

double efficiency(const Tile& t) { return 1.0 / (1.0 + 28.0 * (1.0 / t.x + 1.0 / t.y - 1.0 / 256.0 - 1.0 / 128.0)); }

double on_multiprocessors(const GemmExtents& e, double rate, const deck::Machine& machine) {
  const auto m = static_cast<double>(e.m), n = static_cast<double>(e.n), k = static_cast<double>(e.k);
  const auto count = static_cast<double>(e.count);
  const double processors = machine.gemm_model.multiprocessors, of_one = rate / processors;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    for (const double split : splits) {
      const double blocks = split * std::ceil(m / tile.x) * std::ceil(n / tile.y) * count;
      const double wave = 2.0 * tile.x * tile.y * (k / split + machine.gemm_model.ramp_k) / (of_one * efficiency(tile));
      const double sums = split > 1.0 ? 8.0 * split * m * n * count / machine.memory : 0.0;
      best = std::min(best, std::ceil(blocks / processors) * wave + sums);
    }
  }
  return best;
}

bool is_forward(const WorkRow& row) { return row.kernel.starts_with("attention_forward"); }

// Of a causal sequence whose queries have as many keys. Forward has two GEMMs over the pairs of queries and keys,
// backward five.
double length_of(const WorkRow& row) {
  const GemmExtents& e = row.work.gemm;
  const double of_a_key = 2.0 * (is_forward(row) ? 2.0 : 5.0) * static_cast<double>(e.k);
  return 2.0 * row.work.flops / (of_a_key * static_cast<double>(e.m) * static_cast<double>(e.count)) - 1.0;
}

double rate_at(const std::vector<deck::AttentionRate>& rows, double deck::AttentionRate::*rate, double head_dim,
               double length) {
  const auto distance = [&](const deck::AttentionRate& r) { return std::abs(r.head_dim - head_dim); };
  const double nearest = std::ranges::min_element(rows, {}, distance)->head_dim;
  const auto first = std::ranges::lower_bound(rows, nearest, {}, &deck::AttentionRate::head_dim);
  const auto last = std::ranges::upper_bound(rows, nearest, {}, &deck::AttentionRate::head_dim);
  const deck::AttentionRate& longest = *(last - 1);
  if (last - first == 1 || length >= longest.length) return longest.*rate;
  const auto longer = std::ranges::upper_bound(first, last, length, {}, &deck::AttentionRate::length);
  const auto above = std::max(first + 1, longer);
  const deck::AttentionRate &a = *(above - 1), &b = *above;
  double slope = (1.0 / (a.*rate) - 1.0 / (b.*rate)) / (1.0 / a.length - 1.0 / b.length);
  if (length < a.length) slope = std::max(slope, 0.0);
  return 1.0 / (1.0 / (a.*rate) + slope * (1.0 / std::max(length, 1.0) - 1.0 / a.length));
}

double attention_rate(const WorkRow& row, const deck::Machine& m) {
  if (row.kernel.ends_with("_mma")) return m.attention_mma;
  if (m.is_gpu && row.work.type != ScalarType::bf16) return m.gemm(row.work.type);
  const bool deterministic = row.kernel == "attention_backward_deterministic";
  if (m.attention.empty()) {
    return is_forward(row) ? m.attention_forward : deterministic ? m.attention_deterministic : m.attention_backward;
  }
  const auto rate = is_forward(row) ? &deck::AttentionRate::forward
                    : deterministic ? &deck::AttentionRate::deterministic
                                    : &deck::AttentionRate::backward;
  return rate_at(m.attention, rate, static_cast<double>(row.work.gemm.k), length_of(row));
}

// The program's own kernels on tensor cores, for rows of experts or for attention, have one rate.
double gemm_rate(const WorkRow& row, const deck::Machine& m) {
  const double of_library = m.gemm(row.work.type);
  return m.is_gpu && row.kernel.starts_with("gemm_grouped") ? std::min(m.attention_mma, of_library) : of_library;
}

double gemm_at(double rate, const GemmExtents& e, double bytes, const deck::Machine& machine) {
  const double flops = 2.0 * static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.k) *
                       static_cast<double>(e.count);
  const deck::GemmModel& model = machine.gemm_model;
  double computing = model.multiprocessors > 0.0 ? on_multiprocessors(e, rate, machine) : flops / rate;
  if (model.operands > 0.0) computing += bytes / model.operands;
  return std::max(computing, bytes / machine.memory);
}

}  // namespace

double copy_seconds(double bytes, const deck::Machine& machine) {
  if (!machine.is_gpu) return 2.0 * bytes / machine.memory;
  if (machine.node.host_link == 0.0) {
    fail(ExitCode::deck_error, {.what = "the machine file does not tell the rate of the link to host memory",
                                .expected = "host_link_gb_per_s in &node, for state_memory = 'host' and offload_layers",
                                .found = machine.name,
                                .change = "see input/machines/h100.nml"});
  }
  return bytes / machine.node.host_link;
}

double gemm_seconds(const GemmExtents& extents, ScalarType type, double bytes, const deck::Machine& machine) {
  return gemm_at(machine.gemm(type), extents, bytes, machine);
}

namespace {

double device_seconds(const WorkRow& row, const deck::Machine& machine) {
  const double bytes = row.work.bytes();
  const auto rate_of = [&](std::string_view kernel) {
    const auto found = std::ranges::find(machine.kernels, kernel, &deck::KernelRate::kernel);
    return found == machine.kernels.end() ? 0.0 : found->rate;
  };
  if (const double rate = rate_of(row.kernel); rate > 0.0) return bytes / rate;
  if (is_gemm(row)) return gemm_at(gemm_rate(row, machine), row.work.gemm, bytes, machine);
  if (is_attention(row)) return std::max(row.work.flops / attention_rate(row, machine), bytes / machine.memory);
  const double rate = rate_of("other");
  return bytes / (rate > 0.0 ? rate : machine.memory);
}

// A kernel that reaches into host memory ends when both memories have done their part.
double host_seconds(const Work& work, const deck::Machine& machine) {
  if (work.from_host == 0.0 && work.to_host == 0.0) return 0.0;
  if (!machine.is_gpu) return (work.from_host + work.to_host) / machine.memory;
  return copy_seconds(std::max(work.from_host, work.to_host), machine);
}

}  // namespace

double work_seconds(const WorkRow& row, const deck::Machine& machine) {
  const double own = device_seconds(row, machine), of_host = host_seconds(row.work, machine);
  return machine.is_gpu ? std::max(own, of_host) : own + of_host;
}

double launch_seconds(const WorkRow& row, const deck::Machine& machine) {
  return machine.launch * static_cast<double>(row.launches) /
         static_cast<double>(std::max<std::uint64_t>(1, row.calls));
}

double row_seconds(const WorkRow& row, const deck::Machine& machine) {
  return static_cast<double>(row.calls) * work_seconds(row, machine) +
         static_cast<double>(row.launches) * machine.launch;
}

}  // namespace nanotron::trainer
