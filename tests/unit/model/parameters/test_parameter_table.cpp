#include "nanotron/model/parameters/parameter_table.hpp"

#include <gtest/gtest.h>

#include <map>

namespace nanotron::model {
namespace {

deck::ModelConfig small(bool tied, bool bias, bool norm) {
  deck::ModelConfig m;
  m.hidden_size = 24;
  m.num_hidden_layers = 3;
  m.num_attention_heads = 6;
  m.num_key_value_heads = 2;
  m.head_dim = 4;
  m.intermediate_size = 50;
  m.vocab_size = 97;
  m.tie_word_embeddings = tied;
  m.qkv_bias = bias;
  m.qk_norm = norm;
  return m;
}

// Five layers, of which 1, 3 and 4 have experts, on two stages of two expert-parallel ranks.
TEST(TableOfTwoKinds, LayersHaveTheirPartsOnly) {
  deck::ModelConfig m = small(false, false, false);
  m.num_hidden_layers = 5;
  m.moe = {.num_experts = 4, .moe_intermediate_size = 7, .n_shared_experts = 2, .expert_layers = "1 3-4"};
  index_t owned = 0;
  for (const Range& stage : {Range{0, 3}, Range{3, 5}}) {
    for (const int ep : {0, 1}) {
      const ParameterTable table =
          make_parameter_table(m, {.layers = {stage}, .ep_size = 2, .ep_rank = ep, .shards = 4});
      const nn::ParameterSpec &dense = table["model/layers/mlp/up_proj/weight"],
                              &router = table["model/layers/mlp/gate/weight"],
                              &expert = table["model/layers/mlp/experts/2/up_proj/weight"];
      EXPECT_EQ(dense.layers, 2);
      EXPECT_EQ(router.layers, 3);
      EXPECT_EQ(router.stack_layers, (std::vector<index_t>{1, 3, 4}));
      using Numbers = std::vector<index_t>;
      EXPECT_EQ(dense.layer_numbers, stage.begin == 0 ? Numbers({0, 2}) : Numbers{});
      EXPECT_EQ(router.layer_numbers, stage.begin == 0 ? Numbers{1} : Numbers({3, 4}));
      EXPECT_EQ(expert.local_layers(), ep == 0 ? 0 : stage.begin == 0 ? 1 : 2);
      EXPECT_EQ(router.stack_row(0), stage.begin == 0 ? 0 : 1);
      const Section& experts = table.sections.back();
      EXPECT_EQ(experts.units.size(), stage.begin == 0 ? 1 : 2);
      for (index_t l = 0; l < table.layers; ++l) {
        const index_t unit = table.unit_of(table.layer_unit(l), experts);
        EXPECT_EQ(unit != no_unit, l != 0 && l != 2 ? true : stage.begin > 0) << l;
        EXPECT_EQ(table.unit(table.layer_unit(l)).range.size() % (4 * 64), 0);
      }
      for (const Range& r : owned_ranges(table)) {
        const index_t begin = ep == 0 ? r.begin : std::max(r.begin, experts.flat.begin);  // the rest is of all ranks
        owned += std::max<index_t>(0, r.end - begin);
      }
    }
  }
  EXPECT_EQ(owned, make_parameter_table(m).logical_parameters());
}

// All layers of one kind are where they were before there were two.
TEST(TableOfTwoKinds, OfOneKindIsEvenlySpaced) {
  deck::ModelConfig m = small(false, false, false);
  m.moe = {.num_experts = 4, .moe_intermediate_size = 7, .n_shared_experts = 1};
  for (const nn::ParameterSpec& s : make_parameter_table(m).specs) {
    EXPECT_TRUE(s.stack_layers.empty());
    if (!s.is_stacked) continue;
    EXPECT_EQ(s.offset_of(2) - s.offset_of(1), s.offset_of(1) - s.offset_of(0)) << s.name;
  }
}

class Table : public testing::TestWithParam<std::tuple<bool, bool, bool>> {
 protected:
  deck::ModelConfig model_ = small(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()));
};

TEST_P(Table, OwnedPartsCoverTheModelOnce) {
  const index_t logical = make_parameter_table(model_).logical_parameters();
  for (int tp = 1; tp <= 6; ++tp) {
    index_t owned = 0;
    for (int rank = 0; rank < tp; ++rank) {
      const ParameterTable table = make_parameter_table(model_, {.tp_size = tp, .tp_rank = rank});
      EXPECT_EQ(table.logical_parameters(), logical);
      for (const Range& r : owned_ranges(table)) {
        EXPECT_GE(r.begin, 0);
        EXPECT_LE(r.end, table.size);
        owned += r.end - r.begin;
      }
    }
    EXPECT_EQ(owned, logical) << "tp " << tp;
  }
}

TEST_P(Table, LocalTensorsDoNotOverlapAndUpdateRangesAgree) {
  for (int tp : {1, 3, 4}) {
    const ParameterTable table = make_parameter_table(model_, {.tp_size = tp, .tp_rank = tp - 1});
    std::map<index_t, std::pair<index_t, bool>> pieces;  // begin -> end, decays
    for (const nn::ParameterSpec& s : table.specs) {
      for (index_t layer = 0; layer < s.layers; ++layer) {
        if (s.local_size() > 0) pieces[s.offset_of(layer)] = {s.offset_of(layer) + s.local_size(), s.decays};
      }
    }
    index_t last = 0;
    for (const auto& [begin, piece] : pieces) {
      EXPECT_GE(begin, last);
      last = piece.first;
    }
    EXPECT_LE(last, table.size);
    index_t at = 0;
    for (const UpdateRange& r : update_ranges(table)) {
      EXPECT_EQ(r.range.begin, at);
      at = r.range.end;
      for (const auto& [begin, piece] : pieces) {
        if (begin >= r.range.begin && begin < r.range.end) {
          EXPECT_LE(piece.first, r.range.end);
          EXPECT_EQ(piece.second, r.decays);
        }
      }
    }
    EXPECT_EQ(at, table.size);
  }
}

TEST_P(Table, FusedProjectionsLieOneBehindTheOther) {
  const ParameterTable table = make_parameter_table(model_, {.tp_size = 4, .tp_rank = 1});
  const std::string a = "model/layers/self_attn/";
  const auto follows = [&](const std::string& first, const std::string& second) {
    EXPECT_EQ(table[first].offset + table[first].local_size(), table[second].offset) << second;
  };
  follows(a + "q_proj/weight", a + "k_proj/weight");
  follows(a + "k_proj/weight", a + "v_proj/weight");
  follows("model/layers/mlp/gate_proj/weight", "model/layers/mlp/up_proj/weight");
  if (model_.qkv_bias) {
    follows(a + "q_proj/bias", a + "k_proj/bias");
    follows(a + "k_proj/bias", a + "v_proj/bias");
  }
}

TEST_P(Table, InitialWeightsDoNotDependOnTheGrid) {
  const ParameterTable whole = make_parameter_table(model_);
  Kokkos::View<double*, MemorySpace> reference("reference", whole.size);
  initialise<double>(whole, 42, Vector<double>(reference.data(), whole.size), nn::BufferLayout::whole(whole.size));
  const auto expected = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), reference);
  for (int rank = 0; rank < 3; ++rank) {
    const ParameterTable part = make_parameter_table(model_, {.tp_size = 3, .tp_rank = rank});
    Kokkos::View<double*, MemorySpace> shard("shard", part.size);
    initialise<double>(part, 42, Vector<double>(shard.data(), part.size), nn::BufferLayout::whole(part.size));
    const auto actual = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), shard);
    for (const nn::ParameterSpec& s : part.specs) {
      const nn::ParameterSpec& w = whole[s.name];
      const bool by_columns = s.partition == nn::Partition::row_parallel;
      for (index_t l = 0; l < s.layers; ++l) {
        for (index_t r = 0; r < s.local_rows(); ++r) {
          for (index_t c = 0; c < s.local_columns(); ++c) {
            const index_t row = r + (by_columns ? 0 : s.local.begin);
            const index_t column = c + (by_columns ? s.local.begin : 0);
            ASSERT_EQ(actual(s.offset_of(l) + r * s.local_columns() + c),
                      expected(w.offset_of(l) + row * w.columns + column))
                << s.name;
          }
        }
      }
    }
  }
}

TEST(Initialise, HasTheDeviationItWasAskedFor) {
  deck::ModelConfig m = small(false, false, false);
  m.hidden_size = 256;
  m.vocab_size = 1000;
  const ParameterTable table = make_parameter_table(m);
  Kokkos::View<float*, MemorySpace> memory("memory", table.size);
  initialise<float>(table, 1, Vector<float>(memory.data(), table.size), nn::BufferLayout::whole(table.size));
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), memory);
  const nn::ParameterSpec& s = table["model/embed_tokens/weight"];
  double sum = 0.0, squares = 0.0;
  for (index_t i = 0; i < s.local_size(); ++i) {
    sum += host(s.offset + i);
    squares += static_cast<double>(host(s.offset + i)) * host(s.offset + i);
  }
  const auto n = static_cast<double>(s.local_size());
  EXPECT_NEAR(sum / n, 0.0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
}

INSTANTIATE_TEST_SUITE_P(Models, Table, testing::Combine(testing::Bool(), testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace nanotron::model
