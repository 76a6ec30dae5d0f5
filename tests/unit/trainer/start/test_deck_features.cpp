// ranks: 1
// What features ask of a deck: each one's checks, all of them in one run, and grids that all of them allow.
#include <gtest/gtest.h>

#include <filesystem>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"
#include "support/test_folder.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

TEST(DeckFeatures, AreListedOnceAndCheck) {
  for (std::size_t i = 0; i < deck_features().size(); ++i) {
    EXPECT_NE(deck_features()[i].check, nullptr) << i;
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_NE(deck_features()[i].check, deck_features()[j].check) << i << " and " << j;
  }
}

TEST(DeckFeatures, AllowTheDefaults) {
  const deck::Config c = read_deck_text(deck::default_deck(), "defaults");
  for (const deck::Parameter& p : deck::parameters()) EXPECT_EQ(p.get(c), p.get(deck::Config{})) << p.name;
}

TEST(DeckFeatures, MomentsInBf16) {
  const std::string moments = "precision.moments=bf16";
  EXPECT_EQ(decks.message(small_deck, {moments, "precision.compute=fp32"}), "");
  EXPECT_EQ(decks.message(small_deck, {moments, "precision.compute=bf16", "precision.reproducible=layout"}), "");
  decks.expect_refused({moments, "precision.compute=fp64"}, "compute = 'fp32', 'bf16' or 'fp8', or moments = 'master'");
  decks.expect_refused({moments, "precision.compute=bf16", "optimizer.name=muon"}, "optimizer%name is 'muon'");
}

TEST(DeckFeatures, KeysOfOneOptimizer) {
  EXPECT_EQ(decks.message(small_deck, {"optimizer.name=ademamix", "optimizer.beta3=0.99", "optimizer.alpha=2"}), "");
  decks.expect_refused({"optimizer.alpha=2"}, "alpha belongs to name = 'ademamix'");
  decks.expect_refused({"optimizer.name=lion", "optimizer.beta3_warmup_steps=9"}, "optimizer%name = 'ademamix'");
  EXPECT_EQ(decks.message(small_deck, {"optimizer.name=sophia", "optimizer.rho=0.02", "optimizer.hessian_every=5"}),
            "");
  decks.expect_refused({"optimizer.rho=0.02"}, "rho belongs to name = 'sophia'");
  decks.expect_refused({"optimizer.name=sophia", "optimizer.eps=1e-6"}, "name = 'sophia'");
  decks.expect_refused({"optimizer.name=sophia", "model.num_nextn_predict_layers=1"},
                       "curvature of the loss of the next token");
  decks.expect_refused({"optimizer.name=sophia", "parallel.compression=powersgd"}, "has to be a whole one");
  const std::string soap = "optimizer.name=soap", every = "optimizer.precondition_every=2",
                    size = "optimizer.max_precondition_size=64";
  EXPECT_EQ(decks.message(small_deck, {soap, every, size}), "");
  EXPECT_EQ(decks.message(small_deck, {soap, "precision.compute=bf16", "precision.moments=bf16"}), "");
  decks.expect_refused({soap, "optimizer.state_memory=host"}, "states of 'soap' are operands of GEMMs");
  EXPECT_EQ(decks.message(small_deck, {"optimizer.name=muon", "optimizer.state_memory=host"}), "");
  decks.expect_refused({every}, "precondition_every belongs to name = 'soap'");
  decks.expect_refused({size}, "max_precondition_size belongs to name = 'soap'");
  decks.expect_refused({soap, "model.num_nextn_predict_layers=1"}, "SOAP needs layers with the same matrices");
  decks.expect_refused({"optimizer.name=schedule_free_adamw", "precision.compute=bf16", "precision.moments=bf16"},
                       "moments = 'bf16'");
  const std::string momentum = "optimizer.momentum=0.9", steps = "optimizer.newton_schulz_steps=6";
  EXPECT_EQ(decks.message(small_deck, {"optimizer.name=muon", momentum, steps}), "");
  decks.expect_refused({momentum}, "momentum belongs to name = 'muon'");
  decks.expect_refused({"optimizer.name=lion", steps}, "newton_schulz_steps belongs to name = 'muon'");
  decks.expect_refused({"optimizer.name=lion", "optimizer.eps=1e-6"}, "eps belongs to optimizers with a second moment");
}

