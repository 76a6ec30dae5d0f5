#include "nanotron/nn/moe/moe.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {

namespace {

// Of these tokens, those whose rows this rank sends, and their assignments.
template <class T>
Range sent_tokens(const MoeParts<T>& parts, index_t tokens) {
  return shard_range(tokens, parts.slices->size(), parts.slices->rank());
}
template <class T>
Range sent_assignments(const MoeParts<T>& parts, index_t tokens) {
  const Range slice = sent_tokens(parts, tokens);
  return {slice.begin * parts.routing.top_k, slice.end * parts.routing.top_k};
}

// With recompute_dispatch, except in layers of recompute = 'full', which share the input rows.
template <class T>
bool receives_again(const RoutedActivations<T>& act) {
  return act.input.extent(0) == 0;
}

}  // namespace

template <class T>
PassTraffic Moe<T>::traffic(const TensorParallelRegion<T>& region) const {
  const MoeSizes& s = parts_->sizes;
  const ExpertSumSize size{.tokens = s.tokens,
                           .assignments = s.assignments(),
                           .rows = s.sent,
                           .shared_tokens = w_.shared ? s.tokens : 0,
                           .hidden = s.hidden};
  const comm::StepTraffic gather = region.gather_traffic(), sum = parts_->sums->sum_traffic(region, size);
  const index_t counts = s.sequences * s.experts * static_cast<index_t>(sizeof(std::int64_t));
  return PassTraffic{
             .forward = gather + parts_->capacity->traffic(),
             .backward = gather + sum + parts_->sums->values_traffic(size) +
                         comm::StepTraffic{.context_parallel = comm::all_reduce_bytes(counts, parts_->cp->size())},
             .output = sum} +
         parts_->exchanges.front()->traffic() +
         PassTraffic{.again =
                         s.recompute_dispatch ? parts_->exchanges.front()->dispatch_traffic() : comm::StepTraffic{}};
}

// Chooses the experts of each token; starts the dispatch of the tokens as rows, with their weights.
template <class T>
void Moe<T>::route(Device& device, const TokenBatch& batch, Matrix<const T> n, const RoutedActivations<T>& act,
                   const RoutedWorkspace<T>& work) const {
  const kernels::Routing& routing = parts_->routing;
  const auto tokens = static_cast<index_t>(n.extent(0));
  const index_t all = tokens * routing.top_k;
  const Vector<std::int64_t> assignments = first(act.assignments, all), rows = first(act.row_of_assignment, all);
  const MatrixRef<M> logits(first(work.logits, tokens));
  kernels::gemm<T, M>(device, kernels::Op::none, kernels::Op::transpose, 1.0, n, w_.router.weight, 0.0, logits);
  if (w_.router.bias.extent(0) > 0)
    kernels::bias_add<M>(device, logits.column_block(0, routing.experts), w_.router.bias);
  kernels::route_forward<M>(device, routing, batch.filled, logits, first(act.probabilities, tokens), assignments,
                            first(act.weights, all), first(act.z, tokens), w_.choice_bias,
                            act.score_sums.extent(0) > 0 ? first(act.score_sums, tokens) : act.score_sums);
  if (has_shared_gate()) {
    kernels::sigmoid_forward<M>(device, logits.column_block(routing.experts, 1), first(act.gate, tokens));
  }
  parts_->capacity->apply(device, batch, assignments, sent_assignments(*parts_, tokens), rows, act.source);
  kernels::assign_rows(device, assignments, rows, act.source, work.counts, work.stretches);
  ExpertRows& plan = *act.rows;
  if (plan.cuts.extent(0) > 0) {
    kernels::cut_rows(device, routing.top_k, act.source, work.counts, parts_->orders.tokens, work.cuts);
  }
  exchange(work).start_plan(device, routes(act, tokens), work.counts, plan);
  if (plan.cuts.extent(0) > 0) exchange(work).dispatch_cuts(device, work.cuts, plan.cuts);
  exchange(work).start_dispatch(device, plan, routes(act, tokens), n, first(act.weights, all), input(act, work),
                                act.row_weights);
}

