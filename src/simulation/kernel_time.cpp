#include "nanotron/simulation/kernel_time.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "nanotron/trainer/roofline.hpp"

namespace nanotron::simulation {
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

bool is_gemm(const WorkRow& row) { return row.work.gemm.count > 0 && row.kernel.starts_with("gemm"); }
bool is_attention(const WorkRow& row) { return row.work.gemm.count > 0 && row.kernel.starts_with("attention"); }

// Bytes that a pass over `elements` of two bytes moves.
double pass(double elements) { return 2.0 * elements; }

// Scores of all heads in memory, masked ones too. Forward: Q K^T, scale and softmax (read, write), dropout (read,
// write, mask of one byte), P V. Backward: four GEMMs, dropout (read, write, mask), softmax (two reads, a write).
double unfused_attention(const WorkRow& row, const deck::Machine& machine, const Software& software) {
  const GemmExtents& e = row.work.gemm;
  const double scores = static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.count);
  const double values = static_cast<double>(e.n) * static_cast<double>(e.k) * static_cast<double>(e.count);
  const auto gemm = [&](const GemmExtents& extents) {
    return gemm_seconds(extents, row.work.type, pass(2.0 * values + scores), machine) + machine.launch;
  };
  const double score = gemm({e.m, e.n, e.k, e.count}), value = gemm({e.m, e.k, e.n, e.count});
  const double dropout = software.dropout ? 2.5 : 0.0;
  const double forward = score + value + pass((2.0 + dropout) * scores) / machine.memory + 2.0 * machine.launch;
  if (row.kernel.starts_with("attention_forward")) return forward;
  const double backward = 2.0 * score + 2.0 * value + pass((3.0 + dropout) * scores) / machine.memory;
  return backward + 2.0 * machine.launch + (software.attention == AttentionForm::recomputed ? forward : 0.0);
}

// Passes over the hidden states. Ours in forward: residual sum and norm in one kernel, two reads and two writes. With
// dropout: sum (two reads, a write, a mask of half a pass), norm (read, write). Backward: ours three reads and a write,
// with dropout a kernel more of a read, a write and the mask.
double dropout_factor(const WorkRow& row, const Software& software) {
  if (!software.dropout) return 1.0;
  if (row.kernel == "add_layer_norm_forward" || row.kernel == "add_rms_norm_forward") return 5.5 / 4.0;
  if (row.kernel == "layer_norm_backward" || row.kernel == "rms_norm_backward") return 6.5 / 4.0;
  return 1.0;
}

// The last GEMM of a layer has the extents of the input gradient of the first GEMM of the feed-forward network: with
// recomputation of the whole layer three such calls for two.
double repeated_gemm(const GemmExtents& e, const Software& software, const LayerSizes& sizes) {
  const bool is_last = e.n == sizes.hidden && e.k == sizes.intermediate;
  return software.recomputes_whole_layers && is_last ? 1.5 : 1.0;
}

double gradient_addition(const WorkRow& row, const deck::Machine& machine, const Software& software) {
  const GemmExtents& e = row.work.gemm;
  const double of_c = static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.count);
  const bool adds = row.work.written >= 4.0 * of_c && row.work.type == ScalarType::bf16;  // float gradients
  return software.adds_gradients_apart && adds ? pass(3.0 * of_c) / machine.memory + machine.launch : 0.0;
}

}  // namespace

double gemm_seconds(const GemmExtents& e, ScalarType type, double bytes, const deck::Machine& machine) {
  const double flops = 2.0 * static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.k) *
                       static_cast<double>(e.count);
  const deck::GemmModel& model = machine.gemm_model;
  double computing = flops / machine.gemm(type);
  if (model.multiprocessors > 0.0) computing = on_multiprocessors(e, machine.gemm(type), machine);
  if (model.operands > 0.0) computing += bytes / model.operands;
  return std::max(computing, bytes / machine.memory);
}

double kernel_seconds(const WorkRow& row, const deck::Machine& machine, const Software& software,
                      const LayerSizes& sizes) {
  const double launching =
      machine.launch * static_cast<double>(row.launches) / static_cast<double>(std::max<std::uint64_t>(1, row.calls));
  const auto measured = std::ranges::find(machine.kernels, row.kernel, &deck::KernelRate::kernel);
  if (measured != machine.kernels.end()) return launching + row.work.bytes() / measured->rate;
  if (is_gemm(row)) {
    return launching + gradient_addition(row, machine, software) +
           repeated_gemm(row.work.gemm, software, sizes) *
               gemm_seconds(row.work.gemm, row.work.type, row.work.bytes(), machine);
  }
  if (is_attention(row) && software.attention != AttentionForm::fused) {
    return unfused_attention(row, machine, software);
  }
  WorkRow one = row;
  one.calls = 1;
  one.launches = 0;
  if (!machine.is_gpu && is_attention(row)) one.work.type = ScalarType::bf16;  // a host's rates are of any type
  return launching + dropout_factor(row, software) * trainer::roofline_seconds(one, machine);
}

}  // namespace nanotron::simulation