TEST(DeckFeatures, Architecture) {
  const std::string learned = "model.position_embedding_type=learned_absolute",
                    many = "model.max_position_embeddings=32";
  decks.expect_refused({learned}, "at least sequence_length");
  decks.expect_refused({learned, "model.max_position_embeddings=31"}, "at least sequence_length");
  decks.expect_refused({learned, many, "model.rope_theta=5e5"}, "rope_theta belongs to the rotary embedding");
  decks.expect_refused({learned, many, "model.rope_type=llama3"}, "rope_type belongs to the rotary embedding");
  decks.expect_refused({learned, many, "model.rope_beta_fast=3"}, "rope_beta_fast belongs to the rotary embedding");
  decks.expect_refused({many}, "max_position_embeddings belongs to learned positions");
  EXPECT_EQ(decks.message(small_deck, {learned, many, "model.head_dim=7"}), "");

  decks.expect_refused({"model.layer_norm_epsilon=1e-6"}, "layer_norm_epsilon belongs to LayerNorm");
  decks.expect_refused({"model.normalization=layer_norm", "model.rms_norm_eps=1e-6"},
                       "rms_norm_eps belongs to RMSNorm");
  decks.expect_refused({"model.hidden_act=gelu", "moe.num_experts=4"}, "hidden_act = 'silu'");
  decks.expect_refused({"model.sliding_window=-1"}, "0 <= x");
  decks.expect_refused({"model.qk_norm_over=projection"}, "qk_norm_over belongs to a norm of queries and keys");
  EXPECT_EQ(decks.message(small_deck, {"model.qk_norm_over=projection", "model.qk_norm=t"}), "");

  const deck::Config c = decks.read("", {learned, many, "model.normalization=layer_norm", "model.hidden_act=gelu_new"});
  EXPECT_EQ(c.model.norm_eps(), 1e-5);
  EXPECT_FALSE(c.model.is_gated());
}

TEST(DeckFeatures, Experts) {
  const std::string experts = "moe.num_experts=6";
  decks.expect_refused({"parallel.ep=2"}, "the model has no experts");
  decks.expect_refused({"parallel.ep=4", experts}, "ep a divisor of 6");
  decks.expect_refused({"parallel.ep=2", experts}, "a divisor of 3", 3);
  decks.expect_refused({"moe.num_experts_per_tok=7", experts}, "at most 6");
  decks.expect_refused({"moe.moe_intermediate_size=3", "parallel.tp=4", experts}, "tp <= 3");
  decks.expect_refused({"moe.shared_expert_intermediate_size=3", "parallel.tp=4", experts}, "tp <= 3");
  decks.expect_refused({"parallel.ep=2", "parallel.zero_stage=1", "parallel.zero_size=3", experts},
                       "a multiple or a divisor of ep", 6);
  decks.expect_refused({"moe.capacity_factor=2"}, "the model is dense");
  decks.expect_refused({"moe.router_aux_loss_scale=hugging_face"}, "the model is dense");
  decks.expect_refused({"moe.router_aux_loss_scale=huggingface", experts}, "'per_layer' | 'hugging_face'");
  decks.expect_refused({"moe.receive_factor=2", experts}, "or ep > 1");
  decks.expect_refused({"moe.receive_factor=0.5", "parallel.dp=2", "parallel.ep=2", experts}, "more than 1, or 0", 2);
  const std::string quantile = "moe.receive_quantile=0.999", two = "parallel.ep=2";
  EXPECT_EQ(decks.message(small_deck, {quantile, "parallel.dp=2", two, experts}, 2), "");
  decks.expect_refused({quantile, experts}, "or ep > 1");
  decks.expect_refused({quantile, "moe.receive_factor=2", "parallel.dp=2", two, experts}, "one of them", 2);
  decks.expect_refused({"moe.receive_quantile=0.5", "parallel.dp=2", two, experts}, "at least 0.9", 2);
  decks.expect_refused({"parallel.gradient_sum=adasum", "parallel.dp=2", "parallel.ep=2", experts},
                       "or gradient_sum = 'sum'", 2);

  const std::string grouped = "run.expert_gemms=grouped", bf16 = "precision.compute=bf16";
  decks.expect_refused({grouped, bf16}, "the model has no experts");
  decks.expect_refused({grouped, experts}, "compute = 'bf16' or 'fp8'");
  decks.expect_refused({grouped, bf16, experts, "model.hidden_size=76", "model.head_dim=6"}, "of 8: 72 or 80");
  decks.expect_refused({grouped, bf16, experts, "moe.moe_intermediate_size=28"}, "24 or 32");
  decks.expect_refused({grouped, bf16, experts, "moe.moe_intermediate_size=88", "parallel.tp=2"}, "44 columns", 2);
  deck::Config in_order = decks.read("", {grouped, bf16, experts, "precision.reproducible=layout"});
  decks.resolve(in_order, 1);
  EXPECT_EQ(in_order.run.expert_gemms, deck::ExpertGemms::library);
  EXPECT_EQ(decks.message(small_deck, {grouped, bf16, experts, "parallel.tp=4"}, 4), "");

  deck::Config c = decks.read("", {experts, "parallel.ep=3", "parallel.zero_stage=1"});
  resolve(c, 6);
  EXPECT_EQ(c.model.moe.moe_intermediate_size, 96);
  EXPECT_EQ(deck::grid_size(c.parallel), 6);
  EXPECT_EQ(deck::shard_group_size(c.parallel), 6);
  EXPECT_EQ(comm::shape_of(c).expert_shards(), 2);
  c.parallel.zero_size = 3;
  EXPECT_EQ(comm::shape_of(c).expert_shards(), 1);
}