template <class T>
TokenRoutes Moe<T>::routes(const RoutedActivations<T>& act, index_t tokens) const {
  const index_t top_k = parts_->routing.top_k, all = tokens * top_k;
  return {top_k, first(act.assignments, all), first(act.row_of_assignment, all),
          first(act.source, sent_assignments(*parts_, tokens).size())};
}

// Where rows arrive.
template <class T>
Matrix<T> Moe<T>::input(const RoutedActivations<T>& act, const RoutedWorkspace<T>& work) const {
  return receives_again(act) ? work.output : act.input;
}

template <class T>
void Moe<T>::compute_rows(Device& device, const RoutedActivations<T>& act) const {
  const index_t rows = act.rows->received_rows;
  w_.act->forward_weighted(device, first(act.gate_up, rows), act.row_weights, first(act.hidden, rows));
}

template <class T>
void Moe<T>::compute_hidden(Device& device, const FeedForwardActivations<T>& act) const {
  compute_rows(device, *act.routed);
  if (w_.shared) compute_shared_hidden(device, *act.routed, static_cast<index_t>(act.routed->shared_hidden.extent(0)));
}

template <class T>
void Moe<T>::compute_shared_hidden(Device& device, const RoutedActivations<T>& act, index_t tokens) const {
  const Matrix<T> gate_up = first(act.shared_gate_up, tokens), hidden = first(act.shared_hidden, tokens);
  if (has_shared_gate()) {
    w_.act->forward_weighted(device, gate_up, act.gate, hidden);
  } else {
    w_.act->forward(device, gate_up, hidden, {});
  }
}

// Row by row, as all_gather_gemm computes them.
template <class T>
void Moe<T>::multiply_in_chunks(Device& device, TensorParallelRegion<T>& region, const RowGemm<T>& gemm,
                                Matrix<const T> x, Matrix<T> y, const RoutedWorkspace<T>& work) const {
  index_t number = 0;
  for (const Range& chunk : region.chunks()) {
    const auto all = static_cast<index_t>(x.extent(0));
    const Range rows{std::min(chunk.begin, all), std::min(chunk.end, all)};
    gemm(device, rows_of(x, rows), rows_of(y, rows), number++);
    exchange(work).progress();
  }
}

template <class T>
Matrix<const T> Moe<T>::gather_and_route(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                         const BlockInput<T>& input, const FeedForwardActivations<T>& a,
                                         const FeedForwardWorkspace<T>& w) const {
  const Matrix<const T> n = region.all_gather_gemm(device, input, is_beside() ? no_columns() : shared_gate_up(),
                                                   in_gather(a.routed->shared_gate_up, batch.tokens()));
  route(device, batch, n, *a.routed, *w.routed);
  return n;
}

template <class T>
void Moe<T>::forward_shared(Device& device, TensorParallelRegion<T>& region, Matrix<const T> n,
                            const RoutedActivations<T>& act, const RoutedWorkspace<T>& work) const {
  const auto tokens = static_cast<index_t>(n.extent(0));
  if (is_beside()) multiply_in_chunks(device, region, shared_gate_up(), n, first(act.shared_gate_up, tokens), work);
  if (w_.shared) compute_shared_hidden(device, act, tokens);
}

//   per expert: gate | up = x Wgu^T      h = w f(gate, up)      y = h Wd^T
//   per token:  y = sum over its experts
template <class T>
void Moe<T>::forward_to_last_gemm(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                  const BlockInput<T>& input, const FeedForwardActivations<T>& a,
                                  const FeedForwardWorkspace<T>& w) const {
  const Matrix<const T> n = gather_and_route(device, batch, region, input, a, w);
  forward_dispatch(device, a, w);
  forward_shared(device, region, n, *a.routed, *w.routed);
  forward_rows(device, a, w);
}

template <class T>
void Moe<T>::forward_route(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                           const BlockInput<T>& input, const FeedForwardActivations<T>& a,
                           const FeedForwardWorkspace<T>& w) const {
  const Matrix<const T> n = gather_and_route(device, batch, region, input, a, w);
  forward_shared(device, region, n, *a.routed, *w.routed);
}

