#pragma once

// Attention's kernels against their reference implementation.

#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/attention/attention_gpu.hpp"
#include "support/reference/attention.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {

using kernels::AttentionShape;

// As the program runs it here; or in a form for GPUs, wherever this runs.
enum class Way { program, batched_gemms, mma };

template <class T>
class Attention : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  // q | k | v are columns of one buffer where the lengths agree, as in a fused projection.
  // Tolerance: o and the gradients are sums over keys or queries of terms of order 1, in M. In bf16
  // p and ds are rounded before their products (2^-8 relative each, which partly cancels in the
  // sum) and q is scaled before its own: a few roundings in all; in the other types 64 roundings of
  // M. With a random mask values are larger by its factor.
  void check(AttentionShape s, Way way = Way::program, const Array<std::int32_t>* documents = nullptr,
             index_t gap = 3) {
    if (way == Way::mma) gap = 8;
    AttentionShape host_shape = s;
    if (documents != nullptr) {
      s.document_stride = host_shape.document_stride = documents->size() / s.batch;
      s.document_starts = documents->data();
      host_shape.document_starts = documents->host.data();
    }
    const index_t d = s.head_dim;
    const index_t key_rows = s.batch * s.key_row_stride();
    const index_t q_width = s.query_heads * d, k_width = s.key_heads * d;
    const index_t queries = s.batch * s.query_row_stride();
    const auto q = Array<T>::random(queries * (q_width + gap), 1);
    const auto k = Array<T>::random(key_rows * (2 * k_width + gap), 2);
    const auto dout = Array<T>::random(queries * q_width, 4);
    Array<T> out(queries * q_width), dq(queries * q_width), dk(key_rows * k_width), dv(key_rows * k_width);
    Array<M> lse(queries * s.query_heads);
    const std::size_t bytes = way == Way::batched_gemms ? kernels::blocked::attention_workspace_bytes<T>(s)
                              : way == Way::mma         ? kernels::mma::attention_workspace_bytes(s)
                                                        : kernels::attention_workspace_bytes<T>(s, built_for);
    Array<double> work(static_cast<index_t>(bytes / 8 + 8), 1e300);
    const Vector<std::byte> workspace(reinterpret_cast<std::byte*>(work.data()),
                                      static_cast<std::size_t>(work.size()) * 8);
    const auto refs = [&](const T* q_data, const T* k_data) {
      return std::array<MatrixRef<const T>, 3>{
          MatrixRef<const T>{q_data, queries, q_width, q_width + gap},
          MatrixRef<const T>{k_data, key_rows, k_width, 2 * k_width + gap},
          MatrixRef<const T>{k_data + k_width, key_rows, k_width, 2 * k_width + gap}};
    };
    const auto on_device = refs(q.data(), k.data());
    const auto on_host = refs(q.host.data(), k.host.data());
    const kernels::blocked::BackwardTensors<T> tensors{on_device[0],
                                                       on_device[1],
                                                       on_device[2],
                                                       out.read(queries, q_width),
                                                       dout.read(queries, q_width),
                                                       lse.read(),
                                                       dq.matrix(queries, q_width),
                                                       dk.matrix(key_rows, k_width),
                                                       dv.matrix(key_rows, k_width)};
    if (way == Way::batched_gemms) {
      kernels::blocked::attention_forward<T>(this->device_, s, on_device[0], on_device[1], on_device[2],
                                             out.matrix(queries, q_width), lse.vector(), workspace);
      kernels::blocked::attention_backward<T>(this->device_, s, tensors, workspace);
    } else if (way == Way::mma) {
      if constexpr (is_bf16<T>) {
        kernels::mma::attention_forward(this->device_, s, on_device[0], on_device[1], on_device[2],
                                        out.matrix(queries, q_width), lse.vector());
        kernels::mma::attention_backward(this->device_, s, tensors, workspace);
      }
    } else {
      kernels::attention_forward<T>(this->device_, s, on_device[0], on_device[1], on_device[2],
                                    out.matrix(queries, q_width), lse.vector(), workspace);
      kernels::attention_backward<T>(this->device_, s, on_device[0], on_device[1], on_device[2],
                                     out.read(queries, q_width), dout.read(queries, q_width), lse.read(),
                                     dq.matrix(queries, q_width), dk.matrix(key_rows, k_width),
                                     dv.matrix(key_rows, k_width), workspace);
    }
    this->device_.fence();
    out.pull(), lse.pull(), dq.pull(), dk.pull(), dv.pull();
    std::vector<double> out2(out.host.size()), lse2(lse.host.size()), dq2(dq.host.size()), dk2(dk.host.size()),
        dv2(dv.host.size());
    kernels::reference::attention_forward<T>(host_shape, on_host[0], on_host[1], on_host[2],
                                             matrix_of(out2, queries, q_width), lse2.data());
    kernels::reference::attention_backward<T>(host_shape, on_host[0], on_host[1], on_host[2],
                                              dout.on_host(queries, q_width), matrix_of(dq2, queries, q_width),
                                              matrix_of(dk2, key_rows, k_width), matrix_of(dv2, key_rows, k_width));
    for (double& x : lse2) x = std::max(x, static_cast<double>(std::numeric_limits<M>::lowest()));
    const double roundings = (is_bf16<T> ? 4 : 64) * s.mask.factor();
    expect_close(out.host, out2, roundings * unit_roundoff<T>());
    expect_close(lse.host, lse2, is_bf16<T> ? 2 * unit_roundoff<T>() : 16 * unit_roundoff<M>());
    expect_close(dq.host, dq2, roundings * unit_roundoff<T>());
    expect_close(dk.host, dk2, roundings * unit_roundoff<T>(), 4.0);
    expect_close(dv.host, dv2, roundings * unit_roundoff<T>(), 4.0);
  }
};

template <class T>
inline const std::vector<Way> ways =
    is_bf16<T>&& has_mma_kernels ? std::vector{Way::program, Way::batched_gemms, Way::mma}
                                 : std::vector{Way::program, Way::batched_gemms};

inline AttentionShape shape_of(index_t batch, index_t queries, index_t keys, index_t heads, index_t key_heads,
                               index_t head_dim) {
  return {.batch = batch,
          .query_length = queries,
          .key_length = keys,
          .query_heads = heads,
          .key_heads = key_heads,
          .head_dim = head_dim,
          .group = heads / key_heads,
          .query_position = keys - queries};
}

// Documents begin at 0, 17, 40 and 180 of the first sequence, at 0 and 100 of the second.
inline Array<std::int32_t> document_starts(index_t length) {
  Array<std::int32_t> starts(2 * length);
  const std::vector<std::vector<index_t>> begins{{0, 17, 40, 180}, {0, 100}};
  for (index_t sequence = 0; sequence < 2; ++sequence) {
    for (const index_t begin : begins[static_cast<std::size_t>(sequence)]) {
      for (index_t i = begin; i < length; ++i) {
        starts.host[static_cast<std::size_t>(sequence * length + i)] = static_cast<std::int32_t>(begin);
      }
    }
  }
  starts.push();
  return starts;
}

}  // namespace nanotron::test