TEST(DeckFeatures, FoldersHaveNamesThatFileSystemsTake) {
  const std::string long_name(300, 'x'), long_path = "/" + std::string(200, 'a') + "/";
  std::string deep;
  while (deep.size() < 5000) deep += long_path;
  for (const char* key : {"run.output_dir=", "checkpoint.directory="}) {
    EXPECT_EQ(decks.message(small_deck, {key + std::string(250, 'x')}), "") << key;
    decks.expect_refused({key + ("a/" + long_name + "/b")}, "a folder's name of 300 characters");
    decks.expect_refused({key + deep}, "a path of");
  }
}

TEST(DeckFeatures, WhoWantsAFewStepsIsTold) {
  const std::string deck = small_deck + "&schedule warmup_steps = 30, kind = 'wsd', decay_steps = 40 /\n";
  EXPECT_NE(decks.message(deck, {"run.steps=2"}).find("--set run.stop_after_steps=2"), std::string::npos);
  EXPECT_NE(decks.message(deck, {"run.steps=60"}).find("--set run.stop_after_steps=60"), std::string::npos);
  EXPECT_EQ(decks.message(deck, {"run.stop_after_steps=2"}), "");
  decks.expect_refused({"run.stop_after_steps=-1"}, "0 <= x");
}

TEST(DeckFeatures, ShippedDecksAreLegal) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::test_folder() / "../input")) {
    if (entry.path().extension() != ".deck") continue;
    ++decks;
    std::string warnings;
    EXPECT_NO_THROW(read_deck(entry.path().string(), {}, &warnings)) << entry.path();
    EXPECT_EQ(warnings, "");
  }
  EXPECT_GE(decks, 3);
}

TEST(DeckFeatures, ResolveFillsWhatFollows) {
  deck::Config c = decks.read();
  resolve(c, 4);
  EXPECT_EQ(c.parallel.dp, 4);
  EXPECT_EQ(c.model.num_key_value_heads, 8);
  EXPECT_EQ(c.model.head_dim, 8);
  EXPECT_EQ(deck::checkpoint_directory(c), "run/checkpoints");
  EXPECT_EQ(deck::grid_size(c.parallel), 4);
  deck::Config d = decks.read("&parallel dp = 2, tp = 0 /");
  resolve(d, 8);
  EXPECT_EQ(d.parallel.tp, 4);
  resolve(d, 8);
  EXPECT_EQ(d.parallel.tp, 4);
}

