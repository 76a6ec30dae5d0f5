// Shards of all ranks cover the parameters once, whatever the stage, model and number of shards.
#include "nanotron/model/parameters/sharding.hpp"

#include <gtest/gtest.h>

namespace nanotron::model {
namespace {

deck::ModelConfig small(bool tied) {
  deck::ModelConfig m;
  m.hidden_size = 24;
  m.num_hidden_layers = 5;
  m.num_attention_heads = 6;
  m.num_key_value_heads = 2;
  m.head_dim = 4;
  m.intermediate_size = 50;
  m.vocab_size = 97;
  m.tie_word_embeddings = tied;
  m.qkv_bias = true;
  return m;
}

// Elements of the flat space, by how many ranks hold them.
std::vector<int> copies_of_elements(const ParameterTable& table, int size, const auto& place_of_rank) {
  std::vector<int> count(static_cast<std::size_t>(table.size), 0);
  for (int rank = 0; rank < size; ++rank) {
    const nn::BufferLayout place = place_of_rank(rank);
    for (const nn::BufferLayout::Part& part : place.parts()) {
      for (index_t i = part.range.begin; i < part.range.end; ++i) ++count[static_cast<std::size_t>(i)];
    }
  }
  return count;
}

class Sharded : public testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  Sharded() {
    for (int rank = 0; rank < size_; ++rank) groups_.push_back(comm::Group::planned(size_, rank));
  }
  Sharding of(int rank) {
    return {.stage = std::get<0>(GetParam()), .sections = {{.group = &groups_[static_cast<std::size_t>(rank)]}, {}}};
  }
  nn::ParameterLayouts layouts(int rank, ComputeWeights compute = ComputeWeights::master) {
    return parameter_layouts(table_, of(rank), compute);
  }

