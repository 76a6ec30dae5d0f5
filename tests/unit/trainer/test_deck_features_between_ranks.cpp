// ranks: 1
// What features ask of a deck: each one's checks, all of them in one run, and grids that all of them allow.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

TEST(DeckFeaturesBetweenRanks, CompressionInBf16HasEveryStageAndOthersNeedTheWholeGradient) {
  const std::string bf16 = "parallel.compression='bf16'", layout = "precision.reproducible='layout'";
  for (const char* const stage : {"0", "1", "2", "3"}) {
    EXPECT_EQ(decks.message(small_deck, {bf16, std::string("parallel.zero_stage=") + stage}), "");
    EXPECT_EQ(decks.message(small_deck, {bf16, layout, std::string("parallel.zero_stage=") + stage}), "");
  }
  EXPECT_EQ(decks.message(small_deck, {bf16, layout, "parallel.cp=2", "precision.context_shards=2"}), "");
  EXPECT_EQ(decks.message(small_deck, {bf16, "parallel.cp=2"}), "");
  EXPECT_EQ(decks.message(small_deck, {"parallel.compression='fp16'"}), "");
  decks.expect_refused({"parallel.compression='fp16'", "parallel.zero_stage=2"}, "compression = 'bf16' or 'none'");
  decks.expect_refused({"parallel.compression='fp16'", layout}, "compression = 'bf16' or 'none'");
  decks.expect_refused({"parallel.compression='fp8'"}, "'bf16'");
  decks.expect_refused({"parallel.compression='powersgd'", "parallel.zero_stage=3"},
                       "by PowerSGD is for the gradient all-reduce, which zero_stage = 3 does not have");
  decks.expect_refused({"parallel.compression='powersgd'", "parallel.powersgd_rank=0"}, "powersgd_rank");
  EXPECT_EQ(decks.message(small_deck, {"parallel.bucket_mb=0"}), "");
  decks.expect_refused({"parallel.bucket_mb=-1"}, "bucket_mb");
}

TEST(DeckFeaturesBetweenRanks, ContextParallelGroupsNeedTokensAndHeads) {
  EXPECT_EQ(decks.message(small_deck, {"parallel.cp=32"}), "");
  decks.expect_refused({"parallel.cp=33"}, "cp <= 32");
  const std::string mode = "parallel.cp_mode=all_to_all";
  EXPECT_EQ(decks.message(small_deck, {"parallel.cp=8", mode}), "");
  decks.expect_refused({"parallel.cp=9", mode}, "cp <= 8, or cp_mode = 'ring'");
  EXPECT_EQ(decks.message(small_deck, {"parallel.cp=4", "parallel.tp=2", mode}), "");
  decks.expect_refused({"parallel.cp=3", "parallel.tp=3", mode}, "cp <= 2");
  decks.expect_refused({"parallel.cp=2", "parallel.tp=5", mode}, "expected cp = 1, or cp_mode = 'ring'");
  decks.expect_refused({"parallel.cp=3", "parallel.tp=3", "model.num_key_value_heads=4", mode}, "a rank has 2");
  decks.expect_refused({"parallel.cp=4", "parallel.tp=5", mode}, "a rank has 1");
  const std::string pairs = "parallel.cp_all_to_all=2";
  EXPECT_EQ(decks.message(small_deck, {"parallel.cp=8", pairs}), "");
  EXPECT_EQ(decks.message(small_deck, {pairs}), "");
  EXPECT_EQ(decks.message(small_deck, {"parallel.cp=16", "parallel.cp_all_to_all=8"}), "");
  decks.expect_refused({"parallel.cp=4", pairs, mode}, "cp_mode = 'all_to_all' has none");
  decks.expect_refused({"parallel.cp=5", pairs}, "cp = 5 is not a multiple of cp_all_to_all = 2");
  decks.expect_refused({"parallel.cp=18", "parallel.cp_all_to_all=9"}, "cp_all_to_all <= 8");
  decks.expect_refused({"parallel.cp=32", pairs}, "leaves a rank without one");
  EXPECT_EQ(decks.read("&parallel cp = 4, cp_mode = 'all_to_all' /\n").parallel.cp_mode, deck::CpMode::all_to_all);
}

TEST(DeckFeaturesBetweenRanks, AdasumNeedsWholeGradientsOfDifferentSamples) {
  const std::string adasum = "parallel.gradient_sum='adasum'";
  EXPECT_EQ(decks.message(small_deck, {adasum}), "");
  EXPECT_EQ(decks.message(small_deck, {adasum, "parallel.tp=2", "model.tie_word_embeddings=true"}), "");
  decks.expect_refused({adasum, "parallel.cp=2"}, "ranks hold parts of the same");
  decks.expect_refused({adasum, "parallel.zero_stage=1"}, "the whole gradient of every data-parallel rank");
  decks.expect_refused({adasum, "parallel.compression='bf16'"}, "compression = 'none'");
  decks.expect_refused({adasum, "parallel.pp=2", "model.tie_word_embeddings=true"}, "both ends of the pipeline");
  EXPECT_EQ(decks.message(small_deck, {adasum, "parallel.pp=2"}), "");
  decks.expect_refused({"parallel.gradient_sum='mean'"}, "'sum' | 'adasum'");
  const std::string line = decks.message(small_deck + "&parallel cp = 2,\n  gradient_sum = 'adasum' /\n");
  EXPECT_NE(line.find("t.deck:5:"), std::string::npos) << line;
  EXPECT_NE(decks.message(small_deck + "&parallel dp = 1, cp = 0, gradient_sum = 'adasum' /\n", {}, 2), "")
      << "once cp is known";
}

TEST(DeckFeaturesBetweenRanks, CopyEnginesMoveSymmetricMemory) {
  const std::string copies = "parallel.collective_engine=copies";
  decks.expect_refused({copies, "parallel.register_memory=local"}, "copy engines need symmetric memory");
  EXPECT_EQ(decks.message(small_deck, {copies, "parallel.register_memory=symmetric"}), "");
}

TEST(DeckFeaturesBetweenRanks, CopiesOnOtherHosts) {
  const std::string every = "checkpoint.neighbour_every_steps=5", folder = "checkpoint.neighbour_directory=";
  EXPECT_EQ(decks.message(small_deck, {every, folder + "/dev/shm"}), "");
  EXPECT_EQ(decks.message(small_deck, {folder + "relative"}), "");  // no copies: of no matter
  decks.expect_refused({every}, "needs a neighbour_directory");
  decks.expect_refused({every, folder + "memory"}, "not an absolute path");
  const std::string run = "run.output_dir=/scratch/run/";
  decks.expect_refused({every, run, folder + "/scratch/run/memory"}, "which all hosts share");
  decks.expect_refused({every, run, folder + "/scratch/./run"}, "which all hosts share");
  decks.expect_refused({every, "checkpoint.directory=/scratch/c", folder + "/scratch/c/%h"}, "which all hosts share");
  EXPECT_EQ(decks.message(small_deck, {every, run, folder + "/scratch/runs"}), "");
}

}  // namespace
}  // namespace nanotron::trainer