TEST(DeckFeatures, RefuseWhatDoesNotGoTogether) {
  decks.expect_refused({"model.parametrization=mup"}, "base_hidden_size is 0");
  decks.expect_refused({"model.base_hidden_size=32"}, "no effect with parametrization = 'standard'");
  decks.expect_refused({"model.parametrization=mup", "model.base_hidden_size=32", "model.tie_word_embeddings=t"},
                       "if tied, they are one tensor");
  decks.expect_refused({"model.num_attention_heads=6"}, "60 or 66");
  decks.expect_refused({"model.num_attention_heads=64"}, "head_dim = 1 is odd");
  decks.expect_refused({"model.head_dim=7"}, "head_dim = 7 is odd");
  decks.expect_refused({"model.num_key_value_heads=3"}, "a divisor of 8: 2 or 4");
  decks.expect_refused({"model.num_key_value_heads=16"}, "= expected 8, or another divisor of it");
  decks.expect_refused({"parallel.tp=9"}, "tp <= 8");
  decks.expect_refused({"parallel.tp=0"}, "dp and tp are 0");
  decks.expect_refused({"parallel.order=tp-cp-pp-tp"}, "is not an order of the grid's axes");
  decks.expect_refused({"parallel.dp=5"}, "20 or 25");
  decks.expect_refused({"data.micro_batch_size=5"}, "20 or 25");
  decks.expect_refused({"schedule.warmup_steps=101"}, "at most 100");
  decks.expect_refused({"data.validation_every=5"}, "there is no validation data");
  decks.expect_refused({"data.validation_fraction=.1", "data.validation_path=x"}, "exclude each other");
  decks.expect_refused({"data.validation_path=code=a.h5 b.h5"}, "'b.h5' is not name=path");
  decks.expect_refused({"data.validation_path=code=a.h5 code=b.h5"}, "'code' is given twice");
  decks.expect_refused({"data.validation_path=code= wiki=b.h5"}, "'code' has no path");
  decks.expect_refused({"data.path=a=a.h5 b=b.h5", "data.weights=a=1"}, "no weight for 'b'");
  decks.expect_refused({"data.path=a=a.h5 b.h5", "data.weights=a=1"}, "'b.h5' is not name=path");
  decks.expect_refused({"data.stages=5: a=1"}, "has no name");
  EXPECT_EQ(decks.message(small_deck, {"data.path=a=a.h5 b=b.h5", "data.weights=a=1 b=0", "data.stages=9: b=1"}), "");
  const std::vector<std::string> ramp{"data.rampup_batch_size=8", "data.rampup_increment=4", "data.rampup_samples=100"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = ramp;
    all.insert(all.end(), more);
    return all;
  };
  EXPECT_EQ(decks.message(small_deck, ramp), "");
  decks.expect_refused(with({"data.rampup_increment=5"}), "does not divide global_batch_size - rampup_batch_size = 16");
  decks.expect_refused(with({"data.rampup_batch_size=24"}), "is not below global_batch_size = 24");
  decks.expect_refused(with({"data.rampup_samples=0"}), "rampup_samples is 0");
  decks.expect_refused(with({"data.rampup_batch_size=0"}), "there is no ramp");
  decks.expect_refused(with({"data.micro_batch_size=4", "data.rampup_batch_size=10", "data.rampup_increment=2"}),
                       "rampup_batch_size = 10 is not a multiple of micro_batch_size * dp", 2);
  decks.expect_refused({"run.wall_time_limit=30"}, "wall_time_margin");
  decks.expect_refused({"run.hang_timeout=0.5"}, "hang_timeout");
  decks.expect_refused({"run.output_dir="}, "output_dir is empty");
  EXPECT_EQ(decks.message(small_deck, {"parallel.order=dp-tp-cp-pp"}), "");
}

TEST(DeckFeatures, APipelineHasALayerForEveryStage) {
  const std::string deck =
      std::string(small_deck).replace(small_deck.find("layers = 2"), 10, "layers = 6") + "&parallel dp = 1, pp = 3 /\n";
  EXPECT_EQ(decks.message(deck), "");
  EXPECT_EQ(decks.message(deck, {"parallel.pp_schedule=zero_bubble"}), "");
  const std::string text = decks.message(deck, {"parallel.pp=4", "parallel.pp_schedule=zero_bubble"});
  EXPECT_NE(text.find("needs 8 layers, one per stage; the model has 6"), std::string::npos) << text;
  EXPECT_NE(text.find("pp <= 3"), std::string::npos) << text;
  EXPECT_NE(decks.message(deck, {"parallel.pp=7"}).find("pp <= 6"), std::string::npos);
  EXPECT_NE(decks.message(deck, {"parallel.pp_schedule=interleaved_1f1b", "parallel.pp_chunks=3"}).find("pp <= 2"),
            std::string::npos);
  EXPECT_NE(
      decks.message(deck, {"parallel.pp_schedule=zero_bubble", "parallel.recompute=full"}).find("recompute = 'none'"),
      std::string::npos);
  EXPECT_NE(decks.message(deck, {"parallel.pp_schedule=zero_bubble", "parallel.offload_layers=1"})
                .find("activations that have left the device"),
            std::string::npos);
  EXPECT_EQ(decks.message(deck, {"parallel.pp_layers=1, 4 1"}), "");
  EXPECT_NE(decks.message(deck, {"parallel.pp_layers=3 3"}).find("has 2 stages with 6 layers; the pipeline has 3"),
            std::string::npos);
  EXPECT_NE(decks.message(deck, {"parallel.pp_layers=6"}).find("has 1 stage with 6 layers"), std::string::npos);
  EXPECT_NE(decks.message(deck, {"parallel.pp_layers=3 3"}).find("--set parallel.pp_layers="), std::string::npos);
  for (const char* layers : {",1,4,1", "1,4,1,", "1,,4,1", ",", "1;4;1", "1 4 1 x"}) {
    EXPECT_NE(decks.message(deck, {std::string("parallel.pp_layers=") + layers}).find("is not a list of layer counts"),
              std::string::npos);
  }
  EXPECT_EQ(decks.message(deck, {"parallel.pp_layers= 1 , 4,1 "}), "");
  EXPECT_NE(decks.message(deck, {"parallel.pp_layers=2 2 3"}).find("3 numbers whose sum is 6"), std::string::npos);
  EXPECT_NE(decks.message(deck, {"parallel.pp_layers=2 0 4"}).find("is not a list of layer counts"), std::string::npos);
}

