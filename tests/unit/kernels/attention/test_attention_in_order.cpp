// ranks: 1
// With GEMMs in a fixed order attention has the same bits in both forms: tiles in cache on a host, blocks of batched
// GEMMs on a GPU.
#include <bit>

#include "nanotron/kernels/gemm/gemm.hpp"
#include "unit/kernels/attention/attention_check.hpp"

namespace nanotron::test {
namespace {

template <class T>
class AttentionInOrder : public testing::Test {
 protected:
  using M = master_t<T>;
  // next_to_the_largest: 0 for the first key, minus the scale for all others.
  enum class Scores { random, next_to_the_largest };
  Scores scores_ = Scores::random;

  void check(AttentionShape s, const Array<std::int32_t>* documents = nullptr) {
    if (documents != nullptr) {
      s.document_stride = documents->size() / s.batch;
      s.document_starts = documents->data();
    }
    const index_t gemm_bytes =
        static_cast<index_t>(kernels::gemm_workspace_bytes<T>(GemmMode::fixed_order, built_for, 256, 256, 512));
    const Array<double> gemms(gemm_bytes / 8 + 8);
    device_.set_gemm_workspace(
        Vector<std::byte>(reinterpret_cast<std::byte*>(gemms.data()), static_cast<std::size_t>(gemm_bytes)));
    ++shapes_;
    const auto program = run(s, true), blocks = run(s, false);
    for (std::size_t i = 0; i < program.size(); ++i) {
      ASSERT_EQ(program[i].size(), blocks[i].size());
      for (std::size_t j = 0; j < program[i].size(); ++j) {
        ASSERT_EQ(std::bit_cast<std::uint64_t>(program[i][j]), std::bit_cast<std::uint64_t>(blocks[i][j]))
            << "shape " << shapes_ << ", tensor " << i << " at " << j << ": " << program[i][j] << ", " << blocks[i][j];
      }
    }
  }

 private:
  // out, lse, dq, dk, dv.
  std::vector<std::vector<double>> run(const AttentionShape& s, bool as_the_program) {
    const index_t queries = s.batch * s.query_row_stride(), keys = s.batch * s.key_row_stride();
    const index_t wide = s.query_heads * s.head_dim, narrow = s.key_heads * s.head_dim;
    Array<T> q = Array<T>::random(queries * wide, 1), k = Array<T>::random(keys * narrow, 2);
    if (scores_ == Scores::next_to_the_largest) {
      q = Array<T>(queries * wide, 1.0);
      k = Array<T>(keys * narrow, -1.0);
      for (index_t c = 0; c < narrow; ++c) k.host[static_cast<std::size_t>(c)] = T(0.0F);
      k.push();
    }
    const auto v = Array<T>::random(keys * narrow, 3), dout = Array<T>::random(queries * wide, 4);
    Array<T> out(queries * wide), dq(queries * wide), dk(keys * narrow), dv(keys * narrow);
    Array<M> lse(queries * s.query_heads);
    const std::size_t bytes = as_the_program ? kernels::attention_workspace_bytes<T>(s, built_for)
                                             : kernels::blocked::attention_workspace_bytes<T>(s);
    const Array<double> work(static_cast<index_t>(bytes / 8 + 8), 1e300);
    const Vector<std::byte> workspace(reinterpret_cast<std::byte*>(work.data()), work.host.size() * 8);
    const MatrixRef<const T> rows_q = q.read(queries, wide), rows_k = k.read(keys, narrow),
                             rows_v = v.read(keys, narrow), rows_dout = dout.read(queries, wide);
    if (as_the_program) {
      kernels::attention_forward<T>(device_, s, rows_q, rows_k, rows_v, out.matrix(queries, wide), lse.vector(),
                                    workspace);
      kernels::attention_backward<T>(device_, s, rows_q, rows_k, rows_v, out.read(queries, wide), rows_dout, lse.read(),
                                     dq.matrix(queries, wide), dk.matrix(keys, narrow), dv.matrix(keys, narrow),
                                     workspace);
    } else {
      kernels::blocked::attention_forward<T>(device_, s, rows_q, rows_k, rows_v, out.matrix(queries, wide),
                                             lse.vector(), workspace);
      kernels::blocked::attention_backward<T>(
          device_, s,
          {rows_q, rows_k, rows_v, out.read(queries, wide), rows_dout, lse.read(), dq.matrix(queries, wide),
           dk.matrix(keys, narrow), dv.matrix(keys, narrow)},
          workspace);
    }
    device_.fence();
    out.pull(), lse.pull(), dq.pull(), dk.pull(), dv.pull();
    const auto wide_numbers = [](const auto& values) { return std::vector<double>(values.begin(), values.end()); };
    return {wide_numbers(out.host), wide_numbers(lse.host), wide_numbers(dq.host), wide_numbers(dk.host),
            wide_numbers(dv.host)};
  }

  int shapes_ = 0;
  Timers timers_;
  Device device_{timers_, GemmMode::fixed_order};
};
TYPED_TEST_SUITE(AttentionInOrder, ScalarTypes);

TYPED_TEST(AttentionInOrder, HasTheBitsOfBatchedGemms) {
  this->check(shape_of(2, 401, 401, 4, 2, 32));
  this->check(shape_of(1, 70, 70, 3, 3, 19));
  this->check(shape_of(1, 3, 270, 6, 1, 40));
  AttentionShape s = shape_of(2, 401, 401, 2, 1, 24);
  const auto starts = document_starts(401);
  this->check(s, &starts);
  s.window = 100;
  this->check(s);
  s.scores.cap = 3.0;
  this->check(s);
  s.scores.scale = 0.3;
  s.mask = kernels::random_mask(0.3, kernels::MaskSite::probabilities, 2, 17);
  s.mask.samples = {.first = 40, .at_once = 1, .shards = 3, .shard = 1, .before = 2};
  this->check(s);
  s = shape_of(1, 200, 200, 4, 2, 48);
  s.scores.scale = 8.0;  // probabilities down to subnormal numbers
  this->check(s);
  s = shape_of(1, 100, 100, 1, 1, 1);
  s.scores.scale = 87.338;  // exp(-scale) is less than 2^-126, rounded to bf16 it is not
  this->scores_ = TestFixture::Scores::next_to_the_largest;
  this->check(s);
}

}  // namespace
}  // namespace nanotron::test
