#include "nanotron/nn/attention/query_key_norm.hpp"

#include "nanotron/base/error.hpp"
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
    const index_t query = std::max<index_t>(1, sum_.apart.query), key = std::max<index_t>(1, sum_.apart.key);
    const auto weights = static_cast<index_t>(query * query_.gradient.extent(0) + key * key_.gradient.extent(0));
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
    const HeadShard& h = g.heads;
    backward(device, query_, {h.query, h.query, sum_.apart.query}, g.query_of(act.raw_qk), act.query_rstd,
             g.query_of(work.dqkv), work.sums);
    backward(device, key_, {h.key, h.owned_key, sum_.apart.key}, g.key_of(act.raw_qk), act.key_rstd,
             g.key_of(work.dqkv), work.sums);
  }

 private:
  struct Heads {
    Range here, owned;  // of the model's
    index_t apart;      // those of the model, or 0
  };
  // gradient: of the normed rows on entry, of x on return.
  void backward(Device& device, const NormWeights<T>& w, const Heads& heads, const MatrixRef<T>& x,
                const Matrix<M>& rstd, const MatrixRef<T>& gradient, const Vector<M>& sums) const {
    if (sum_.group == nullptr)
      return kernels::head_rms_norm_backward<T>(device, gradient, x, w.weight, rstd, gradient, w.gradient, sums);
    if (heads.apart > 0) return backward_apart(device, w, heads, x, rstd, gradient, sums);
    const Matrix<M> parts =
        kernels::head_rms_norm_backward_parts<T>(device, gradient, x, w.weight, rstd, gradient, sums, sum_.segments);
    comm::all_reduce<M>(*sum_.group, parts.data(), elements_of(parts), comm::ReduceOp::sum, device.stream());
    kernels::add_tree<M>(device, parts, w.gradient);
  }

  // all (token segments, heads of the model, head_dim): each addend is on one rank, and zero on the others, so that the
  // sum over the ranks is exact.
  void backward_apart(Device& device, const NormWeights<T>& w, const Heads& heads, const MatrixRef<T>& x,
                      const Matrix<M>& rstd, const MatrixRef<T>& gradient, const Vector<M>& sums) const {
    const index_t segments = sum_.segments.tokens, here = heads.here.size(), width = w.gradient.extent(0);
    const Matrix<M> parts =
        kernels::head_rms_norm_backward_heads<T>(device, gradient, x, w.weight, rstd, gradient, sums, segments);
    const index_t elements = segments * heads.apart * width;
    NANOTRON_REQUIRE(elements_of(parts) + elements <= static_cast<index_t>(sums.extent(0)),
                     "{} sums for {} and {} addends", sums.extent(0), elements_of(parts), elements);
    const Matrix<M> all(sums.data() + sums.extent(0) - elements, segments * heads.apart, width);
    kernels::fill<M>(device, flat(all), 0.0);
    for (index_t s = 0; s < segments && heads.owned.size() > 0; ++s) {
      kernels::copy_matrix<M>(
          device, MatrixRef<M>(parts).row_block(s * here + heads.owned.begin - heads.here.begin, heads.owned.size()),
          MatrixRef<M>(all).row_block(s * heads.apart + heads.owned.begin, heads.owned.size()));
    }
    comm::all_reduce<M>(*sum_.group, all.data(), elements_of(all), comm::ReduceOp::sum, device.stream());
    const Matrix<M> of_segments(sums.data(), segments, width);
    kernels::add_column_tree<M>(device, MatrixRef<M>(all.data(), segments, heads.apart * width),
                                MatrixRef<M>(of_segments));
    kernels::add_tree<M>(device, of_segments, w.gradient);
  }

  NormWeights<T> query_, key_;
  HeadSum sum_;
};

// act.query_rstd has 1 / sqrt(mean square) of the queries of all tokens, then of the keys; act.key_rstd the sums of
// backward.
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
    kernels::projection_squares<T>(device, query, columns_.queries, of_query);
    kernels::projection_squares<T>(device, key, columns_.squares, of_key);
    all_reduce(device, act.query_rstd);
    kernels::projection_norm_forward<T>(device, query, query_.weight, columns_.query, g.norm_eps, g.query_of(act.qkv),
                                        of_query);
    kernels::projection_norm_forward<T>(device, key, key_.weight, columns_.key, g.norm_eps, g.key_of(act.qkv), of_key);
  }

  void backward(Device& device, const AttentionGeometry<T>& g, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) const override {
    const MatrixRef<T> query = g.query_of(act.raw_qk), key = g.key_of(act.raw_qk);
    const MatrixRef<T> dquery = g.query_of(work.dqkv), dkey = g.key_of(work.dqkv);
    kernels::projection_products<T>(device, dquery, query, query_.weight, columns_.queries, half(act.key_rstd, 0));
    kernels::projection_products<T>(device, dkey, key, key_.weight, columns_.products, half(act.key_rstd, 1));
    all_reduce(device, act.key_rstd);
    kernels::projection_norm_backward<T>(
        device, dquery,
        {query, query_.weight, half(act.query_rstd, 0), half(act.key_rstd, 0), columns_.query, {0, query.columns}},
        dquery, query_.gradient, work.sums, g.token_segments);
    kernels::projection_norm_backward<T>(
        device, dkey,
        {key, key_.weight, half(act.query_rstd, 1), half(act.key_rstd, 1), columns_.key, columns_.completed}, dkey,
        key_.gradient, work.sums, g.token_segments);
  }

 private:
  // Of (tokens, 2): the sums of queries, then those of keys.
  static Vector<M> half(const Matrix<M>& sums, index_t which) {
    const std::size_t tokens = sums.extent(0);
    return Vector<M>(sums.data() + static_cast<std::size_t>(which) * tokens, tokens);
  }
  void all_reduce(Device& device, const Matrix<M>& sums) const {
    comm::all_reduce<M>(*tp_, sums.data(), elements_of(sums), comm::ReduceOp::sum, device.stream());
  }

  NormWeights<T> query_, key_;
  QueryKeyColumns columns_;
  comm::Group* tp_;
};

}  // namespace

index_t head_norm_sums(Processor processor, index_t tokens, index_t heads, index_t head_dim, const HeadSum& sum) {
  const index_t addends = sum.segments.tokens * sum.apart.query;
  const index_t segments = sum.segments.tokens * (addends > 0 ? heads : sum.segments.heads);
  return kernels::rms_norm_workspace_size(processor, tokens * heads, head_dim, segments) + addends * head_dim;
}

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
