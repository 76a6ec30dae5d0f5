#include "nanotron/nn/vocab/vocab_loss.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

// Enough rows for efficient GEMMs, few enough that the logits stay a small part of memory. On a GPU each chunk's pass
// over the weight gradient counts more: most micro-batches are one chunk.
constexpr std::size_t chunk_bytes = std::size_t{64} << 20;
constexpr index_t min_rows = 128, rows_on_gpu = 8192;

index_t chunk_rows(Processor processor, std::size_t row_bytes) {
  if (processor == Processor::gpu) return rows_on_gpu;
  return std::max(min_rows, static_cast<index_t>(chunk_bytes / row_bytes));
}

// Tensor cores want rows that begin at multiples of 16 bytes, also those of a vocabulary of 50257.
template <class T>
index_t row_length(Processor processor, index_t columns) {
  constexpr index_t line = 128 / sizeof(T);
  return processor == Processor::gpu ? (columns + line - 1) / line * line : columns;
}

SumOrder order_of_softmax(const Device& device, const LinearOrders& orders) {
  return device.gemm_mode() == GemmMode::fixed_order ? orders.out : SumOrder();
}

template <class V>
V slice(const V& v, index_t begin, index_t count) {
  return V(v.data() + begin, count);
}
template <class V>
V slice_if_any(const V& v, index_t begin, index_t count) {
  return v.extent(0) == 0 ? v : slice(v, begin, count);
}

}  // namespace

Objective objective_of(const deck::Config& config) {
  return {.z_coefficient = config.optimizer.z_loss_coefficient, .of_sequences = config.preference.beta > 0.0};
}

void check_objective(const deck::Config& config, deck::Findings& findings) {
  const Objective objective = objective_of(config);
  if (!objective.of_sequences || !objective.has_auxiliary()) return;
  findings.error({"optimizer.z_loss_coefficient"},
                 "the z loss is a mean over tokens, and training on pairs minimises a mean over pairs",
                 "z_loss_coefficient = 0");
}

LogitRule logit_rule(const deck::ModelConfig& model, const Objective& objective) {
  return {.multiplier = 1.0 / model.logits_scaling, .cap = model.final_logit_softcapping, .objective = objective};
}

template <class T>
LossWorkspace<T>::LossWorkspace(Arena& arena, index_t tokens, index_t local_vocabulary, index_t chunk_width,
                                index_t bias_segments) {
  const std::size_t row_bytes = static_cast<std::size_t>(std::max<index_t>(chunk_width, 1)) * sizeof(T);
  const index_t rows = chunk_width == 0 ? tokens : std::min(tokens, chunk_rows(arena.processor(), row_bytes));
  const index_t length = row_length<T>(arena.processor(), local_vocabulary);
  logits = {arena.take<T>(MemoryKind::workspace, rows, length).data(), rows, local_vocabulary, length};
  max = arena.take<M>(MemoryKind::workspace, rows);
  own = arena.take<M>(MemoryKind::workspace, arena.processor() == Processor::gpu ? 2 * rows : 0);
  sum_and_target = arena.take<M>(MemoryKind::workspace, 2 * rows);
  if (bias_segments == 0 || rows == 0) return;
  bias_sums = arena.take<M>(MemoryKind::workspace,
                            kernels::bias_workspace_size(arena.processor(), rows, local_vocabulary, bias_segments));
}

// Rows [begin, begin + count) of a micro-batch, and the workspace for them.
template <class T>
struct VocabLoss<T>::Chunk {
  Matrix<const T> n;
  Vector<const std::int32_t> targets;
  MatrixRef<T> logits;
  Vector<M> max;
  Vector<M> own;
  Vector<M> sum;
  Vector<M> target_logit;
  Vector<double> losses, lse2;

  Chunk(index_t begin, index_t count, Matrix<const T> all_n, Vector<const std::int32_t> all_targets,
        const LossWorkspace<T>& work, const LossRows& all)
      : n(rows_of<const T>(all_n, {begin, begin + count})),
        targets(slice(all_targets, begin, count)),
        logits(work.logits.row_block(0, count)),
        max(slice(work.max, 0, count)),
        own(slice(work.own, 0, std::min(2 * count, static_cast<index_t>(work.own.extent(0))))),
        sum(slice(work.sum_and_target, 0, count)),
        target_logit(slice(work.sum_and_target, count, count)),
        losses(slice(all.loss, begin, count)),
        lse2(slice_if_any(all.auxiliary, begin, count)) {}
};

template <class T>
void VocabLoss<T>::logits(Device& device, Matrix<const T> n, MatrixRef<T> logits) const {
  kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::transpose, rule_.multiplier, n, head_.weight, 0.0,
                      logits);
  if (head_.bias.extent(0) > 0) kernels::bias_add<T>(device, logits, head_.bias);
  if (rule_.cap > 0.0) kernels::cap_logits<T>(device, logits, rule_.cap);
}

