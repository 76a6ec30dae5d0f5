// ranks: 1
#include "nanotron/kernels/vocab/embedding.hpp"
#include "support/reference/embedding.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Embedding : public KernelTest<T> {};
TYPED_TEST_SUITE(Embedding, ScalarTypes);

template <class T>
void check_local_rows(Device& device, double multiplier, index_t segments) {
  using M = master_t<T>;
  const index_t count = 200, hidden = 37;
  const Range vocabulary{11, 29};  // 18 of 40 ids
  const auto table = Array<T>::random(vocabulary.size() * hidden, 1);
  const auto dout = Array<T>::random(count * hidden, 2);
  Array<std::int32_t> tokens(count);
  std::mt19937 generator(3);
  for (auto& id : tokens.host) id = static_cast<std::int32_t>(generator() % 40);
  tokens.push();
  Array<T> out(count * hidden, 9.0);
  Array<M> dtable(table.size(), 0.5);
  kernels::embedding_forward<T>(device, tokens.read(), vocabulary, table.read(vocabulary.size(), hidden),
                                out.matrix(count, hidden), multiplier);
  kernels::embedding_backward<T>(device, tokens.read(), vocabulary, dout.read(count, hidden),
                                 dtable.matrix(vocabulary.size(), hidden), segments, multiplier);
  device.fence();
  out.pull(), dtable.pull();
  std::vector<double> out2(out.host.size()), dtable2(dtable.host.size(), 0.5);
  kernels::reference::embedding_forward<T>(tokens.host.data(), vocabulary, table.on_host(vocabulary.size(), hidden),
                                           matrix_of(out2, count, hidden), multiplier);
  kernels::reference::embedding_backward<T>(tokens.host.data(), vocabulary, dout.on_host(count, hidden),
                                            matrix_of(dtable2, vocabulary.size(), hidden), multiplier);
  // A copy; or the factor and the product are rounded to M, and the product to T.
  expect_close(out.host, out2, multiplier == 1.0 ? 0.0 : 2 * unit_roundoff<M>() + unit_roundoff<T>());
  expect_close(dtable.host, dtable2, 16 * std::max(1.0, multiplier) * unit_roundoff<M>());  // about 10 additions an id
}

TYPED_TEST(Embedding, LocalRowsOnly) {
  for (const index_t segments : {1, 4}) check_local_rows<TypeParam>(this->device_, 1.0, segments);
}
TYPED_TEST(Embedding, Multiplied) {
  for (const index_t segments : {1, 4}) check_local_rows<TypeParam>(this->device_, 11.3, segments);
}

// The sum of two tables, as learned positions are added to words: one rounding.
TYPED_TEST(Embedding, ASecondTableIsAdded) {
  using T = TypeParam;
  const index_t count = 50, hidden = 37;
  const Range positions{4, 16};  // 12 of 20
  const auto table = Array<T>::random(positions.size() * hidden, 1);
  auto out = Array<T>::random(count * hidden, 2);
  Array<std::int32_t> at(count);
  for (index_t i = 0; i < count; ++i) at.host[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % 20);
  at.push();
  std::vector<double> sum(out.host.size());
  kernels::reference::embedding_forward<T>(at.host.data(), positions, table.on_host(positions.size(), hidden),
                                           matrix_of(sum, count, hidden));
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = static_cast<double>(of<T>(sum[i] + static_cast<double>(out.host[i])));
  kernels::embedding_add<T>(this->device_, at.read(), positions, table.read(positions.size(), hidden),
                            out.matrix(count, hidden));
  this->device_.fence();
  out.pull();
  expect_close(out.host, sum, 0.0);
}

TYPED_TEST(Embedding, ShardWithoutRows) {
  using T = TypeParam;
  Array<std::int32_t> tokens(4, 3);
  Array<T> none(0), out(4 * 8, 1.0);
  kernels::embedding_forward<T>(this->device_, tokens.read(), Range{40, 40}, none.read(0, 8), out.matrix(4, 8));
  this->device_.fence();
  out.pull();
  expect_close(out.host, std::vector<double>(32, 0.0), 0.0);
}

}  // namespace
}  // namespace nanotron::test
