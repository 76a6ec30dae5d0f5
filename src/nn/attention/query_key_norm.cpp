#include "nanotron/nn/attention/query_key_norm.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/kernels/norm/projection_norm.hpp"
#include "nanotron/nn/checks.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class HeadNorm final : public QueryKeyNorm<T> {
 public:
  using M = master_t<T>;
  HeadNorm(const NormWeights<T>& query, const NormWeights<T>& key, const HeadSum& sum)
      : query_(query), key_(key), sum_(sum) {}

  PassTraffic traffic(index_t) const override {
    if (sum_.group == nullptr) return {};
    const auto weights = static_cast<index_t>(query_.gradient.extent(0) + key_.gradient.extent(0));
    return {.backward = {.tensor_parallel = comm::all_reduce_bytes(
                             sum_.segments.tokens * weights * static_cast<index_t>(sizeof(M)), sum_.group->size())}};
  }

  void forward(Device& device, const AttentionGeometry<T>& g, const AttentionActivations<T>& act) const override {
    kernels::copy_matrix<T>(device, g.query_key_of(act.qkv), MatrixRef<T>(act.raw_qk));
    kernels::head_rms_norm_forward<T>(device, g.query_of(act.raw_qk), query_.weight, g.norm_eps, g.query_of(act.qkv),
                                      act.query_rstd);
    kernels::head_rms_norm_forward<T>(device, g.key_of(act.raw_qk), key_.weight, g.norm_eps, g.key_of(act.qkv),
                                      act.key_rstd);
  }

  void backward(Device& device, const AttentionGeometry<T>& g, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) const override {
    backward(device, query_, g.query_of(act.raw_qk), act.query_rstd, g.query_of(work.dqkv), work.sums);
    backward(device, key_, g.key_of(act.raw_qk), act.key_rstd, g.key_of(work.dqkv), work.sums);
  }

 private:
  // gradient: of the normed rows on entry, of x on return.
  void backward(Device& device, const NormWeights<T>& w, const MatrixRef<T>& x, const Matrix<M>& rstd,
                const MatrixRef<T>& gradient, const Vector<M>& sums) const {
    if (sum_.group == nullptr)
      return kernels::head_rms_norm_backward<T>(device, gradient, x, w.weight, rstd, gradient, w.gradient, sums);
    const Matrix<M> parts =
        kernels::head_rms_norm_backward_parts<T>(device, gradient, x, w.weight, rstd, gradient, sums, sum_.segments);
    comm::all_reduce<M>(*sum_.group, parts.data(), elements_of(parts), comm::ReduceOp::sum, device.stream());
    kernels::add_tree<M>(device, parts, w.gradient);
  }

  NormWeights<T> query_, key_;
  HeadSum sum_;
};

// act.query_rstd has 1 / sqrt(mean square) of the queries of all tokens, then of the keys; act.key_rstd the sums of
// backward. A key head that several ranks have counts on the one that owns it; each rank has a part of its gradient.
template <class T>
class ProjectionNorm final : public QueryKeyNorm<T> {
 public:
  using M = master_t<T>;

  ProjectionNorm(const NormWeights<T>& query, const NormWeights<T>& key, const QueryKeyColumns& columns,
                 comm::Group& tp)
      : query_(query), key_(key), columns_(columns), tp_(&tp) {}

  PassTraffic traffic(index_t tokens) const override {
    const comm::StepTraffic sums{.tensor_parallel =
                                     comm::all_reduce_bytes(2 * tokens * static_cast<index_t>(sizeof(M)), tp_->size())};
    return {sums, sums};
  }

  void forward(Device& device, const AttentionGeometry<T>& g, const AttentionActivations<T>& act) const override {
    kernels::copy_matrix<T>(device, g.query_key_of(act.qkv), MatrixRef<T>(act.raw_qk));
    const MatrixRef<T> query = g.query_of(act.raw_qk), key = g.key_of(act.raw_qk);
    const Vector<M> of_query = half(act.query_rstd, 0), of_key = half(act.query_rstd, 1);
    kernels::projection_squares<T>(device, query, {0, query.columns}, g.segments.heads, of_query);
    kernels::projection_squares<T>(device, key, owned_keys(g), g.segments.heads, of_key);
    all_reduce(device, act.query_rstd);
    kernels::projection_norm_forward<T>(device, query, query_.weight, columns_.query, g.norm_eps, g.query_of(act.qkv),
                                        of_query);
    kernels::projection_norm_forward<T>(device, key, key_.weight, columns_.key, g.norm_eps, g.key_of(act.qkv), of_key);
  }

  void backward(Device& device, const AttentionGeometry<T>& g, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) const override {
    const MatrixRef<T> query = g.query_of(act.raw_qk), key = g.key_of(act.raw_qk);
    const MatrixRef<T> dquery = g.query_of(work.dqkv), dkey = g.key_of(work.dqkv);
    kernels::projection_products<T>(device, dquery, query, query_.weight, g.segments.heads, half(act.key_rstd, 0));
    kernels::projection_products<T>(device, dkey, key, key_.weight, g.segments.heads, half(act.key_rstd, 1));
    all_reduce(device, act.key_rstd);
    kernels::projection_norm_backward<T>(
        device, dquery,
        {query, query_.weight, half(act.query_rstd, 0), half(act.key_rstd, 0), columns_.query, {0, query.columns}},
        dquery, query_.gradient, work.sums, g.segments.tokens);
    kernels::projection_norm_backward<T>(
        device, dkey, {key, key_.weight, half(act.query_rstd, 1), half(act.key_rstd, 1), columns_.key, owned_keys(g)},
        dkey, key_.gradient, work.sums, g.segments.tokens);
  }

 private:
  // Of (tokens, 2): the sums of queries, then those of keys.
  static Vector<M> half(const Matrix<M>& sums, index_t which) {
    const std::size_t tokens = sums.extent(0);
    return Vector<M>(sums.data() + static_cast<std::size_t>(which) * tokens, tokens);
  }
  static Range owned_keys(const AttentionGeometry<T>& g) {
    const index_t first = (g.heads.owned_key.begin - g.heads.key.begin) * g.head_dim;
    return {first, first + g.heads.owned_key.size() * g.head_dim};
  }
  void all_reduce(Device& device, const Matrix<M>& sums) const {
    comm::all_reduce<M>(*tp_, sums.data(), elements_of(sums), comm::ReduceOp::sum, device.stream());
  }

  NormWeights<T> query_, key_;
  QueryKeyColumns columns_;
  comm::Group* tp_;
};

}  // namespace

template <class T>
std::shared_ptr<const QueryKeyNorm<T>> make_query_key_norm(const NormWeights<T>& query, const NormWeights<T>& key,
                                                           const QueryKeyColumns& columns, comm::Group& tp,
                                                           const HeadSum& sum) {
  if (columns.query == 0) return std::make_shared<HeadNorm<T>>(query, key, sum);
  return std::make_shared<ProjectionNorm<T>>(query, key, columns, tp);
}

#define NANOTRON_INSTANTIATE(T)                                           \
  template std::shared_ptr<const QueryKeyNorm<T>> make_query_key_norm<T>( \
      const NormWeights<T>&, const NormWeights<T>&, const QueryKeyColumns&, comm::Group&, const HeadSum&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

void check_query_key_norm(const deck::Config& c, deck::Findings& f) {
  if (!c.model.qk_norm) refuse_unused(c, {"model.qk_norm_over"}, "a norm of queries and keys", "qk_norm = .true.", f);
}

}  // namespace nanotron::nn