template <class T>
void Moe<T>::forward_dispatch(Device& device, const FeedForwardActivations<T>& a,
                              const FeedForwardWorkspace<T>& w) const {
  exchange(*w.routed).finish_plan(device, *a.routed->rows);
}

template <class T>
void Moe<T>::forward_rows(Device& device, const FeedForwardActivations<T>& a, const FeedForwardWorkspace<T>& w) const {
  const RoutedActivations<T>& act = *a.routed;
  exchange(*w.routed).finish_dispatch(device, *act.rows, input(act, *w.routed), act.row_weights);
  w_.gate_up->forward(device, *act.rows, input(act, *w.routed), act.gate_up);
  w_.biases.add_gate_up(device, *act.rows, act.gate_up);
  compute_rows(device, act);
}

template <class T>
Pending Moe<T>::forward_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                               const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                               const FeedForwardWorkspace<T>& work, Matrix<const T> addend, Matrix<T> y) const {
  start_output(device, act, work);
  return finish_output(device, batch, region, n, act, work, addend, y);
}

template <class T>
void Moe<T>::start_output(Device& device, const FeedForwardActivations<T>& a, const FeedForwardWorkspace<T>& w) const {
  const RoutedActivations<T>& act = *a.routed;
  const Matrix<T>& output = w.routed->output;
  w_.down->forward(device, *act.rows, act.hidden, output);
  parts_->sums->rows(device, first(output, act.rows->received_rows));
  w_.biases.add_down(device, *act.rows, act.row_weights, output);
  exchange(*w.routed).start_combine(device, *act.rows, output);
}

template <class T>
Pending Moe<T>::finish_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                              const BlockInput<T>&, const FeedForwardActivations<T>& a,
                              const FeedForwardWorkspace<T>& w, Matrix<const T>, Matrix<T> y) const {
  const RoutedActivations<T>& act = *a.routed;
  ExpertSums<T>& sums = *parts_->sums;
  const Matrix<T> part = region.partial_sum(y);
  if (w_.shared) {
    w_.shared->down.forward()(device, first(act.shared_hidden, batch.tokens()), part);
    sums.shared(device, region, y);
  } else {
    kernels::fill<T>(device, flat(part), 0.0);
  }
  exchange(*w.routed).add_combined(device, *act.rows, routes(act, batch.tokens()), part);
  return sums.tokens(device, region, sent_tokens(*parts_, batch.tokens()), y);
}

//   per expert: dh = dy Wd      dw, dgate, dup: kernels/mlp/gated.hpp
template <class T>
Matrix<const T> Moe<T>::backward_inside(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy_rows,
                                        const FeedForwardActivations<T>& act,
                                        const FeedForwardWorkspace<T>& work) const {
  const Matrix<const T> dy = backward_start(device, region, dy_rows, act, work);
  backward_rows(device, act, work);
  return dy;
}

template <class T>
Matrix<const T> Moe<T>::backward_start(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy_rows,
                                       const FeedForwardActivations<T>& a, const FeedForwardWorkspace<T>& w) const {
  const RoutedActivations<T>& act = *a.routed;
  const RoutedWorkspace<T>& work = *w.routed;
  const ExpertRows& plan = *act.rows;
  const Matrix<const T> dy =
      region.all_gather_gemm(device, {dy_rows, {}}, is_beside() ? no_features() : shared_dhidden(),
                             in_gather(work.shared_dhidden, static_cast<index_t>(work.shared_dhidden.extent(0))));
  exchange(work).start_dispatch(device, plan, routes(act, static_cast<index_t>(dy.extent(0))), dy, {}, act.doutput, {});
  if (is_beside()) multiply_in_chunks(device, region, shared_dhidden(), dy, work.shared_dhidden, work);
  if (has_shared_gate()) {
    w_.act->backward_weighted(device, act.shared_gate_up, act.gate, work.shared_dhidden, work.dgate,
                              parts_->orders.shared_width);
  } else if (w_.shared) {
    w_.act->backward(device, act.shared_gate_up, work.shared_dhidden, {}, {});
  }
  return dy;
}