template <class T>
void VocabLoss<T>::loss_of_shards(Device& device, const Chunk& c) const {
  const SumOrder order = order_of_softmax(device, orders_);
  kernels::cross_entropy_local_max<T>(device, c.logits, c.max, c.own, order);
  comm::all_reduce(*tp_, c.max.data(), elements_of(c.max), comm::ReduceOp::max, device.stream());
  kernels::cross_entropy_local_sum<T>(device, c.logits, c.targets, vocabulary_.begin, c.max, c.own, c.sum,
                                      c.target_logit, order);
  comm::all_reduce(*tp_, c.sum.data(), 2 * elements_of(c.sum), comm::ReduceOp::sum, device.stream());
  kernels::cross_entropy_loss<M>(device, c.max, c.sum, c.target_logit, c.targets, c.losses, c.lse2);
}

// begin: of the chunk in the micro-batch.
template <class T>
void VocabLoss<T>::draw_targets(Device& device, const Chunk& c, index_t begin, const DrawnTargets& drawn) const {
  if (drawn.targets.extent(0) == 0) return;
  kernels::draw_of_shard<T>(device, drawn.draw, {begin, drawn.shard}, c.logits, vocabulary_.begin, c.sum,
                            c.target_logit);
  if (tp_->size() > 1) {
    kernels::copy<M>(device, c.sum, c.max);
    comm::all_reduce(*tp_, c.max.data(), elements_of(c.max), comm::ReduceOp::max, device.stream());
    kernels::withdraw_candidates<M>(device, c.sum, c.max, c.target_logit);
    comm::all_reduce(*tp_, c.target_logit.data(), elements_of(c.target_logit), comm::ReduceOp::max, device.stream());
  }
  kernels::write_labels<M>(device, c.target_logit, slice(drawn.targets, begin, c.logits.rows));
}

template <class T>
kernels::LossGradient VocabLoss<T>::gradient_of(double scale, const LossRows& rows,
                                                Vector<const double> weights) const {
  const double of_lse2 = rows.drawn.targets.extent(0) == 0 ? rule_.objective.z_coefficient : 0.0;
  return {.scale = scale, .z_scale = scale * of_lse2, .cap = rule_.cap, .row_weights = weights};
}

template <class T>
void VocabLoss<T>::forward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets,
                           const LossWorkspace<T>& work, Vector<double> losses) const {
  const auto tokens = static_cast<index_t>(n.extent(0));
  for (index_t begin = 0; begin < tokens; begin += work.chunk()) {
    const index_t count = std::min(work.chunk(), tokens - begin);
    const Chunk c(begin, count, n, targets, work, {losses});
    logits(device, c.n, c.logits);
    if (tp_->size() > 1) {
      loss_of_shards(device, c);
    } else {
      kernels::cross_entropy_whole_loss<T>(device, c.logits, c.targets, c.losses, order_of_softmax(device, orders_));
    }
  }
}

template <class T>
void VocabLoss<T>::forward_backward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets, double scale,
                                    const LossWorkspace<T>& work, const LossRows& rows, Matrix<T> dn,
                                    const ShardGradients<T>& apart) const {
  const auto tokens = static_cast<index_t>(n.extent(0));
  Vector<const double> weights;
  if (rows.weights != nullptr) {
    forward(device, n, targets, work, rows.loss);
    weights = rows.weights->of(device, rows.loss);
  }
  int shard = 0;
  for (index_t begin = 0; begin < tokens; ++shard) {
    const index_t count = apart.is_empty() ? std::min(work.chunk(), tokens - begin) : apart.tokens_of(shard).size();
    const Chunk c(begin, count, n, targets, work, rows);
    const kernels::LossGradient gradient = gradient_of(scale, rows, slice_if_any(weights, begin, count));
    logits(device, c.n, c.logits);
    draw_targets(device, c, begin, rows.drawn);
    if (tp_->size() > 1) {
      loss_of_shards(device, c);
      kernels::cross_entropy_gradient<T>(device, c.logits, c.targets, vocabulary_.begin, c.max, c.sum, gradient);
    } else {
      kernels::cross_entropy_whole<T>(device, c.logits, c.targets, gradient, c.losses, c.lse2,
                                      order_of_softmax(device, orders_));
    }
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, rule_.multiplier, c.logits, head_.weight, 0.0,
                        MatrixRef<T>(rows_of<T>(dn, {begin, begin + count})), orders_.out);
    begin += count;
    if (head_.gradient.extent(0) == 0) continue;  // frozen
    const LinearWeights<T> head = apart.is_empty() ? head_ : apart.of(shard, head_);
    const SumOrder order = apart.is_empty() ? orders_.tokens : SumOrder();
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, rule_.multiplier, c.logits, c.n, 1.0,
                        MatrixRef<M>(head.gradient), order);
    if (head.bias.extent(0) > 0)
      kernels::bias_backward<T>(device, c.logits, head.bias_gradient, work.bias_sums, order.shards_on_rank);
  }
  if (rows.weights != nullptr) rows.weights->replace(device, rows.loss);
}

NANOTRON_INSTANTIATE_CLASS(LossWorkspace)
NANOTRON_INSTANTIATE_CLASS(VocabLoss)

}  // namespace nanotron::nn
