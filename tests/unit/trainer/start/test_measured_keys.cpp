// ranks: 2
// timeout: 120
// What a run measures before it begins: blocks as they are trained.

#include "nanotron/trainer/start/measured_keys.hpp"

#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/small_deck.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

std::string measured_cut(const test::Settings& set) {
  deck::Config config = read_deck_text(test::small_deck, "deck", set);
  resolve(config, 2);
  comm::ProcessGrid grid = make_grid(test::world(), config);
  choose_pipeline_cut(config, grid);
  return config.parallel.pp_layers;
}

// A head as expensive as three layers; with adapters of many ranks the layers are what costs.
TEST(MeasuredKeys, TheCutCountsAdapters) {
  test::Settings set{"model.num_hidden_layers=4", "model.vocab_size=8192",  "parallel.pp=2", "parallel.dp=1",
                     "parallel.pp_cut=time",      "data.micro_batch_size=4"};
  EXPECT_EQ(measured_cut(set), "3 1");
  set.insert(set.end(), {"lora.rank=4096", "lora.base=initial"});
  EXPECT_EQ(measured_cut(set), "2 2");
}

TEST(MeasuredKeys, EveryTypeIsMeasured) {
  for (const char* compute : {"fp64", "fp32", "bf16", "fp8"}) {
    SCOPED_TRACE(compute);
    const std::string cut = measured_cut({"parallel.pp=2", "parallel.dp=1", "parallel.pp_cut=time",
                                          "model.vocab_size=128", std::string("precision.compute=") + compute});
    EXPECT_EQ(cut, "1 1");
  }
  EXPECT_EQ(measured_cut({"parallel.pp=2", "parallel.dp=1", "parallel.pp_cut=time", "model.vocab_size=128",
                          "precision.reproducible=layout"}),
            "1 1");
}

}  // namespace
}  // namespace nanotron::trainer
