#include "nanotron/deck/config.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "nanotron/base/random.hpp"

namespace nanotron::parallel {
namespace {

double largest_stage_cost(const std::vector<Range>& cut, const model::BlockCosts& c, index_t layers) {
  double most = 0.0;
  for (const Range& r : cut) {
    most = std::max(
        most, c.layers.sum(r.begin, r.end) + (r.begin == 0 ? c.embedding : 0.0) + (r.end == layers ? c.head : 0.0));
  }
  return most;
}

// By trying every cut.
double best_of_all(const model::BlockCosts& c, index_t layers, int stages) {
  double best = 1e300;
  std::vector<Range> cut;
  const std::function<void(index_t)> extend = [&](index_t begin) {
    const int left = stages - static_cast<int>(cut.size());
    if (left == 1) {
      cut.push_back({begin, layers});
      best = std::min(best, largest_stage_cost(cut, c, layers));
      cut.pop_back();
      return;
    }
    for (index_t end = begin + 1; end <= layers - (left - 1); ++end) {
      cut.push_back({begin, end});
      extend(end);
      cut.pop_back();
    }
  };
  extend(0);
  return best;
}

TEST(PipelinePartition, NoCutHasACheaperDearestStage) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto draw = [&](std::uint64_t salt) { return uniform(11, stream_id("cut"), 10 * i + salt); };
    const model::BlockCosts costs{.embedding = 4 * draw(0), .layers = 0.1 + draw(1), .head = 8 * draw(2)};
    const auto layers = static_cast<index_t>(1 + 12 * draw(3));
    const int stages = 1 + static_cast<int>(draw(4) * 0.999 * static_cast<double>(std::min<index_t>(layers, 5)));
    const std::vector<Range> cut = cut_layers(costs, layers, stages);
    ASSERT_EQ(cut.size(), static_cast<std::size_t>(stages));
    index_t end = 0;
    for (const Range& r : cut) {
      EXPECT_EQ(r.begin, end);
      EXPECT_GT(r.size(), 0);
      end = r.end;
    }
    EXPECT_EQ(end, layers);
    EXPECT_DOUBLE_EQ(largest_stage_cost(cut, costs, layers), best_of_all(costs, layers, stages))
        << layers << " in " << stages;
  }
}

TEST(PipelinePartition, LargeModelsAreCutAtOnce) {
  const std::vector<Range> cut = cut_layers({.embedding = 0, .layers = 1.0, .head = 3}, 10000, 1000);
  EXPECT_LE(largest_stage_cost(cut, {.embedding = 0, .layers = 1.0, .head = 3}, 10000), 11.0);
}

TEST(PipelinePartition, TheHeadMakesTheLastStageShorter) {
  const std::vector<Range> cut = cut_layers({.embedding = 0, .layers = 1.0, .head = 2}, 14, 4);
  EXPECT_EQ(cut.back().size(), 2);
  EXPECT_EQ(cut.front().size(), 4);
}

// Layers with a window are cheaper: a stage has more of them.
TEST(PipelinePartition, LayersThatDifferHaveTheirOwnCosts) {
  deck::Config config;
  config.model.num_hidden_layers = 12;
  config.model.vocab_size = 8;
  config.model.num_key_value_heads = config.model.num_attention_heads;
  config.model.head_dim = 64;
  config.data.sequence_length = 32768;
  config.parallel.pp = 2;
  EXPECT_EQ(stage_layers(config), (std::vector<Range>{{0, 6}, {6, 12}}));
  config.model.sliding_window = 128;
  config.model.window_layers = "0-5";
  const std::vector<Range> cut = stage_layers(config);
  EXPECT_GT(cut.front().size(), 7);
  const model::BlockCosts costs = model::block_flops(config.model, config.data.sequence_length);
  EXPECT_DOUBLE_EQ(largest_stage_cost(cut, costs, 12), best_of_all(costs, 12, 2));
}

TEST(PipelinePartition, TheDeckMayGiveTheCut) {
  deck::Config config;
  config.model.num_hidden_layers = 8;
  config.parallel.pp = 3;
  config.parallel.pp_layers = "2, 5 1";
  EXPECT_EQ(stage_layers(config), (std::vector<Range>{{0, 2}, {2, 7}, {7, 8}}));
}

}  // namespace
}  // namespace nanotron::parallel
