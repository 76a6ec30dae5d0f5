// ranks: 1
#include "nanotron/kernels/attention/sinks.hpp"
#include "support/reference/sinks.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::AttentionShape;

template <class T>
class Sinks : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  // Two key heads with three query heads; queries in the middle of longer rows. The first query has a sink that takes
  // nearly all, and one that takes next to nothing.
  static AttentionShape shape() {
    return {.batch = 2,
            .query_length = 19,
            .key_length = 19,
            .query_heads = 3,
            .key_heads = 2,
            .head_dim = 8,
            .group = 2,
            .key_rows = 23,
            .query_rows = 21,
            .window = 7};
  }

  struct Result {
    std::vector<T> out, dq, dk, dv;
    std::vector<M> lse, dsinks;
  };

  Result run(const AttentionShape& s, const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& dout,
             const Array<M>& sinks) {
    const index_t queries = s.batch * s.query_row_stride(), keys = s.batch * s.key_row_stride();
    const index_t q_width = s.query_heads * s.head_dim, k_width = s.key_heads * s.head_dim;
    Array<T> out(queries * q_width), dq(queries * q_width), dk(keys * k_width), dv(keys * k_width);
    Array<M> lse(queries * s.query_heads), dsinks(s.query_heads, M(0.25));
    const std::size_t bytes =
        std::max(kernels::attention_workspace_bytes<T>(s, built_for), kernels::sinks_workspace_bytes<T>(s, built_for));
    Array<double> work(static_cast<index_t>(bytes / 8 + 8), 1e300);
    const Vector<std::byte> workspace(reinterpret_cast<std::byte*>(work.data()), bytes);
    const auto read_q = q.read(queries, q_width), read_k = k.read(keys, k_width), read_v = v.read(keys, k_width);
    kernels::attention_forward<T>(this->device_, s, read_q, read_k, read_v, out.matrix(queries, q_width), lse.vector(),
                                  workspace);
    kernels::add_sinks<T>(this->device_, s, sinks.read(), out.matrix(queries, q_width), lse.vector());
    kernels::sinks_backward<T>(this->device_, s, sinks.read(), out.read(queries, q_width), dout.read(queries, q_width),
                               lse.read(), dsinks.vector(), workspace);
    kernels::attention_backward<T>(this->device_, s, read_q, read_k, read_v, out.read(queries, q_width),
                                   dout.read(queries, q_width), lse.read(), dq.matrix(queries, q_width),
                                   dk.matrix(keys, k_width), dv.matrix(keys, k_width), workspace);
    this->device_.fence();
    out.pull(), lse.pull(), dq.pull(), dk.pull(), dv.pull(), dsinks.pull();
    return {out.host, dq.host, dk.host, dv.host, lse.host, dsinks.host};
  }
};
TYPED_TEST_SUITE(Sinks, ScalarTypes);

// By central differences of the reference implementation, whose rounding they add to that of T.
TYPED_TEST(Sinks, FollowTheReferenceAndItsFiniteDifferences) {
  using T = TypeParam;
  using M = master_t<T>;
  const AttentionShape s = this->shape();
  const index_t queries = s.batch * s.query_row_stride(), keys = s.batch * s.key_row_stride();
  const index_t q_width = s.query_heads * s.head_dim, k_width = s.key_heads * s.head_dim;
  const auto q = Array<T>::random(queries * q_width, 1), k = Array<T>::random(keys * k_width, 2),
             v = Array<T>::random(keys * k_width, 3), dout = Array<T>::random(queries * q_width, 4);
  Array<M> sinks(s.query_heads);
  sinks.host = {M(0.5), M(4), M(-30)};
  sinks.push();
  const auto result = this->run(s, q, k, v, dout, sinks);

  const auto doubles = [](const auto& x) { return std::vector<double>(x.host.begin(), x.host.end()); };
  std::vector<double> out(q.host.size()), lse(result.lse.size());
  const auto loss = [&](const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& c,
                        const std::vector<double>& z) {
    kernels::reference::attention_with_sinks<double>(s, {a.data(), queries, q_width}, {b.data(), keys, k_width},
                                                     {c.data(), keys, k_width}, z.data(),
                                                     matrix_of(out, queries, q_width), lse.data());
    double sum = 0;
    for (index_t row = 0; row < queries; ++row) {
      if (row % s.query_row_stride() >= s.query_length) continue;
      for (index_t c2 = 0; c2 < q_width; ++c2) {
        const auto i = static_cast<std::size_t>(row * q_width + c2);
        sum += out[i] * static_cast<double>(dout.host[i]);
      }
    }
    return sum;
  };
  const auto a = doubles(q), b = doubles(k), c = doubles(v), z = doubles(sinks);
  loss(a, b, c, z);
  const double roundings = is_bf16<T> ? 6 : 64;
  expect_close(result.out, out, roundings * unit_roundoff<T>());
  for (index_t n = 0; n < s.batch * s.query_heads; ++n) {
    for (index_t i = 0; i < s.query_length; ++i) {
      const auto at = static_cast<std::size_t>(n * s.query_row_stride() + i);
      EXPECT_NEAR(result.lse[at], lse[at], is_bf16<T> ? 0.02 : 64 * unit_roundoff<M>());
    }
  }
  std::vector<double> dz = finite_difference(z, [&](const auto& x) { return loss(a, b, c, x); });
  for (double& x : dz) x += 0.25;  // what was there
  expect_close(result.dsinks, dz, 1e-8 + (is_bf16<T> ? 4 * unit_roundoff<T>() : 64 * unit_roundoff<M>()), 4.0);
  expect_close(result.dq, finite_difference(a, [&](const auto& x) { return loss(x, b, c, z); }),
               1e-8 + roundings * unit_roundoff<T>());
  expect_close(result.dk, finite_difference(b, [&](const auto& x) { return loss(a, x, c, z); }),
               1e-8 + roundings * unit_roundoff<T>(), 4.0);
  expect_close(result.dv, finite_difference(c, [&](const auto& x) { return loss(a, b, x, z); }),
               1e-8 + roundings * unit_roundoff<T>(), 4.0);
}

// A query without keys: the sink alone.
TEST(SinksOfAQueryWithoutKeys, LeaveNothing) {
  EXPECT_EQ(kernels::reference::with_sink(std::numeric_limits<double>::lowest(), 0.75), 0.75);
}

}  // namespace
}  // namespace nanotron::test