//   dx = [dgate | dup] Wgu
template <class T>
void Moe<T>::backward_rows(Device& device, const FeedForwardActivations<T>& a, const FeedForwardWorkspace<T>& w) const {
  const RoutedActivations<T>& act = *a.routed;
  const RoutedWorkspace<T>& work = *w.routed;
  const ExpertRows& plan = *act.rows;
  const index_t here = plan.received_rows;
  exchange(work).finish_dispatch(device, plan, act.doutput, {});
  w_.down->backward_input(device, plan, act.doutput, work.dhidden);
  w_.act->backward_weighted(device, first(act.gate_up, here), act.row_weights, first(work.dhidden, here),
                            work.drow_weights, parts_->orders.width);
  parts_->sums->row_values(device, first(work.drow_weights, here));
  w_.biases.backward_weights(device, plan, act.doutput, work.drow_weights);
  exchange(work).start_combine_values(device, plan, work.drow_weights);
  w_.gate_up->backward_input(device, plan, act.gate_up, work.output);
  parts_->sums->rows(device, first(work.output, here));
  exchange(work).start_combine(device, plan, work.output);
}

//   dn = [dl | ds] [Wr | wg] + [dgate | dup] Wgu of the shared expert + sum of dx over a token's experts
template <class T>
Pending Moe<T>::backward_input(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                               const FeedForwardActivations<T>& a, const FeedForwardWorkspace<T>& w,
                               Matrix<T> dn) const {
  const RoutedActivations<T>& act = *a.routed;
  const RoutedWorkspace<T>& work = *w.routed;
  const ExpertRows& plan = *act.rows;
  exchange(work).finish_combine_values(device, plan, routes(act, batch.tokens()), work.dweights);
  ExpertSums<T>& sums = *parts_->sums;
  sums.token_values(device, sent_assignments(*parts_, batch.tokens()),
                    first(work.dweights, batch.tokens() * parts_->routing.top_k));
  sums.shared_values(device, work.dgate);
  backward_router(device, batch, act, work);
  const Matrix<T> part = region.partial_sum(dn);
  double accumulate = 0.0;
  if (w_.shared) {
    w_.shared->gate_up.backward_input()(device, act.shared_gate_up, part);
    sums.shared(device, region, dn);
    accumulate = 1.0;
  }
  kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, 1.0, act.dlogits, w_.router.weight, accumulate,
                      MatrixRef<T>(part));
  exchange(work).add_combined(device, plan, routes(act, batch.tokens()), part);
  return sums.tokens(device, region, sent_tokens(*parts_, batch.tokens()), dn);
}

// Without a shared expert: GEMMs with no columns, because all_gather_gemm must still gather the hidden states.
template <class T>
RowGemm<T> Moe<T>::shared_gate_up() const {
  return w_.shared ? w_.shared->gate_up.forward() : no_columns();
}
template <class T>
RowGemm<T> Moe<T>::no_columns() const {
  return {.op = kernels::Op::transpose, .weight = Matrix<const T>(w_.router.weight.data(), 0, parts_->sizes.hidden)};
}

template <class T>
RowGemm<T> Moe<T>::shared_dhidden() const {
  return w_.shared ? w_.shared->down.backward_input() : no_features();
}
template <class T>
RowGemm<T> Moe<T>::no_features() const {
  return {.op = kernels::Op::none, .weight = Matrix<const T>(w_.router.weight.data(), parts_->sizes.hidden, 0)};
}
// What the gather of all tokens computes with them.
template <class T>
Matrix<T> Moe<T>::in_gather(const Matrix<T>& of_shared, index_t tokens) const {
  return Matrix<T>(of_shared.data(), tokens, is_beside() ? 0 : of_shared.extent(1));
}