TEST(DeckFeatures, OnlySequenceParallelGathersInChunks) {
  const std::string deck = small_deck + "&parallel tp = 2, tp_mode = 'reduce_scatter',\n  tp_overlap_chunks = 4 /\n";
  EXPECT_EQ(decks.message(deck), "");
  EXPECT_EQ(decks.message(deck, {"parallel.tp_gathered_inputs=keep", "parallel.recompute=full"}), "");
  decks.expect_refused({"parallel.tp_overlap_chunks=2"}, "tp_mode = 'reduce_scatter'");
  decks.expect_refused({"parallel.tp_gathered_inputs=keep"}, "tp_mode = 'all_reduce' has none");
  decks.expect_refused({"parallel.tp_gathered_inputs=drop"}, "'gather_again' | 'keep'");
  decks.expect_refused({"parallel.tp_overlap_chunks=0"}, "tp_overlap_chunks");
  decks.expect_refused({"parallel.tp_overlap_chunks=17"}, "tp_overlap_chunks");
  const std::string text = decks.message(deck, {"data.sequence_length=7", "parallel.tp_overlap_chunks=5"});
  EXPECT_NE(text.find("a rank has 4 tokens"), std::string::npos) << text;
  EXPECT_EQ(decks.message(deck, {"data.sequence_length=7", "parallel.tp_overlap_chunks=4"}), "");
  const std::string line =
      decks.message(small_deck + "&parallel tp = 2, tp_mode = 'all_reduce',\n  tp_overlap_chunks = 4 /\n");
  EXPECT_NE(line.find("t.deck:5:"), std::string::npos) << line;
  // With an open degree nothing is known of the rows until the ranks are.
  const std::string open =
      small_deck + "&parallel dp = 1, tp = 0, tp_mode = 'reduce_scatter', tp_overlap_chunks = 9 /\n";
  EXPECT_EQ(decks.message(open), "");
  EXPECT_NE(decks.message(open, {}, 4), "");
}

