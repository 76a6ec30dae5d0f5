#include "nanotron/simulation/operation_time.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "nanotron/base/error.hpp"
#include "nanotron/trainer/plan/kernel_time.hpp"

namespace nanotron::simulation {
namespace {

void require(const GroupPlacement& group, const deck::Machine& m) {
  const bool lacks_node = m.node.ranks == 0, lacks_network = group.nodes > 1 && m.network.rails == 0;
  if (!lacks_node && !lacks_network) return;
  fail(ExitCode::deck_error, {.what = "the machine file does not describe how its ranks are connected",
                              .expected = lacks_node ? "a group &node" : "a group &network",
                              .found = m.name,
                              .change = "see input/machines/h100.nml"});
}

}  // namespace

GroupPlacement placement_of(const std::vector<int>& ranks, const deck::Machine& machine) {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(machine.node.ranks == 0 ? 0 : rank / machine.node.ranks);
  return {static_cast<int>(ranks.size()), static_cast<int>(nodes.size())};
}

double collective_seconds(comm::Operation operation, double bytes, const GroupPlacement& group,
                          const deck::Machine& m) {
  if (group.ranks <= 1) return 0.0;
  require(group, m);
  const auto n = static_cast<double>(group.ranks), nodes = static_cast<double>(group.nodes);
  const double g = n / nodes, share_of_others = (n - 1.0) / n;
  const bool crosses = group.nodes > 1;
  const double rail = crosses ? m.network.rails * m.network.rail / m.node.ranks : 0.0;
  const double bandwidth = crosses ? std::min(m.node.link, g * rail) : m.node.link;
  const double near = m.node.latency, far = crosses ? m.network.latency : 0.0;
  const double ring_steps = (n - nodes) * near + (nodes - 1.0) * far;
  const double tree_steps = (g - 1.0) * near + std::ceil(std::log2(nodes)) * far;
  switch (operation) {
    case comm::Operation::all_reduce:
      return 2.0 * (share_of_others * bytes / bandwidth + std::min(ring_steps, tree_steps));
    case comm::Operation::all_gather:
    case comm::Operation::reduce_scatter:
      return share_of_others * bytes / bandwidth + ring_steps;
    case comm::Operation::broadcast:
      return bytes / bandwidth + tree_steps;
    case comm::Operation::all_to_all: {
      const double inside = (g - 1.0) / n * bytes / m.node.link, outside = crosses ? (n - g) / n * bytes / rail : 0.0;
      return std::max(inside, outside) + (g - 1.0) * near + (n - g) * far;
    }
    default:
      return bytes / (crosses ? rail : m.node.link) + (crosses ? far : near);
  }
}

double exchange_by_node_seconds(double bytes, double copies, const GroupPlacement& group, const deck::Machine& m,
                                double algorithm_rate) {
  if (group.nodes <= 1) return collective_seconds(comm::Operation::all_to_all, bytes, group, m);
  require(group, m);
  // Of n, how many have one of the copies.
  const auto places = [&](double n) { return n * (1.0 - std::pow(1.0 - 1.0 / n, copies)); };
  const auto n = static_cast<double>(group.ranks), nodes = static_cast<double>(group.nodes);
  const double g = n / nodes, of_a_copy = bytes / copies;
  const double outside = of_a_copy * places(nodes) * (nodes - 1.0) / nodes;
  const double inside = of_a_copy * places(n) * (g - 1.0) / g;
  const double rail = m.network.rails * m.network.rail / m.node.ranks;
  const double of_library = algorithm_rate > 0.0 ? of_a_copy * places(nodes) / algorithm_rate : 0.0;
  return std::max({inside / m.node.link, outside / rail, of_library}) + (g - 1.0) * m.node.latency +
         (nodes - 1.0) * m.network.latency;
}

namespace {

using trainer::gemm_seconds, trainer::is_attention, trainer::is_gemm;

// Bytes per second of kernels without GEMMs.
double streaming(const deck::Machine& machine, const Software& software) {
  return (software.kernel_share > 0.0 ? software.kernel_share : 1.0) * machine.memory;
}

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
  const double dropout = software.dropout ? 2.5 : 0.0, memory = streaming(machine, software);
  const double forward = score + value + pass((2.0 + dropout) * scores) / memory + 2.0 * machine.launch;
  if (row.kernel.starts_with("attention_forward")) return forward;
  const double backward = 2.0 * score + 2.0 * value + pass((3.0 + dropout) * scores) / memory;
  return backward + 2.0 * machine.launch + (software.attention == AttentionForm::recomputed ? forward : 0.0);
}

// Random numbers of a fused kernel, one for each score of a causal sequence, in forward and again in backward: they use
// the units of softmax and are not hidden behind it (Ma, Liu and Krashinsky, arXiv 2410.07531: without them one block
// of Llama 3 on a GH100 in FP8 is 1.22 times as fast). Philox of 7 rounds makes 4 with 70 integer instructions, 64
// lanes of a multiprocessor at 1.7 GHz; two more compare and select.
double fused_dropout(const WorkRow& row, const deck::Machine& machine, const Software& software) {
  if (!software.dropout) return 0.0;
  const GemmExtents& e = row.work.gemm;
  const double gemms = row.kernel.starts_with("attention_forward") ? 2.0 : 5.0;
  const double scores = row.work.flops / (2.0 * gemms * static_cast<double>(e.k));
  constexpr double instructions = 70.0 / 4.0 + 2.0, rate_of_one = 64.0 * 1.7e9;
  return instructions * scores / (rate_of_one * machine.gemm_model.multiprocessors);
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

// Of a pass for each operation over n logits in fp32, read and written: their cast, maximum, difference, exponential,
// sum, quotient, product with the output's gradient and cast back are 52 n bytes. Ours read or write n in 16 bits two
// or three times in the kernel of the gradient, and once in that of the maximum.
double loss_factor(const WorkRow& row, const Software& software) {
  if (!software.unfused_loss) return 1.0;
  if (row.kernel == "cross_entropy_whole") return 52.0 / 6.0;
  if (row.kernel == "cross_entropy_gradient") return 52.0 / 4.0;
  return row.kernel == "cross_entropy_local_max" ? 0.0 : 1.0;
}

// Kernels that other software does not have.
bool is_left_out(const WorkRow& row, const Software& software) {
  if (software.casts_beside && row.kernel == "row_maxima") return true;
  return software.sorts_in_exchange && (row.kernel.starts_with("place_") || row.kernel == "find_places");
}

double other_kernel(const WorkRow& row, const deck::Machine& machine, const Software& software) {
  const double seconds = software.kernel_share > 0.0 ? row.work.bytes() / streaming(machine, software)
                                                     : trainer::work_seconds(row, machine);
  return dropout_factor(row, software) * loss_factor(row, software) * seconds;
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
  return software.adds_gradients_apart && adds ? pass(3.0 * of_c) / streaming(machine, software) + machine.launch : 0.0;
}

}  // namespace

double host_launches(const WorkRow& row, const Software& software) {
  if (is_left_out(row, software)) return 0.0;
  return static_cast<double>(row.launches) / static_cast<double>(row.calls);
}

double kernel_seconds(const WorkRow& row, const deck::Machine& machine, const Software& software,
                      const LayerSizes& sizes) {
  if (is_attention(row) && software.attention != AttentionForm::fused) {
    return unfused_attention(row, machine, software);
  }
  if (is_left_out(row, software)) return 0.0;
  const double launching = trainer::launch_seconds(row, machine);
  if (!is_gemm(row) && !is_attention(row)) return launching + other_kernel(row, machine, software);
  const double one = trainer::work_seconds(row, machine);
  if (!is_gemm(row)) return launching + one + fused_dropout(row, machine, software);
  return launching + gradient_addition(row, machine, software) + repeated_gemm(row.work.gemm, software, sizes) * one;
}

}  // namespace nanotron::simulation