template <class T>
void Moe<T>::backward_router(Device& device, const TokenBatch& batch, const RoutedActivations<T>& act,
                             const RoutedWorkspace<T>& work) const {
  const kernels::Routing& routing = parts_->routing;
  const MatrixRef<T> dlogits(act.dlogits);
  NANOTRON_REQUIRE(dlogits.rows == batch.tokens(), "{} tokens of {}", batch.tokens(), dlogits.rows);
  kernels::count_assignments(device, routing.top_k, act.assignments, work.sequence_counts);
  if (parts_->cp->size() > 1) {
    comm::all_reduce(*parts_->cp, work.sequence_counts.data(), elements_of(work.sequence_counts), comm::ReduceOp::sum,
                     device.stream());
  }
  kernels::RouterScales scales = parts_->scales;
  scales.tokens = static_cast<double>(batch.step_tokens);
  kernels::route_backward<T>(device, routing, batch.filled, act.probabilities, act.assignments, act.weights, act.z,
                             work.dweights, work.sequence_counts, scales, dlogits, act.score_sums);
  if (has_shared_gate()) {
    kernels::sigmoid_backward<T>(device, act.gate, work.dgate, dlogits.column_block(routing.experts, 1));
  }
  kernels::add_router_sums<M>(device, batch.filled, act.probabilities, act.assignments, act.row_of_assignment, act.z,
                              work.sequence_counts, sums_);
}

template <class T>
void Moe<T>::backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                                    const FeedForwardWorkspace<T>&) const {
  if (w_.shared) w_.shared->down.backward_weight(device, dy, act.routed->shared_hidden);
}

//   dWd += dy^T h      dWgu += [dgate | dup]^T x
template <class T>
void Moe<T>::backward_rows_weight(Device& device, const FeedForwardActivations<T>& a,
                                  const FeedForwardWorkspace<T>& w) const {
  const RoutedActivations<T>& act = *a.routed;
  const ExpertRows& plan = *act.rows;
  w_.down->backward_weight(device, plan, act.doutput, act.hidden);
  exchange(*w.routed).progress();
  w_.biases.backward_down(device, plan, act.doutput, act.row_weights, w.routed->bias_sums);
  if (!receives_again(act)) w_.gate_up->backward_weight(device, plan, act.gate_up, act.input);
  exchange(*w.routed).progress();
  w_.biases.backward_gate_up(device, plan, act.gate_up, w.routed->bias_sums);
}

// With recompute_dispatch, after the combine of backward: dWgu += [dgate | dup]^T x
template <class T>
void Moe<T>::receive_again(Device& device, const RoutedActivations<T>& act, const RoutedWorkspace<T>& work) const {
  const Matrix<T> rows = input(act, work);
  exchange(work).finish_dispatch(device, *act.rows, rows, {});
  w_.gate_up->backward_weight(device, *act.rows, act.gate_up, rows);
}

//   [dWr | dwg] += [dl | ds]^T n      dbr += sum over tokens of dl
template <class T>
void Moe<T>::backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                                   const FeedForwardWorkspace<T>& work) const {
  if (receives_again(*act.routed)) {
    exchange(*work.routed)
        .start_dispatch(device, *act.routed->rows, routes(*act.routed, static_cast<index_t>(n.extent(0))), n, {},
                        input(*act.routed, *work.routed), {});
  }
  if (w_.shared) w_.shared->gate_up.backward_weight(device, act.routed->shared_gate_up, n);
  kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, act.routed->dlogits, n, 1.0,
                      MatrixRef<M>(w_.router.gradient), parts_->orders.tokens);
  if (receives_again(*act.routed)) receive_again(device, *act.routed, *work.routed);
  if (w_.router.bias.extent(0) == 0) return;
  const MatrixRef<const T> dlogits(act.routed->dlogits);
  kernels::bias_backward<T>(device, dlogits.column_block(0, parts_->routing.experts), w_.router.bias_gradient,
                            work.routed->bias_sums, parts_->sizes.bias_segments);
}

template <class T>
void Moe<T>::prepare(Device& device, const FeedForwardActivations<T>& a, const FeedForwardWorkspace<T>& w) const {
  if (device.gemm_mode() == GemmMode::fixed_order) return;
  w_.gate_up->prepare(device, input(*a.routed, *w.routed), a.routed->gate_up);
  w_.down->prepare(device, a.routed->hidden, w.routed->output);
}

NANOTRON_INSTANTIATE_CLASS(Moe)

}  // namespace nanotron::nn
