// ranks: 1
// q, k and v are a linear function of what they are made from. The reference is its matrix, and the gradient's is the
// transpose.
#include "nanotron/kernels/attention/latent.hpp"

#include "nanotron/kernels/attention/rotary.hpp"
#include "support/reference/latent.hpp"
#include "support/reference/rotary.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::LatentHeads;

constexpr double theta = 10000.0;
constexpr index_t tokens = 5, gap = 3;

template <class T>
class Latent : public KernelTest<T> {
 protected:
  using M = master_t<T>;
  using Values = std::vector<double>;

  // Columns of a wider matrix, after `gap` others.
  static MatrixRef<T> columns(const Array<T>& x, index_t count) {
    return {x.data() + gap, tokens, count, count + gap + 2};
  }
  static Array<T> random(index_t count, unsigned seed) { return Array<T>::random(tokens * (count + gap + 2), seed); }
  static double at(const Array<T>& x, index_t count, index_t token, index_t column) {
    return static_cast<double>(x.host[static_cast<std::size_t>(token * (count + gap + 2) + gap + column)]);
  }

  void check(const LatentHeads& h, index_t segments) {
    const index_t d = h.width(), q = h.heads * d, kv = h.heads * (h.nope + h.value), half = h.rope / 2;
    Array<M> cosine(40 * half), sine(40 * half);
    kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(40, half), sine.matrix(40, half));
    Array<std::int32_t> positions(tokens);
    for (index_t t = 0; t < tokens; ++t)
      positions.host[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(7 * t + 1);
    positions.push();
    const kernels::LatentRotation<T> rotation{positions.read(), cosine.read(40, half), sine.read(40, half)};

    Array<T> query = random(q, 1), key_value = random(kv, 2), rope = random(h.rope, 3);
    Array<T> out_q = random(q, 4), out_k = random(q, 5), out_v = random(q, 6);
    kernels::latent_forward<T>(this->device_, h, rotation, columns(query, q), columns(key_value, kv),
                               columns(rope, h.rope), columns(out_q, q), columns(out_k, q), columns(out_v, q));
    Array<T> dquery = random(q, 7), dkey_value = random(kv, 8), drope = random(h.rope, 9);
    this->device_.fence();
    for (Array<T>* x : {&out_q, &out_k, &out_v}) x->pull();
    // The gradients: those of the sum of squares, halved, are the outputs themselves.
    kernels::latent_backward<T>(this->device_, h, rotation, columns(out_q, q), columns(out_k, q), columns(out_v, q),
                                columns(dquery, q), columns(dkey_value, kv));
    kernels::latent_rope_backward<T>(this->device_, h, rotation, columns(out_k, q), columns(drope, h.rope), segments);
    this->device_.fence();
    for (Array<T>* x : {&dquery, &dkey_value, &drope}) x->pull();

    const double tolerance = 4 * unit_roundoff<M>() + unit_roundoff<T>() + 1e-14;
    const Values f = kernels::reference::rotary_frequencies(theta, h.rope);
    for (index_t t = 0; t < tokens; ++t) {
      Values angles;
      for (const double frequency : f) angles.push_back(frequency * static_cast<double>(7 * t + 1));
      const auto matrix = kernels::reference::latent_matrix(h, angles);
      const auto input = [&](index_t c) {
        return c < q ? at(query, q, t, c) : c < q + kv ? at(key_value, kv, t, c - q) : at(rope, h.rope, t, c - q - kv);
      };
      const auto output = [&](index_t r) { return at(r < q ? out_q : r < 2 * q ? out_k : out_v, q, t, r % q); };
      const auto gradient = [&](index_t c) {
        return c < q        ? at(dquery, q, t, c)
               : c < q + kv ? at(dkey_value, kv, t, c - q)
                            : at(drope, h.rope, t, c - q - kv);
      };
      for (index_t r = 0; r < matrix.rows; ++r) {
        double sum = 0.0;
        for (index_t c = 0; c < matrix.columns; ++c) sum += matrix.at(r, c) * input(c);
        ASSERT_NEAR(output(r), sum, tolerance * (1 + std::abs(sum))) << "row " << r;
      }
      for (index_t c = 0; c < matrix.columns; ++c) {
        double sum = 0.0, size = 0.0;
        for (index_t r = 0; r < matrix.rows; ++r) {
          sum += matrix.at(r, c) * output(r);
          size += std::abs(matrix.at(r, c) * output(r));
        }
        // The sum over heads is rounded for each segment, and at each sum of two of them.
        const double roundings = c < q + kv ? 1.0 : 2.0 * static_cast<double>(segments);
        ASSERT_NEAR(gradient(c), sum, roundings * tolerance * (1 + size)) << "column " << c;
      }
    }
  }
};
TYPED_TEST_SUITE(Latent, ScalarTypes);

