// ranks: 1
// Which attention cuDNN is given, in which parts, and that it is what the batched GEMMs give.
#include <cudnn_frontend.h>

#include <array>

#include "../../src/kernels/attention/cuda/attention_cudnn.hpp"
#include "emulation/gpu_test.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

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
          out(queries * q_width),
          dqkv(std::max(queries, keys) * leading),
          lse(queries * s.query_heads) {}
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
    Array<double> work(static_cast<index_t>(workspace / 8 + 1));
    return kernels::cudnn::attention_forward(this->device_, s, t.q(), t.k(), t.v(), t.out.matrix(t.queries, t.q_width),
                                             t.lse.vector(), bytes_of(work, workspace));
  }
  bool backward(const AttentionShape& s, Tensors& t, std::size_t workspace) {
    Array<double> work(static_cast<index_t>(workspace / 8 + 1));
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

TEST_F(Cudnn, IsWhatTheBatchedGemmsGive) {
  AttentionShape s = shape(2, 96, 4, 2, 16);
  expect_as_blocked(s, planned_bytes(s));
  s.window = 40;
  expect_as_blocked(s, planned_bytes(s));
  s.window = 0;
  s.query_position = 200;  // a piece whose keys are all before its queries
  s.key_position = 8;
  s.key_length = 72;
  s.query_rows = 104;
  s.key_rows = 80;
  expect_as_blocked(s, planned_bytes(s));
  expect_as_blocked(shape(1, 64, 3, 3, 24), planned_bytes(shape(1, 64, 3, 3, 24)));
}

// What cuDNN 9.19 answered for (4, 72, 6, 3, 8) on an H200: for 4, 2, 1 sequences, and one key head of one.
TEST_F(Cudnn, RunsInPartsThatFitTheWorkspace) {
  const AttentionShape s = shape(4, 72, 6, 3, 8);
  constexpr std::array<std::size_t, 4> fastest{117'760, 59'008, 29'632, 10'048},
      repeated{848'896, 424'576, 212'416, 70'976};
  for (std::size_t i = 0; i < fastest.size(); ++i) {
    expect_as_blocked(s, fastest[i], std::array{1, 2, 4, 12}[i]);
    expect_as_blocked(deterministic(s), repeated[i], std::array{1, 2, 4, 12}[i]);
  }
  Tensors t(s, 8);
  EXPECT_TRUE(forward(s, t, 256));
  EXPECT_FALSE(forward(s, t, 255));
  EXPECT_FALSE(backward(s, t, fastest.back() - 1));
  EXPECT_FALSE(backward(deterministic(s), t, repeated.back() - 1));
}

// More than the batched GEMMs need, for the first of them.
TEST_F(Cudnn, OneCallTakesTheWorkspaceThatIsPlanned) {
  for (const AttentionShape& s : {shape(1, 1024, 2, 1, 8), shape(1, 256, 2, 2, 64), shape(2, 200, 6, 2, 24)}) {
    expect_as_blocked(s, planned_bytes(s), 1);
    expect_as_blocked(deterministic(s), planned_bytes(deterministic(s)), 1);
  }
}

TEST_F(Cudnn, IsNotAskedForTheRest) {
  const AttentionShape good = shape(1, 64, 4, 2, 16);
  const auto asked = [&](AttentionShape s, index_t gap) {
    Tensors t(s, gap);
    const bool runs = forward(s, t, planned_bytes(s));
    EXPECT_EQ(backward(s, t, planned_bytes(s)), runs);
    return runs;
  };
  EXPECT_TRUE(asked(good, 8));
  EXPECT_FALSE(asked(good, 4)) << "rows that are not aligned";
  const auto with = [&](const auto& change) {
    AttentionShape s = good;
    change(s);
    return s;
  };
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.query_length = s.key_length = 63; }), 8)) << "few queries";
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.query_position = 1; }), 8)) << "a cut diagonal";
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.key_position = 200; }), 8)) << "keys behind the queries";
  EXPECT_FALSE(asked(shape(1, 64, 2, 2, 12), 0)) << "a head of 24 bytes";
  EXPECT_FALSE(asked(shape(1, 66, 4, 2, 16), 8)) << "statistics of heads that are not aligned";
  AttentionShape cut = shape(1, 64, 3, 2, 16);
  cut.group = 2;
  cut.first_query_head = 3;
  cut.first_key_head = 1;
  EXPECT_FALSE(asked(cut, 8)) << "a shard that cuts a group";
  const Array<std::int32_t> documents(64);
  AttentionShape masked = good;
  masked.document_starts = documents.data();
  masked.document_stride = 64;
  EXPECT_FALSE(asked(masked, 8)) << "documents";
}

}  // namespace
}  // namespace nanotron::test
