#pragma once

// What the tests of cuDNN's attention share: operands as the program has them, and comparison with the batched GEMMs.

#include <cudnn_frontend.h>

#include <cmath>

#include "../../src/kernels/attention/cuda/attention_cudnn.hpp"
#include "emulation/gpu_test.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {

using kernels::AttentionShape;

class Cudnn : public KernelTest<bf16> {
 protected:
  // q | k | v and their gradients as columns of one buffer, as a fused projection gives them; `gap` more columns.
  struct Tensors {
    Tensors(const AttentionShape& s, index_t gap)
        : queries(s.batch * s.query_row_stride()),
          keys(s.batch * s.key_row_stride()),
          q_width(s.query_heads * s.head_dim),
          k_width(s.key_heads * s.head_dim),
          leading(q_width + 2 * k_width + gap),
          qkv(Array<bf16>::random(std::max(queries, keys) * leading, 1)),
          dout(Array<bf16>::random(queries * q_width, 2)),
          out(queries * q_width, 3.0),
          dqkv(std::max(queries, keys) * leading, 3.0),
          lse(queries * s.query_heads, 3.0) {}
    MatrixRef<const bf16> q() const { return {qkv.data(), queries, q_width, leading}; }
    MatrixRef<const bf16> k() const { return {qkv.data() + q_width, keys, k_width, leading}; }
    MatrixRef<const bf16> v() const { return {qkv.data() + q_width + k_width, keys, k_width, leading}; }
    kernels::blocked::BackwardTensors<bf16> backward() {
      return {q(),
              k(),
              v(),
              out.read(queries, q_width),
              dout.read(queries, q_width),
              lse.read(),
              {dqkv.data(), queries, q_width, leading},
              {dqkv.data() + q_width, keys, k_width, leading},
              {dqkv.data() + q_width + k_width, keys, k_width, leading}};
    }

    index_t queries, keys, q_width, k_width, leading;
    Array<bf16> qkv, dout, out, dqkv;
    Array<float> lse;
  };

  static AttentionShape shape(index_t batch, index_t length, index_t heads, index_t key_heads, index_t head_dim) {
    return {.batch = batch,
            .query_length = length,
            .key_length = length,
            .query_heads = heads,
            .key_heads = key_heads,
            .head_dim = head_dim,
            .group = heads / key_heads};
  }
  static AttentionShape deterministic(AttentionShape s) {
    s.backward = kernels::BackwardAlgorithm::deterministic;
    return s;
  }
  static std::size_t planned_bytes(const AttentionShape& s) {
    return kernels::attention_workspace_bytes<bf16>(s, Processor::gpu);
  }

  bool forward(const AttentionShape& s, Tensors& t, std::size_t workspace) {
    const Array<double> work(static_cast<index_t>(workspace / 8 + 1), std::nan(""));
    return kernels::cudnn::attention_forward(this->device_, s, t.q(), t.k(), t.v(), t.out.matrix(t.queries, t.q_width),
                                             t.lse.vector(), bytes_of(work, workspace));
  }
  bool backward(const AttentionShape& s, Tensors& t, std::size_t workspace) {
    const Array<double> work(static_cast<index_t>(workspace / 8 + 1), std::nan(""));
    return kernels::cudnn::attention_backward(this->device_, s, t.backward(), bytes_of(work, workspace));
  }
  static Vector<std::byte> bytes_of(const Array<double>& work, std::size_t bytes) {
    return {reinterpret_cast<std::byte*>(work.data()), bytes};
  }

  void expect_as_blocked(const AttentionShape& s, std::size_t workspace, std::uint64_t calls = 1) {
    SCOPED_TRACE(testing::Message() << workspace << " bytes, " << calls << " calls");
    Tensors ours(s, 8), reference(s, 8);
    ASSERT_TRUE(forward(s, ours, workspace));
    const std::uint64_t before = cudnn_frontend::graph::executions().all;
    ASSERT_TRUE(backward(s, ours, workspace));
    EXPECT_EQ(cudnn_frontend::graph::executions().all - before, calls);
    const std::size_t blocked = kernels::blocked::attention_workspace_bytes<bf16>(s);
    Array<double> work(static_cast<index_t>(blocked / 8 + 1));
    const Vector<std::byte> all = bytes_of(work, blocked);
    kernels::blocked::attention_forward<bf16>(this->device_, s, reference.q(), reference.k(), reference.v(),
                                              reference.out.matrix(reference.queries, reference.q_width),
                                              reference.lse.vector(), all);
    kernels::blocked::attention_backward<bf16>(this->device_, s, reference.backward(), all);
    this->device_.fence();
    for (Tensors* t : {&ours, &reference}) t->out.pull(), t->lse.pull(), t->dqkv.pull();
    const double unit = unit_roundoff<bf16>();
    expect_close(ours.out.host, widened(reference.out.host), 4 * unit);
    expect_close(ours.lse.host, widened(reference.lse.host), 2 * unit);
    expect_close(ours.dqkv.host, widened(reference.dqkv.host), 8 * unit, 4.0);
  }
  template <class U>
  static std::vector<double> widened(const std::vector<U>& x) {
    return {x.begin(), x.end()};
  }
};

}  // namespace nanotron::test
