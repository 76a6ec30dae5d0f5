// ranks: 1
#include "nanotron/kernels/attention/attention.hpp"
#include "support/reference/attention.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::AttentionShape;

template <class T>
class AttentionMerge : public KernelTest<T> {};
TYPED_TEST_SUITE(AttentionMerge, ScalarTypes);

// Attention over three pieces of the keys, joined in any order, is attention over all of them; some queries see
// nothing of a piece, and rows and lse of what is no piece stay as they are.
TYPED_TEST(AttentionMerge, PiecesOfTheKeysMakeTheWhole) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t length = 60, queries = 25, rows = 30, first = 20, width = 2 * 16;
  const auto q = Array<T>::random(2 * rows * width, 1), k = Array<T>::random(2 * length * 16, 2),
             v = Array<T>::random(2 * length * 16, 3);
  const AttentionShape whole{.batch = 2,
                             .query_length = queries,
                             .key_length = length,
                             .query_heads = 2,
                             .key_heads = 1,
                             .head_dim = 16,
                             .group = 2,
                             .query_rows = rows,
                             .query_position = first};
  std::vector<double> out(q.host.size()), lse(2 * 2 * rows, std::numeric_limits<M>::lowest());
  kernels::reference::attention_forward<T>(whole, q.on_host(2 * rows, width), k.on_host(2 * length, 16),
                                           v.on_host(2 * length, 16), matrix_of(out, 2 * rows, width), lse.data());
  for (const auto& order : {std::vector<Range>{{0, 10}, {10, 33}, {33, 60}}, {{33, 60}, {0, 10}, {10, 33}}}) {
    Array<T> part(q.size());
    Array<M> sum(q.size()), part_lse(2 * 2 * rows), total(2 * 2 * rows, std::numeric_limits<M>::lowest());
    for (const Range& keys : order) {
      AttentionShape s = whole;
      s.key_length = keys.size();
      s.key_rows = length;
      s.key_position = keys.begin;
      const auto bytes = static_cast<index_t>(kernels::attention_workspace_bytes<T>(s, built_for));
      Array<double> work(bytes / 8 + 8);
      const auto piece = [&](const Array<T>& x) {
        return MatrixRef<const T>(x.data() + keys.begin * 16, 2 * length - keys.begin, 16);
      };
      kernels::attention_forward<T>(
          this->device_, s, q.read(2 * rows, width), piece(k), piece(v), part.matrix(2 * rows, width),
          part_lse.vector(),
          Vector<std::byte>(reinterpret_cast<std::byte*>(work.data()), static_cast<std::size_t>(work.size()) * 8));
      kernels::merge_attention<T>(this->device_, s, part.read(2 * rows, width), part_lse.read(),
                                  sum.matrix(2 * rows, width), total.vector());
    }
    this->device_.fence();
    sum.pull(), total.pull();
    const double roundings = is_bf16<T> ? 4 : 64;
    expect_close(sum.host, out, roundings * unit_roundoff<T>());
    expect_close(total.host, lse, is_bf16<T> ? 2 * unit_roundoff<T>() : 16 * unit_roundoff<M>());
  }
}

TYPED_TEST(AttentionMerge, AccumulatesInTheMasterType) {
  using T = TypeParam;
  using M = master_t<T>;
  const auto x = Array<T>::random(7 * 5, 1);
  auto y = Array<M>::random(7 * 4, 2);
  Array<T> rounded(7 * 3);
  std::vector<double> sum(y.host.begin(), y.host.end());
  for (index_t r = 0; r < 7; ++r) {
    for (index_t c = 0; c < 3; ++c) sum[r * 4 + c] += static_cast<double>(x.host[r * 5 + 1 + c]);
  }
  kernels::accumulate_matrix<T>(this->device_, MatrixRef<const T>(x.read(7, 5)).column_block(1, 3),
                                MatrixRef<M>(y.matrix(7, 4)).column_block(0, 3));
  kernels::round_matrix<T>(this->device_, MatrixRef<const M>(y.read(7, 4)).column_block(0, 3), rounded.matrix(7, 3));
  this->device_.fence();
  y.pull(), rounded.pull();
  expect_close(y.host, sum, 2 * unit_roundoff<M>());
  for (index_t r = 0; r < 7; ++r) {
    for (index_t c = 0; c < 3; ++c) {
      EXPECT_EQ(static_cast<double>(rounded.host[r * 3 + c]), static_cast<double>(of<T>(y.host[r * 4 + c])));
    }
  }
}

}  // namespace
}  // namespace nanotron::test