TYPED_TEST(Latent, FollowsTheReference) {
  this->check({.heads = 4, .nope = 6, .rope = 4, .value = 7}, 1);
  this->check({.heads = 3, .nope = 16, .rope = 8, .value = 24, .interleaved = true}, 1);
}

TYPED_TEST(Latent, AddsSegmentsOfHeads) {
  this->check({.heads = 8, .nope = 5, .rope = 6, .value = 3, .interleaved = true}, 4);
}

// Two ranks with half of the heads each have the segments of one rank with all: the same bits.
TYPED_TEST(Latent, SegmentsAreTheNodesOfOneTree) {
  using T = TypeParam;
  const LatentHeads all{.heads = 8, .nope = 5, .rope = 6, .value = 3},
      half{.heads = 4, .nope = 5, .rope = 6, .value = 3};
  const index_t d = all.width();
  auto dk = Array<T>::random(tokens * 8 * d, 1);
  Array<T> whole(tokens * 6), first(tokens * 6), second(tokens * 6);
  const MatrixRef<T> columns(dk.matrix(tokens, 8 * d));
  kernels::latent_rope_backward<T>(this->device_, all, {}, columns, MatrixRef<T>(whole.matrix(tokens, 6)), 4);
  kernels::latent_rope_backward<T>(this->device_, half, {}, columns.column_block(0, 4 * d),
                                   MatrixRef<T>(first.matrix(tokens, 6)), 2);
  kernels::latent_rope_backward<T>(this->device_, half, {}, columns.column_block(4 * d, 4 * d),
                                   MatrixRef<T>(second.matrix(tokens, 6)), 2);
  this->device_.fence();
  for (Array<T>* x : {&whole, &first, &second}) x->pull();
  for (std::size_t i = 0; i < whole.host.size(); ++i) {
    const auto sum = static_cast<T>(static_cast<master_t<T>>(first.host[i]) + static_cast<master_t<T>>(second.host[i]));
    ASSERT_EQ(static_cast<double>(sum), static_cast<double>(whole.host[i]));
  }
}

TYPED_TEST(Latent, RotatesHeadsOfAnotherStride) {
  using T = TypeParam;
  using M = master_t<T>;
  const LatentHeads h{.heads = 3, .nope = 2, .rope = 4, .value = 2, .interleaved = true};
  Array<M> cosine(9 * 2), sine(9 * 2);
  kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(9, 2), sine.matrix(9, 2));
  Array<std::int32_t> positions(2);
  positions.host = {3, 8};
  positions.push();
  const kernels::LatentRotation<T> rotation{positions.read(), cosine.read(9, 2), sine.read(9, 2)};
  auto x = Array<T>::random(2 * 18, 1);
  Array<T> y(2 * 30), q(2 * 18), k(2 * 18), v(2 * 18), key_value(2 * 12);
  kernels::latent_rotate<T>(this->device_, h, rotation, 3, MatrixRef<T>(x.matrix(2, 18)).column_block(2, 16), 6,
                            MatrixRef<T>(y.matrix(2, 30)).column_block(6, 24), 10);
  kernels::latent_forward<T>(this->device_, h, rotation, MatrixRef<T>(x.matrix(2, 18)),
                             MatrixRef<T>(key_value.matrix(2, 12)), MatrixRef<T>(x.matrix(2, 18)).column_block(0, 4),
                             MatrixRef<T>(q.matrix(2, 18)), MatrixRef<T>(k.matrix(2, 18)),
                             MatrixRef<T>(v.matrix(2, 18)));
  this->device_.fence();
  y.pull(), q.pull();
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t head = 0; head < 3; ++head) {
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(static_cast<double>(y.host[t * 30 + 6 + head * 10 + i]),
                  static_cast<double>(q.host[t * 18 + head * 6 + 2 + i]));
      }
    }
  }
}

}  // namespace
}  // namespace nanotron::test
