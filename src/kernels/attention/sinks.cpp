#include "nanotron/kernels/attention/sinks.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Row t of out and head h: sequence t / query_length.
struct QueryRows {
  AttentionShape s;
  index_t count() const { return s.batch * s.query_length; }
  NANOTRON_FUNCTION index_t row(index_t t) const {
    return t / s.query_length * s.query_row_stride() + t % s.query_length;
  }
  NANOTRON_FUNCTION index_t of_lse(index_t t, index_t head) const {
    return (t / s.query_length * s.query_heads + head) * s.query_row_stride() + t % s.query_length;
  }
};

// log(exp(lse) + exp(sink)).
template <class M>
NANOTRON_FUNCTION M with_sink(M lse, M sink) {
  const M most = lse < sink ? sink : lse;
  return most + logarithm(exponential(lse - most) + exponential(sink - most));
}

index_t terms(const AttentionShape& s) { return s.batch * s.query_length * s.query_heads; }

}  // namespace

template <class T>
void add_sinks(Device& device, const AttentionShape& shape, Vector<const master_t<T>> sinks, MatrixRef<T> out,
               Vector<master_t<T>> lse) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "attention_sinks", reads(sinks, out, lse), writes(out, lse));
  NANOTRON_REQUIRE(static_cast<index_t>(sinks.extent(0)) == shape.query_heads, "{} sinks of {} heads", sinks.extent(0),
                   shape.query_heads);
  const QueryRows rows{shape};
  for_each_row(
      device, "attention_sinks", rows.count() * shape.query_heads, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const index_t head = i % rows.s.query_heads, t = i / rows.s.query_heads;
        const M before = lse.data()[rows.of_lse(t, head)];
        const M factor = exponential(before - with_sink(before, sinks.data()[head]));
        T* const values = out.data + rows.row(t) * out.leading + head * rows.s.head_dim;
        row.template for_each_chunk<T>(rows.s.head_dim, [=](const index_t c, const auto n) {
          const auto value = load(values + c, n);
          store(values + c, n, [&](const int k) { return factor * value[k]; });
        });
      });
  for_each_element(
      device, "attention_sinks_lse", rows.count() * shape.query_heads, KOKKOS_LAMBDA(const index_t i) {
        const index_t head = i % rows.s.query_heads;
        M& sum = lse.data()[rows.of_lse(i / rows.s.query_heads, head)];
        sum = with_sink(sum, sinks.data()[head]);
      });
}

template <class T>
void sinks_backward(Device& device, const AttentionShape& shape, Vector<const master_t<T>> sinks,
                    MatrixRef<const T> out, MatrixRef<const T> dout, Vector<const master_t<T>> lse,
                    Vector<master_t<T>> dsinks, Vector<std::byte> workspace) {
  using M = master_t<T>;
  const QueryRows rows{shape};
  const index_t heads = shape.query_heads;
  NANOTRON_REQUIRE(workspace.extent(0) >= sinks_workspace_bytes<T>(shape, device.processor()),
                   "sinks: a workspace of {} bytes", workspace.extent(0));
  M* const of_queries = reinterpret_cast<M*>(workspace.data());
  {
    const KernelRegion kernel(device, "attention_sinks_backward", reads(sinks, out, dout, lse),
                              writes(Vector<M>(of_queries, terms(shape))));
    for_each_row(
        device, "attention_sinks_backward", rows.count() * heads, KOKKOS_LAMBDA(const Row& row, const index_t i) {
          const index_t head = i % heads, t = i / heads, column = head * rows.s.head_dim;
          const T *const o = out.data + rows.row(t) * out.leading + column, *const d = dout.data +
                                                                                       rows.row(t) * dout.leading +
                                                                                       column;
          const M dot = row.template sum<M>(
              rows.s.head_dim, [=](const index_t c) { return static_cast<M>(o[c]) * static_cast<M>(d[c]); });
          const M share = exponential(sinks.data()[head] - lse.data()[rows.of_lse(t, head)]);
          row.for_each(1, [=](const index_t) { of_queries[i] = -share * dot; });
        });
  }
  const index_t sums = bias_workspace_size(device.processor(), rows.count(), heads);
  bias_backward<M>(device, MatrixRef<const M>(of_queries, rows.count(), heads), dsinks,
                   Vector<M>(of_queries + terms(shape), sums));
}

template <class T>
std::size_t sinks_workspace_bytes(const AttentionShape& s, Processor processor) {
  const index_t sums = bias_workspace_size(processor, s.batch * s.query_length, s.query_heads);
  return static_cast<std::size_t>(terms(s) + sums) * sizeof(master_t<T>);
}

#define NANOTRON_INSTANTIATE(T)                                                                                  \
  template void add_sinks<T>(Device&, const AttentionShape&, Vector<const master_t<T>>, MatrixRef<T>,            \
                             Vector<master_t<T>>);                                                               \
  template void sinks_backward<T>(Device&, const AttentionShape&, Vector<const master_t<T>>, MatrixRef<const T>, \
                                  MatrixRef<const T>, Vector<const master_t<T>>, Vector<master_t<T>>,            \
                                  Vector<std::byte>);                                                            \
  template std::size_t sinks_workspace_bytes<T>(const AttentionShape&, Processor);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