TEST(DeckFeatures, ShardGroupsDivideTheReplicas) {
  const std::string deck = small_deck + "&parallel dp = 6, zero_stage = 2, zero_size = 4 /\n";
  const std::string text = decks.message(deck, {"data.global_batch_size=6"});
  EXPECT_NE(text.find("zero_size = 4 does not divide the data-parallel group of 6 ranks (dp x cp)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("a divisor of 6: 3 or 6"), std::string::npos) << text;
  EXPECT_EQ(decks.message(deck, {"data.global_batch_size=6", "parallel.zero_size=3"}), "");
  EXPECT_EQ(decks.message(deck, {"data.global_batch_size=6", "parallel.zero_size=0"}), "");
  EXPECT_EQ(decks.message(deck, {"data.global_batch_size=6", "parallel.dp=0"}), "")
      << "nothing is known of the replicas yet";
  EXPECT_NE(decks.message(deck, {"data.global_batch_size=6", "parallel.dp=0"}, 6), "");
  decks.expect_refused({"parallel.zero_size=2"}, "zero_stage = 0 shards nothing");
  decks.expect_refused({"parallel.zero_stage=4"}, "zero_stage");
}

TEST(DeckFeatures, Fp8HasScalesOfARank) {
  EXPECT_EQ(decks.message(small_deck, {"precision.compute='fp8'"}), "");
  decks.expect_refused({"precision.compute='fp8'", "precision.reproducible='layout'"}, "or reproducible = 'run'");
  decks.expect_refused({"precision.compute='bf16'", "precision.fp8_scales='blocks'"}, "or fp8_scales = 'tensor'");
  decks.expect_refused({"precision.compute='bf16'", "precision.fp8_experts=true"}, "or fp8_experts = .false.");
  decks.expect_refused({"precision.compute='fp8'", "precision.fp8_experts=true"}, "the model has no experts");
}

TEST(DeckFeatures, GridMismatchNamesBothAndTheNearest) {
  EXPECT_EQ(decks.message(small_deck + "&parallel dp = 2, tp = 2 /\n", {}, 6),
            "t.deck:4:16: error: the grid dp * tp * pp * cp = 2 * 2 * 1 * 1 = 4 is not the 6 ranks of this run\n"
            "   4 | &parallel dp = 2, tp = 2 /\n"
            "     |                ^\n"
            "     = expected a grid of 6 ranks: dp = 3, tp = 2; dp = 2, tp = 3; dp = 6, tp = 1\n"
            "     = or start 4 ranks\n"
            "1 error in the deck");
  decks.expect_refused({"parallel.tp=2"}, "tp * pp * cp = 2 * 1 * 1 = 2 does not divide the 3 ranks", 3);
  decks.expect_refused({"parallel.tp=2"}, "micro_batch_size * dp = 1 * 5", 10);
  decks.expect_refused({"parallel.dp=1000000", "parallel.tp=8", "data.global_batch_size=1000000"}, "8000000", 2);
  decks.expect_refused({"parallel.dp=0", "parallel.tp=1"}, "dp = 1 * 7", 7);
}

// Where the ranks are known, a grid that does not fit them is said with the other mistakes.
TEST(DeckFeatures, TheGridAndTheBatchInOneRun) {
  const auto both = [](const std::vector<std::string>& set, std::int64_t ranks) {
    try {
      read_deck_text(small_deck, "t.deck", set, nullptr, ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string open = both({"parallel.dp=5", "parallel.cp=0"}, 8);
  for (const char* words :
       {"dp * tp * pp = 5 * 1 * 1 = 5 does not divide the 8 ranks", "micro_batch_size * dp = 1 * 5", "2 errors"}) {
    EXPECT_NE(open.find(words), std::string::npos) << open;
  }
  EXPECT_NE(both({"parallel.dp=5"}, 8).find("= 5 is not the 8 ranks of this run"), std::string::npos);
  EXPECT_NE(both({"parallel.cp=0"}, 8).find("dp and cp are 0"), std::string::npos);
  EXPECT_NE(both({}, 5).find("micro_batch_size * dp = 1 * 5"), std::string::npos) << "dp follows from the ranks";
  EXPECT_EQ(both({"parallel.tp=2.5"}, 8).find("ranks of this run"), std::string::npos)
      << "nothing follows from a wrong degree";
  EXPECT_EQ(both({"parallel.cp=2"}, 8), "");
  deck::Config made = decks.read();
  made.parallel.cp = 0;  // and dp
  EXPECT_THROW(resolve(made, 4), Error);
}

TEST(DeckFeatures, MissingKeysAndEverythingElseInOneRun) {
  const std::string text = decks.message(
      "&run\n  sede = 5\n/\n&modl hidden_size = 10 num_attention_heads = 3 /\n"
      "&data path = a.h5 sequence_length = 8 global_batch_size = 7 micro_batch_size = 2 /\n",
      {"optimizer.beta1=2"});
  for (const char* words :
       {"did you mean 'seed'?", "did you mean '&model'?", "9 or 12", "write 'a.h5'", "6 or 8", "needs the key 'steps'",
        "needs the key 'num_hidden_layers'", "needs the key 'intermediate_size'", "beta1 = 2.0 is out of range",
        "9 errors in the deck"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
  EXPECT_EQ(text.find("needs the key 'path'"), std::string::npos) << text;
}

// A key under another name is one error: nothing is said of what would follow from its value.
TEST(DeckFeatures, NothingFollowsFromAKeyThatIsNotKnown) {
  for (const auto& [ours, theirs] : {std::pair("sequence_length", "seq_len"), std::pair("hidden_size", "n_embd"),
                                     std::pair("num_attention_heads", "n_head")}) {
    std::string other = small_deck;
    other.replace(other.find(ours), std::string(ours).size(), theirs);
    EXPECT_NE(decks.message(other).find("1 error in the deck"), std::string::npos) << decks.message(other);
  }
}

}  // namespace
}  // namespace nanotron::trainer