  int size_ = std::get<1>(GetParam());
  std::vector<comm::Group> groups_;
  ParameterTable table_ = make_parameter_table(small(std::get<2>(GetParam())), {.shards = size_});
};

TEST_P(Sharded, AnsweredPartsCoverOnce) {
  const auto count = copies_of_elements(table_, size_, [&](int rank) { return owned_layout(table_, of(rank)); });
  EXPECT_EQ(count, std::vector<int>(count.size(), 1));
}

TEST_P(Sharded, MomentsAndSumsAreOfTheShardAndThe1dParameters) {
  const index_t params_1d = table_.params_1d.size(), params_2d = table_.size - params_1d;
  for (int rank = 0; rank < size_; ++rank) {
    const nn::ParameterLayouts p = layouts(rank);
    EXPECT_EQ(p.moments.size(), params_1d + params_2d / size_);
    EXPECT_EQ(p.reduced.common(p.moments).parts(), p.reduced.parts());
    EXPECT_EQ(p.moments.at(table_.params_1d.begin), 0);
    for (const nn::BufferLayout::Part& part : p.moments.parts()) {
      EXPECT_EQ(p.master.common(nn::BufferLayout::packed({part.range})).size() > 0, true);
    }
  }
}

// On one rank the layers are in the sums, embedding and head in a slot behind them; with gradients that tensor-parallel
// ranks sum in place a layer is in a slot, too.
TEST(GradientsInSums, AreThoseOfLayers) {
  const ParameterTable table = make_parameter_table(small(false));
  const nn::ParameterLayouts p =
      parameter_layouts(table, {.gradients = UnitGradients::in_sums}, ComputeWeights::master);
  for (index_t u = 0; u < table.dense().units.size(); ++u) {
    const index_t begin = table.unit(u).range.begin;
    EXPECT_EQ(p.gradient.at(begin) == p.reduced.at(begin), table.is_layer(u)) << u;
  }
  const index_t ends =
      std::max(table.unit(table.embedding_unit()).range.size(), table.unit(table.head_unit()).range.size());
  EXPECT_EQ(p.gradient_end, table.size + ends);

  ParameterTable partial = make_parameter_table(small(false), {.tp_size = 2});
  const index_t layer = partial.layer_unit(1);
  for (nn::ParameterSpec& spec : partial.specs) spec.gradient_is_partial = false;
  const auto in_unit = [&](const nn::ParameterSpec& spec) {
    return !spec.is_1d && spec.local_layers() == 5 && partial.unit(layer).range.contains(spec.offset_of(1));
  };
  std::ranges::find_if(partial.specs, in_unit)->gradient_is_partial = true;
  const nn::ParameterLayouts slots =
      parameter_layouts(partial, {.gradients = UnitGradients::in_sums}, ComputeWeights::master);
  EXPECT_GE(slots.gradient.at(partial.unit(layer).range.begin), partial.size);
}

TEST_P(Sharded, MemoryIsThatOfTheTable) {
  const int stage = std::get<0>(GetParam());
  const index_t params_1d = table_.params_1d.size(), params_2d = table_.size - params_1d, shard = params_2d / size_;
  const auto size = [&](index_t unit) { return table_.units[static_cast<std::size_t>(unit)].range.size(); };
  const index_t slots =
      std::max(size(table_.embedding_unit()), size(table_.head_unit())) + 2 * size(table_.layer_unit(0));
  const nn::ParameterLayouts same = layouts(size_ - 1), narrow = layouts(size_ - 1, ComputeWeights::narrower);
  EXPECT_EQ(same.master.size(), stage < 3 ? table_.size : params_1d + shard);
  EXPECT_EQ(narrow.master.size(), params_1d + shard);
  EXPECT_EQ(narrow.compute.size(), stage < 3 ? table_.size : slots);
  EXPECT_EQ(same.gradient.size(), stage < 2 ? table_.size : params_1d + shard + slots);
}

TEST_P(Sharded, NeighboursNeverShareASlot) {
  for (index_t l = 0; l < table_.layers; ++l) {
    const std::size_t slot = slot_of(table_, table_.layer_unit(l));
    EXPECT_NE(slot, slot_of(table_, table_.embedding_unit()));
    EXPECT_NE(slot, slot_of(table_, table_.head_unit()));
    if (l > 0) {
      EXPECT_NE(slot, slot_of(table_, table_.layer_unit(l - 1)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Sharded,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(2, 3, 8), testing::Bool()));

// Six replicas over two ranks of experts: each dense element has six pieces, each expert's three, or one.
TEST(Sharding, ExpertsHaveShardsOfTheirOwn) {
  deck::ModelConfig m = small(false);
  m.moe = {
      .num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 10, .shared_expert_intermediate_size = 14};
  const ParameterTable whole = make_parameter_table(m);
  for (const int stage : {1, 2, 3}) {
    for (const int shards : {6, 2}) {
      index_t dense = 0, experts = 0;
      for (int replica = 0; replica < shards; ++replica) {
        const int same = shards / 2;
        const ParameterTable table = make_parameter_table(m, {.ep_size = 2, .ep_rank = replica % 2, .shards = shards});
        EXPECT_EQ(table.experts.size(), 2);
        EXPECT_EQ(table.units.size(), 2U + 2U * 5U);
        comm::Group all = comm::Group::planned(shards, replica), group = comm::Group::planned(same, replica / 2);
        const Sharding sharding{.stage = stage, .sections = {{.group = &all}, {.group = &group}}};
        const nn::BufferLayout mine = owned_layout(table, sharding);
        const nn::ParameterLayouts layouts = parameter_layouts(table, sharding, ComputeWeights::narrower);
        for (const Range& owned : owned_ranges(table)) {
          for (const nn::BufferLayout::Part& part : mine.within(owned)) {
            const bool is_expert = part.range.begin >= table.sections.back().flat.begin;
            (is_expert ? experts : dense) += part.range.size();
            EXPECT_EQ(layouts.reduced.within(part.range).size(), 1U);
            EXPECT_EQ(layouts.master.within(part.range).size(), 1U);
            EXPECT_EQ(layouts.moments.within(part.range).size(), 1U);
          }
        }
        for (index_t l = 0; l < table.layers; ++l) {
          const index_t unit = table.unit_of(table.layer_unit(l), table.sections.back());
          EXPECT_EQ(table.units[static_cast<std::size_t>(unit)].replicas, comm::ReplicaSet::expert_data_parallel);
          EXPECT_NE(slot_of(table, unit), slot_of(table, table.layer_unit(l)));
        }
      }
      const index_t all = m.num_hidden_layers * m.moe.num_experts * 3 * m.moe.moe_intermediate_size * m.hidden_size;
      EXPECT_EQ(experts, all) << stage << " " << shards;
      EXPECT_EQ(dense, whole.logical_parameters() - all) << stage << " " << shards;
    }
  }
}

TEST(Sharding, LayersOfCodesShareAPlace) {
  const ParameterTable table = make_parameter_table(small(false));
  const nn::ParameterLayouts p = parameter_layouts(table, {}, ComputeWeights::codes);
  index_t apart = 0, layer = 0;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    const Range& range = table.units[u].range;
    if (table.is_layer(static_cast<index_t>(u))) {
      layer = std::max(layer, range.size());
      EXPECT_EQ(p.compute.at(range.begin),
                p.compute.at(table.units[static_cast<std::size_t>(table.layer_unit(0))].range.begin));
    } else {
      apart += range.size();
    }
  }
  EXPECT_GT(apart, 0);
  EXPECT_EQ(p.compute.size(), apart + layer);
  EXPECT_EQ(p.master, nn::BufferLayout::whole(table.size));
}

TEST(Sharding, OfOneRankIsWhole) {
  const ParameterTable table = make_parameter_table(small(false));
  const nn::ParameterLayouts p = parameter_layouts(table, {}, ComputeWeights::narrower);
  for (const nn::BufferLayout* place : {&p.master, &p.compute, &p.gradient, &p.reduced, &p.moments}) {
    EXPECT_EQ(*place, nn::BufferLayout::whole(table.size));
  }
}

}  // namespace
}  // namespace nanotron::model
