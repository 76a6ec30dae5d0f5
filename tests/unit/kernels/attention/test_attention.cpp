// ranks: 1
#include "unit/kernels/attention/attention_check.hpp"

namespace nanotron::test {
namespace {

TYPED_TEST_SUITE(Attention, ScalarTypes);

using AttentionOnTensorCores = OnTensorCores<Attention<bf16>>;

TYPED_TEST(Attention, OneTile) { this->check(shape_of(1, 5, 5, 1, 1, 16)); }
TYPED_TEST(Attention, OneToken) { this->check(shape_of(3, 1, 1, 2, 2, 64)); }
TYPED_TEST(Attention, SeveralTiles) { this->check(shape_of(2, 256, 256, 2, 2, 64)); }
TYPED_TEST(Attention, LengthsThatFillNoTile) { this->check(shape_of(2, 211, 211, 3, 1, 40)); }
TYPED_TEST(Attention, OddHeadWidth) { this->check(shape_of(1, 70, 70, 2, 1, 19)); }
TYPED_TEST(Attention, WideHeads) { this->check(shape_of(1, 100, 100, 1, 1, 256)); }
TYPED_TEST(Attention, GroupedQueries) { this->check(shape_of(1, 97, 97, 8, 2, 32)); }

// Rows of 16 bytes, which the fused kernels of a GPU ask for.
TYPED_TEST(Attention, AlignedRows) {
  this->check(shape_of(2, 130, 130, 4, 2, 32), Way::program, nullptr, 8);
  AttentionShape s = shape_of(2, 130, 201, 2, 1, 24);
  s.query_position = 300;
  this->check(s, Way::program, nullptr, 8);
}

TYPED_TEST(Attention, ByBatchedGemm) {
  this->check(shape_of(2, 301, 301, 4, 2, 32), Way::batched_gemms);
  this->check(shape_of(1, 3, 270, 2, 1, 19), Way::batched_gemms);
}

// Widths of tiles and what does not fill them; several key heads, each with its query heads; one query.
TEST_F(AttentionOnTensorCores, HeadWidthsAndLengths) {
  for (const index_t head_dim : {8, 40, 64, 72, 128}) {
    SCOPED_TRACE(head_dim);
    this->check(shape_of(2, 211, 211, 4, 2, head_dim), Way::mma);
  }
  this->check(shape_of(1, 1, 130, 6, 2, 64), Way::mma);
  this->check(shape_of(1, 512, 512, 2, 2, 64), Way::mma);
}

// out instead of q; a key head without a query head on this rank; no query head at all; a NaN.
TEST_F(AttentionOnTensorCores, Corners) {
  const AttentionShape s = shape_of(1, 150, 150, 2, 1, 40);
  auto q = Array<bf16>::random(150 * 80, 1);
  const auto k = Array<bf16>::random(150 * 40, 2), v = Array<bf16>::random(150 * 40, 3);
  Array<bf16> out(150 * 80), of_two(150 * 80), dq(150 * 80), dk(300 * 40), dv(300 * 40);
  Array<float> lse(300), lse2(300);
  Array<float> work(300);
  const Vector<std::byte> workspace(reinterpret_cast<std::byte*>(work.data()), 300 * sizeof(float));
  kernels::mma::attention_forward(device_, s, q.read(150, 80), k.read(150, 40), v.read(150, 40), out.matrix(150, 80),
                                  lse.vector());
  device_.fence();
  out.pull();

  AttentionShape two = shape_of(1, 150, 150, 2, 2, 40);
  two.group = 2;  // both query heads are of the first key head
  const auto keys = Array<bf16>::random(150 * 80, 5);
  kernels::mma::attention_forward(device_, two, q.read(150, 80), keys.read(150, 80), keys.read(150, 80),
                                  of_two.matrix(150, 80), lse2.vector());
  kernels::mma::attention_backward(
      device_, two,
      {q.read(150, 80), keys.read(150, 80), keys.read(150, 80), of_two.read(150, 80), out.read(150, 80), lse2.read(),
       dq.matrix(150, 80), dk.matrix(150, 80), dv.matrix(150, 80)},
      workspace);
  device_.fence();
  dk.pull(), dv.pull();
  for (index_t row = 0; row < 150; ++row) {
    for (index_t c = 40; c < 80; ++c) {
      EXPECT_EQ(static_cast<float>(dk.host[static_cast<std::size_t>(row * 80 + c)]), 0.0f);
      EXPECT_EQ(static_cast<float>(dv.host[static_cast<std::size_t>(row * 80 + c)]), 0.0f);
    }
  }
  AttentionShape none = s;
  none.query_heads = 0;
  kernels::mma::attention_forward(device_, none, q.read(150, 80), k.read(150, 40), v.read(150, 40),
                                  of_two.matrix(150, 80), lse2.vector());

  kernels::mma::attention_forward(device_, s, q.read(150, 80), k.read(150, 40), v.read(150, 40), q.matrix(150, 80),
                                  lse.vector());
  device_.fence();
  q.pull();
  for (std::size_t i = 0; i < q.host.size(); ++i) ASSERT_EQ(q.host[i].bits, out.host[i].bits) << i;

  q.host[70 * 80 + 3] = bf16(std::numeric_limits<float>::quiet_NaN());
  q.push();
  kernels::mma::attention_forward(device_, s, q.read(150, 80), k.read(150, 40), v.read(150, 40), out.matrix(150, 80),
                                  lse.vector());
  device_.fence();
  out.pull();
  EXPECT_TRUE(std::isnan(static_cast<float>(out.host[70 * 80])));
  EXPECT_FALSE(std::isnan(static_cast<float>(out.host[70 * 80 + 40])));
}

TEST_F(AttentionOnTensorCores, ShardThatCutsAGroup) {
  AttentionShape s = shape_of(2, 150, 150, 3, 2, 16);
  s.group = 2;
  s.first_query_head = 3;
  s.first_key_head = 1;
  this->check(s, Way::mma);
}

TYPED_TEST(Attention, QueriesAfterACache) {
  AttentionShape s = shape_of(2, 3, 203, 4, 2, 32);
  s.key_rows = 230;
  this->check(s);
  s.query_length = 1;
  s.query_position = 202;
  this->check(s);
}

TYPED_TEST(Attention, ShardThatCutsAGroup) {
  // Global heads 3, 4, 5 of groups of 2: key heads 1 and 2, the first of which has one query head
  // here.
  AttentionShape s = shape_of(1, 60, 60, 3, 2, 16);
  s.group = 2;
  s.first_query_head = 3;
  s.first_key_head = 1;
  this->check(s);
}

TYPED_TEST(Attention, Documents) {
  const index_t length = 211;
  const auto starts = document_starts(length);
  const AttentionShape s = shape_of(2, length, length, 4, 2, 32);
  for (const Way way : ways<TypeParam>) this->check(s, way, &starts);
}

// Pieces of a sequence as context parallelism meets them: all keys before the queries, keys that end among
// the queries, keys behind all queries, with documents that lie in none, one or both of the pieces.
TYPED_TEST(Attention, PiecesOfASequence) {
  const index_t length = 700;
  const auto starts = document_starts(length);
  for (const bool documents : {false, true}) {
    for (const auto& [query, key] : {std::pair<index_t, index_t>{300, 0}, {60, 0}, {150, 90}, {0, 300}}) {
      for (const Way way : ways<TypeParam>) {
        AttentionShape s = shape_of(2, 130, 201, 2, 1, 24);
        s.query_rows = 140;
        s.key_rows = 210;
        s.query_position = query;
        s.key_position = key;
        SCOPED_TRACE(testing::Message() << query << " after " << key << " " << documents << static_cast<int>(way));
        this->check(s, way, documents ? &starts : nullptr);
      }
    }
  }
}

// One key, windows that end inside of tiles and at their ends, and one wider than the sequence.
TYPED_TEST(Attention, SlidingWindow) {
  const index_t length = 401;
  const auto starts = document_starts(length);
  for (const index_t window : {1, 64, 192, 500}) {
    for (const Way way : ways<TypeParam>) {
      SCOPED_TRACE(testing::Message() << window << " " << static_cast<int>(way));
      AttentionShape s = shape_of(2, length, length, 1, 1, 16);
      s.window = window;
      this->check(s, way, window == 64 ? &starts : nullptr);
    }
  }
}

TYPED_TEST(Attention, SlidingWindowAfterACache) {
  AttentionShape s = shape_of(2, 3, 203, 4, 2, 32);
  s.key_rows = 230;
  for (const index_t window : {2, 20, 250}) {
    s.window = window;
    this->check(s);
  }
}

// Keys of a piece that the window reaches in part, and some that it does not reach.
TYPED_TEST(Attention, SlidingWindowOverPieces) {
  for (const auto& [query, key] : {std::pair<index_t, index_t>{300, 0}, {210, 0}, {150, 90}, {60, 0}}) {
    for (const Way way : ways<TypeParam>) {
      AttentionShape s = shape_of(2, 130, 201, 2, 1, 24);
      s.query_rows = 140;
      s.key_rows = 210;
      s.query_position = query;
      s.key_position = key;
      s.window = 50;
      SCOPED_TRACE(testing::Message() << query << " after " << key << " " << static_cast<int>(way));
      this->check(s, way);
    }
  }
}

// A scale, a soft cap that bends most scores, ALiBi of heads that are no power of 2, and all of them; over whole
// sequences with documents, after a cache, and over pieces of a sequence with a window.
TYPED_TEST(Attention, MapsOfScores) {
  const index_t length = 211;
  const auto starts = document_starts(length);
  const std::vector<kernels::ScoreMap> maps{
      {.scale = 0.1}, {.cap = 1.5}, {.alibi_heads = 6}, {.scale = 0.3, .cap = 2.0, .alibi_heads = 6}};
  for (const Way way : ways<TypeParam>) {
    for (std::size_t m = 0; m < maps.size(); ++m) {
      SCOPED_TRACE(testing::Message() << m << " " << static_cast<int>(way));
      AttentionShape s = shape_of(2, length, length, 4, 2, 32);
      s.first_query_head = 2, s.first_key_head = 1;  // of 6 and 3
      s.scores = maps[m];
      this->check(s, way, &starts);
      AttentionShape pieces = shape_of(2, 130, 201, 2, 1, 24);
      pieces.query_rows = 140;
      pieces.key_rows = 210;
      pieces.query_position = 210;
      pieces.key_position = 0;
      pieces.window = 50;
      pieces.scores = maps[m];
      this->check(pieces, way);
    }
  }
  AttentionShape after = shape_of(2, 3, 203, 4, 2, 32);
  after.key_rows = 230;
  after.scores = maps.back();
  this->check(after);
}

TEST(ScoreMap, SlopesAreThoseOfBloom) {
  for (const index_t heads : {1, 2, 6, 8, 12, 71, 112}) {
    const std::vector<double> slopes = kernels::reference::alibi_slopes(heads);
    ASSERT_EQ(static_cast<index_t>(slopes.size()), heads);
    for (index_t h = 0; h < heads; ++h) {
      EXPECT_NEAR(kernels::ScoreMap{.alibi_heads = heads}.slope(h), slopes[static_cast<std::size_t>(h)], 1e-15) << h;
    }
  }
  EXPECT_EQ(kernels::ScoreMap{.alibi_heads = 8}.slope(0), 0.5);
  EXPECT_EQ(kernels::ScoreMap{}.slope(3), 0.0);
}

// transformers masks the keys at or below query - sliding_window: so many keys are left, the query's own among them.
TEST(AttentionShapeWindow, CountsAsTransformersDoes) {
  AttentionShape s = shape_of(1, 9, 20, 1, 1, 4);
  for (s.window = 1; s.window < 25; ++s.window) {
    for (index_t i = 0; i < s.query_length; ++i) {
      const index_t position = s.query_position + i;
      for (index_t j = 0; j < s.key_length; ++j) {
        EXPECT_EQ(s.keys_of(0, i).contains(j), j <= position && j > position - s.window)
            << s.window << " " << i << " " << j;
      }
    }
  }
}

using WindowAndScores = std::pair<index_t, kernels::ScoreMap>;
class AttentionReference : public testing::TestWithParam<WindowAndScores> {};
INSTANTIATE_TEST_SUITE_P(Windows, AttentionReference,
                         testing::Values(WindowAndScores{0, {}}, WindowAndScores{3, {}},
                                         WindowAndScores{0, {.scale = 0.9, .cap = 0.7, .alibi_heads = 2}}));

TEST_P(AttentionReference, GradientIsTheFiniteDifference) {
  AttentionShape s = shape_of(1, 4, 6, 2, 1, 3);
  s.window = GetParam().first;
  s.scores = GetParam().second;
  const auto q = Array<double>::random(4 * 6, 1);
  const auto k = Array<double>::random(6 * 3, 2);
  const auto v = Array<double>::random(6 * 3, 3);
  const auto dout = Array<double>::random(4 * 6, 4);
  const auto loss = [&](const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& c) {
    std::vector<double> out(24), lse(8);
    kernels::reference::attention_forward<double>(s, {a.data(), 4, 6}, {b.data(), 6, 3}, {c.data(), 6, 3},
                                                  matrix_of(out, 4, 6), lse.data());
    return dot(out, dout.host);
  };
  std::vector<double> dq(24), dk(18), dv(18);
  kernels::reference::attention_backward<double>(s, q.on_host(4, 6), k.on_host(6, 3), v.on_host(6, 3),
                                                 dout.on_host(4, 6), matrix_of(dq, 4, 6), matrix_of(dk, 6, 3),
                                                 matrix_of(dv, 6, 3));
  expect_close(dq, finite_difference(q.host, [&](const auto& x) { return loss(x, k.host, v.host); }), 1e-8);
  expect_close(dk, finite_difference(k.host, [&](const auto& x) { return loss(q.host, x, v.host); }), 1e-8);
  expect_close(dv, finite_difference(v.host, [&](const auto& x) { return loss(q.host, k.host, x); }), 1e-8);
}

}  // namespace
}  // namespace nanotron::test
