#include "nanotron/nn/attention/grouped_query_attention.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/attention/attention_core.hpp"

namespace nanotron::nn {

template <class T>
GroupedQueryAttention<T>::GroupedQueryAttention(const AttentionGeometry<T>& geometry, const Linear<T>& qkv,
                                                const Linear<T>& out, std::shared_ptr<const QueryKeyNorm<T>> norm,
                                                AttentionCore<T>& core)
    : geometry_(geometry), qkv_(qkv), out_(out), norm_(std::move(norm)), core_(&core) {}

// Forward: gather n, sum y. Backward: gather dy, sum dn.
template <class T>
PassTraffic GroupedQueryAttention<T>::traffic(const TensorParallelRegion<T>& region) const {
  const comm::StepTraffic ends = region.gather_traffic() + region.sum_traffic();
  const index_t tokens = region.chunks().back().end;
  const GemmTraffic first = qkv_.traffic(tokens), last = out_.traffic(tokens);
  const PassTraffic all = PassTraffic{.forward = ends + last.forward,
                                      .backward = ends + first.backward_input,
                                      .weights = first.backward_weight + last.backward_weight} +
                          core_->traffic();
  return norm_ ? all + norm_->traffic(tokens) : all;
}

template <class T>
void GroupedQueryAttention<T>::finish_query_key_value(Device& device, const TokenBatch& batch,
                                                      const AttentionActivations<T>& act) const {
  const MatrixRef<T> query_key = geometry_.query_key_of(act.qkv);
  if (norm_) {
    qkv_.add_bias(device, act.qkv);
    norm_->forward(device, geometry_, act);
    geometry_.rotation.forward(device, query_key, batch.positions);
  } else {
    geometry_.rotation.forward_with_bias(device, act.qkv, query_key.columns, qkv_.bias(), batch.positions);
  }
}

//   q | k | v = n Wqkv^T (+ b)      q, k = rope(norm(q)), rope(norm(k))
//   a = attention(q, k, v)          y = a Wo^T, summed over the group, (+ bo)
template <class T>
Pending GroupedQueryAttention<T>::forward(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                          const BlockInput<T>& n, const AttentionActivations<T>& act,
                                          const AttentionWorkspace<T>& work, Matrix<const T> addend,
                                          Matrix<T> y) const {
  region.all_gather_gemm(device, n, qkv_.forward_part(act.of_input), act.qkv);  // whole columns, the bias comes next
  finish_query_key_value(device, batch, act);
  core_->forward(device, geometry_, batch, act, work);
  return region.gemm_reduce(device, out_.forward_part(act.of_out, addend), act.out, y);
}

//   dWo += dy^T a                   da = dy Wo                    dbo += sum over tokens of dy
//   dq, dk, dv = attention backward of da (kernels/attention/attention.hpp)
//   dq, dk <- norm backward of the inverse rotation of dq, dk
//   dn = [dq | dk | dv] Wqkv, summed over the group
//   dWqkv += [dq | dk | dv]^T n     db += sum over tokens of [dq | dk | dv]
template <class T>
Matrix<const T> GroupedQueryAttention<T>::backward_inside(Device& device, const TokenBatch& batch,
                                                          TensorParallelRegion<T>& region, Matrix<const T> dy,
                                                          const AttentionActivations<T>& act,
                                                          const AttentionWorkspace<T>& work) const {
  const Matrix<const T> all_dy = region.all_gather_gemm(device, {dy, {}}, out_.backward_input(), work.dout);

  core_->backward(device, geometry_, batch, act, work);
  geometry_.rotation.backward(device, geometry_.query_key_of(work.dqkv), batch.positions);
  if (norm_) norm_->backward(device, geometry_, act, work);
  return all_dy;
}

template <class T>
Pending GroupedQueryAttention<T>::backward_input(Device& device, TensorParallelRegion<T>& region,
                                                 const AttentionActivations<T>&, const AttentionWorkspace<T>& work,
                                                 Matrix<T> dn) const {
  return region.gemm_reduce(device, qkv_.backward_input(), work.dqkv, dn);
}

template <class T>
void GroupedQueryAttention<T>::keep_gradients(Device& device, const AttentionActivations<T>& act,
                                              const AttentionWorkspace<T>& work) const {
  kernels::copy_matrix<T>(device, work.dqkv, act.qkv);
}

template <class T>
void GroupedQueryAttention<T>::backward_output_weight(Device& device, Matrix<const T> dy,
                                                      const AttentionActivations<T>& act,
                                                      const AttentionWorkspace<T>& work) const {
  out_.backward_weight(device, dy, act.out, work.sums, act.of_out);
}

template <class T>
void GroupedQueryAttention<T>::backward_input_weight(Device& device, const BlockInput<T>&, Matrix<const T> gathered,
                                                     GradientsIn gradients, const AttentionActivations<T>& act,
                                                     const AttentionWorkspace<T>& work) const {
  const Matrix<T>& dqkv = gradients == GradientsIn::workspace ? work.dqkv : act.qkv;
  qkv_.backward_weight(device, dqkv, gathered, work.sums, act.of_input);
}

NANOTRON_INSTANTIATE_CLASS(GroupedQueryAttention)

}  // namespace nanotron::nn
