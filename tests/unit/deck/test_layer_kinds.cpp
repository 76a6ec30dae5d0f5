// ranks: 1
#include "nanotron/deck/layer_kinds.hpp"

#include <gtest/gtest.h>

namespace nanotron::deck {
namespace {

ModelConfig model(std::int64_t layers) {
  ModelConfig m;
  m.num_hidden_layers = layers;
  return m;
}

TEST(LayerKinds, OneWherePatternsSayNothing) {
  const LayerKinds kinds(model(5));
  ASSERT_EQ(kinds.all().size(), 1U);
  EXPECT_EQ(kinds[4], (LayerKind{.is_rotated = true}));
  EXPECT_EQ(kinds.count(0, 1, 4), 3);
}

// Gemma 3: five layers of six have a window and a base of their own.
TEST(LayerKinds, OfPatterns) {
  ModelConfig m = model(14);
  m.sliding_window = 8;
  m.window_layers = "5:1";
  m.rope_local_theta = 1e4;
  const LayerKinds kinds(m);
  ASSERT_EQ(kinds.all().size(), 2U);
  EXPECT_EQ(kinds[0], (LayerKind{.window = 8, .is_rotated = true, .has_local_theta = true}));
  EXPECT_EQ(kinds[5], (LayerKind{.is_rotated = true}));
  EXPECT_EQ(kinds.of(11), 1U);
  EXPECT_EQ(kinds.count(0, 0, 14), 12);
  EXPECT_EQ(kinds.count(1, 5, 12), 2);
  EXPECT_EQ(kinds.count(1, 6, 11), 0);
  EXPECT_EQ(kinds.first_layers(), (std::vector<std::int64_t>{0, 5}));
}

TEST(LayerKinds, ThatNothingSetsApartAreOne) {
  ModelConfig m = model(4);
  m.window_layers = "1:1";  // of no window
  m.rope_layers = "none";
  EXPECT_EQ(LayerKinds(m).all(), std::vector<LayerKind>{LayerKind{}});
  m.position_embedding_type = PositionEmbedding::learned_absolute;
  m.rope_layers = "0";
  EXPECT_EQ(LayerKinds(m).all().size(), 1U);
}

TEST(LayerKinds, OnlyLayersKeepsTheirs) {
  ModelConfig m = model(6);
  m.sliding_window = 8;
  m.window_layers = "2:1";
  m.rope_layers = "!1";
  const LayerKinds all(m);
  const std::vector<std::int64_t> chosen{4, 1, 2};
  const ModelConfig some = only_layers(m, chosen);
  ASSERT_EQ(some.num_hidden_layers, 3);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    EXPECT_EQ(LayerKinds(some)[static_cast<std::int64_t>(i)], all[chosen[i]]) << i;
  }
}

}  // namespace
}  // namespace nanotron::deck
