// ranks: 1
// The parameter table, the checks of a whole deck, the resolved grid, deck.nml and its page.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/parameters.hpp"
#include "nanotron/deck/suggestions.hpp"
#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::deck {
namespace {

const std::string small =
    "&run steps = 100 /\n"
    "&model hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 8, intermediate_size = 96 /\n"
    "&data path = 'a.h5', sequence_length = 32, global_batch_size = 24 /\n";

Config read(const std::string& more = "", const std::vector<std::string>& set = {}) {
  return read_deck_text(small + more, "t.deck", set);
}

std::string message(const std::string& text, const std::vector<std::string>& set = {}, int ranks = 0) {
  try {
    Config c = read_deck_text(text, "t.deck", set);
    if (ranks > 0) resolve(c, ranks);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::deck_error);
    return e.what();
  }
  return "";
}

void expect_refused(const std::vector<std::string>& set, const std::string& words, int ranks = 0) {
  const std::string text = message(small, set, ranks);
  EXPECT_NE(text.find(words), std::string::npos) << set[0] << "\n" << text;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Checks, Experts) {
  const std::string experts = "moe.num_experts=6";
  expect_refused({"parallel.ep=2"}, "the model has no experts");
  expect_refused({"parallel.ep=4", experts}, "ep a divisor of 6");
  expect_refused({"parallel.ep=2", experts}, "a divisor of 3", 3);
  expect_refused({"moe.num_experts_per_tok=7", experts}, "at most 6");
  expect_refused({"moe.moe_intermediate_size=3", "parallel.tp=4", experts}, "tp <= 3");
  expect_refused({"moe.shared_expert_intermediate_size=3", "parallel.tp=4", experts}, "tp <= 3");
  expect_refused({"parallel.ep=2", "parallel.zero_stage=1", "parallel.zero_size=3", experts}, "a multiple or a divisor of ep", 6);
  expect_refused({"moe.capacity_factor=2"}, "the model is a dense one");
  expect_refused({"moe.router_aux_loss_scale=hugging_face"}, "the model is a dense one");
  expect_refused({"moe.router_aux_loss_scale=huggingface", experts}, "'per_layer' | 'hugging_face'");
  expect_refused({"moe.receive_factor=2", experts}, "or ep > 1");
  expect_refused({"moe.receive_factor=0.5", "parallel.dp=2", "parallel.ep=2", experts}, "more than 1, or 0", 2);
  expect_refused({"parallel.gradient_sum=adasum", "parallel.dp=2", "parallel.ep=2", experts}, "or gradient_sum = 'sum'", 2);

  Config c = read("", {experts, "parallel.ep=3", "parallel.zero_stage=1"});
  resolve(c, 6);
  EXPECT_EQ(c.model.moe.moe_intermediate_size, 96);
  EXPECT_EQ(grid_size(c.parallel), 6);
  EXPECT_EQ(shard_group_size(c.parallel), 6);
  EXPECT_EQ(expert_shard_group_size(c.parallel), 2);
  c.parallel.zero_size = 3;
  EXPECT_EQ(expert_shard_group_size(c.parallel), 1);
}

TEST(Checks, Architecture) {
  const std::string learned = "model.position_embedding_type=learned_absolute",
                    many = "model.max_position_embeddings=32";
  expect_refused({learned}, "at least sequence_length");
  expect_refused({learned, "model.max_position_embeddings=31"}, "at least sequence_length");
  expect_refused({learned, many, "model.rope_theta=5e5"}, "rope_theta is of the rotary embedding");
  expect_refused({learned, many, "model.rope_type=llama3"}, "rope_type is of the rotary embedding");
  expect_refused({many}, "max_position_embeddings is of learned positions");
  EXPECT_EQ(message(small, {learned, many, "model.head_dim=7"}), "");

  expect_refused({"model.rope_factor=8"}, "rope_type = 'llama3' or 'yarn'");
  expect_refused({"model.rope_type=llama3", "model.rope_factor=8"}, "the length that the model was first trained for");
  const std::string length = "model.original_max_position_embeddings=16";
  expect_refused({"model.rope_type=llama3", length, "model.rope_beta_slow=2"},
                 "rope_beta_slow is of rope_type = 'yarn'");
  expect_refused({"model.rope_type=yarn", length, "model.rope_low_freq_factor=2"}, "is of rope_type = 'llama3'");
  expect_refused({"model.rope_type=llama3", length, "model.rope_low_freq_factor=4"}, "1 and 4");
  expect_refused({"model.rope_type=yarn", length, "model.rope_beta_slow=32"}, "1 and 32");
  expect_refused({"model.rope_type=longrope"}, "'default' | 'llama3' | 'yarn'");
  expect_refused({"model.rope_factor=0.5", "model.rope_type=yarn", length}, ">= 1");

  expect_refused({"model.layer_norm_epsilon=1e-6"}, "layer_norm_epsilon is of LayerNorm");
  expect_refused({"model.normalization=layer_norm", "model.rms_norm_eps=1e-6"}, "rms_norm_eps is of RMSNorm");
  expect_refused({"model.hidden_act=gelu", "moe.num_experts=4"}, "hidden_act = 'silu'");
  expect_refused({"model.mlp_bias=t", "moe.num_experts=4"}, "experts have no biases");
  expect_refused({"model.sliding_window=-1"}, "0 <= x");

  const Config c = read("", {learned, many, "model.normalization=layer_norm", "model.hidden_act=gelu_new"});
  EXPECT_EQ(c.model.norm_eps(), 1e-5);
  EXPECT_FALSE(c.model.is_gated());
}

TEST(Parameters, TableIsComplete) {
  std::set<std::string> seen;
  for (const Parameter& p : parameters()) {
    const std::string key = p.group + "." + p.name;
    EXPECT_TRUE(seen.insert(key).second) << key;
    EXPECT_FALSE(p.sentence.empty()) << key;
    EXPECT_EQ(p.sentence.back(), '.') << key;
    Config c;
    const Scalar before = p.get(c);
    EXPECT_EQ(before.index(), static_cast<std::size_t>(p.type)) << key;
    p.set(c, before);
    EXPECT_EQ(p.get(c), before) << key;
    for (const std::string& choice : p.choices) {
      p.set(c, Scalar(choice));
      EXPECT_EQ(p.get(c), Scalar(choice)) << key;
    }
  }
  EXPECT_EQ(parameter_groups().size(), 10U);
}

TEST(Parameters, EachRowSetsItsOwnMember) {
  for (const Parameter& p : parameters()) {
    if (p.type != ValueType::integer) continue;
    Config c;
    p.set(c, Scalar(std::int64_t{987}));
    for (const Parameter& q : parameters()) {
      EXPECT_EQ(q.get(c) == q.get(Config{}), p.group != q.group || p.name != q.name) << p.name << q.name;
    }
  }
}

TEST(Parameters, DefaultDeckIsLegal) {
  const Config c = read_deck_text(default_deck(), "defaults");
  for (const Parameter& p : parameters()) EXPECT_EQ(p.get(c), p.get(Config{})) << p.name;
  EXPECT_NE(parameters_help().find("clip_grad_norm"), std::string::npos);
}

TEST(Parameters, HelpHasColumns) {
  for (const Group& group : parameter_groups()) {
    std::istringstream lines(group_help(group.name));
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(line, "&" + group.name);
    std::size_t value = 0, keys = 0;
    while (std::getline(lines, line)) {
      if (line[2] == ' ') continue;  // of a sentence
      const std::size_t name_end = line.find(' ', 2);
      ASSERT_NE(name_end, std::string::npos) << line;
      EXPECT_EQ(line.substr(name_end, 2), "  ") << line;
      const std::size_t at = line.find_first_not_of(' ', name_end);
      value = value == 0 ? at : value;
      EXPECT_EQ(at, value) << line;
      EXPECT_NE(line.back(), ' ') << line;
      ++keys;
    }
    EXPECT_EQ(keys, group.variables.size());
    EXPECT_NE(parameters_help().find(group_help(group.name)), std::string::npos);
  }
}

TEST(Suggestions, TheTableOfOtherProgramsLeadsToKeys) {
  std::set<std::string_view> seen;
  for (const KnownName& known : known_names()) {
    EXPECT_TRUE(seen.insert(known.theirs).second) << known.theirs << " is there twice";
    EXPECT_EQ(to_lower(known.theirs), known.theirs);
    EXPECT_FALSE(known.ours.empty() && known.note.empty()) << known.theirs;
    for (const Parameter& p : parameters()) EXPECT_NE(p.name, known.theirs) << "is a key of ours";
    if (known.ours.empty()) continue;
    const std::size_t dot = known.ours.find('.');
    EXPECT_NO_THROW(parameter(std::string(known.ours.substr(0, dot)), std::string(known.ours.substr(dot + 1)))) << known.ours;
  }
}

TEST(Suggestions, NamesOfOtherProgramsAreUnderstood) {
  const auto hint = [](const std::string& group, const std::string& line, const std::string& words) {
    const std::string text = message(small + "&" + group + " " + line + " /\n");
    EXPECT_NE(text.find(words), std::string::npos) << line << "\n" << text;
    EXPECT_NE(text.find("1 error in the deck"), std::string::npos) << line << "\n" << text;
  };
  hint("optimizer", "lr = 1e-3", "did you mean 'learning_rate'?");
  hint("schedule", "lr = 1e-3", "did you mean 'learning_rate' of group '&optimizer'?");
  hint("parallel", "n_layers = 4", "did you mean 'num_hidden_layers' of group '&model'?");
  hint("parallel", "tensor_model_parallel_size = 4", "did you mean 'tp'?");
  hint("parallel", "learning_rat = 4", "did you mean 'learning_rate' of group '&optimizer'?");
  hint("precision", "bf16 = .true.", "did you mean 'compute'? ('bf16')");
  hint("precision", "compute = 'torch.bfloat16'", "did you mean 'bf16'?");
  hint("optimizer", "gradient_accumulation_steps = 4", "there is no key for it");
  hint("checkpoint", "batch_size = 4", "data%micro_batch_size those that a rank computes");
  hint("lr_scheduler", "kind = 'cosine'", "did you mean '&schedule'?");
  EXPECT_NE(message(small, {"lr=1e-3"}).find("did you mean optimizer.learning_rate?"), std::string::npos);
  EXPECT_NE(message(small, {"steps=1"}).find("did you mean run.steps?"), std::string::npos);
  EXPECT_NE(message(small, {"data.seq_length=8"}).find("did you mean 'sequence_length'?"), std::string::npos);
  // A required key under another name is one error, not two.
  std::string other = small;
  other.replace(other.find("sequence_length"), 15, "seq_len");
  EXPECT_NE(message(other).find("1 error in the deck"), std::string::npos) << message(other);
}

TEST(Config, DecksOfOtherFormatsAreToldOnce) {
  const auto refused = [](const std::string& text, const std::string& format) {
    const std::string said = message(text);
    EXPECT_NE(said.find("this looks like " + format), std::string::npos) << text << said;
    EXPECT_NE(said.find("--print-defaults"), std::string::npos);
    EXPECT_EQ(said.find("needs the key"), std::string::npos) << said;
  };
  refused("# a comment\nmodel:\n  hidden_size: 512\n  layers: [1, 2]\ndata: {path: x}\n", "YAML");
  refused("---\n- a\n", "YAML");
  refused(std::string("\xFF\xFE&\0r\0", 6), "UTF-16");
  refused("{\n  \"model\": {\"hidden_size\": 512}\n}\n", "JSON");
  refused("\n[model]\nhidden_size = 512\n[data]\npath = \"x\"\n", "TOML");
  refused("\x89HDF\r\n\x1a\n...", "an HDF5 file");
  EXPECT_EQ(message("! a comment: of ours\n" + small), "");
  for (const char* text : {"", "hidden_size = 512\n", "$model\nx: 1\n$end\n", "Dear all,\nthis: is a letter\nof\nwords\n"})
    EXPECT_EQ(message(text).find("looks like"), std::string::npos) << text;
}

TEST(Config, WhoWantsAFewStepsIsTold) {
  const std::string deck = small + "&schedule warmup_steps = 30, kind = 'wsd', decay_steps = 40 /\n";
  EXPECT_NE(message(deck, {"run.steps=2"}).find("--set run.stop_after_steps=2"), std::string::npos);
  EXPECT_NE(message(deck, {"run.steps=60"}).find("--set run.stop_after_steps=60"), std::string::npos);
  EXPECT_EQ(message(deck, {"run.stop_after_steps=2"}), "");
  expect_refused({"run.stop_after_steps=-1"}, "0 <= x");
}

TEST(Parameters, DocPageIsNotStale) {
  const std::string page = contents(NANOTRON_TEST_DIR "/../doc/input_parameters.md");
  EXPECT_TRUE(page == parameters_markdown())
      << "doc/input_parameters.md is stale: nanotron_hpc --parameters-markdown > doc/input_parameters.md";
}

TEST(Config, ShippedDecksAreLegal) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator(NANOTRON_TEST_DIR "/../input")) {
    if (entry.path().extension() != ".deck") continue;
    ++decks;
    std::string warnings;
    EXPECT_NO_THROW(read_deck(entry.path().string(), {}, &warnings)) << entry.path();
    EXPECT_EQ(warnings, "");
  }
  EXPECT_GE(decks, 3);
}

TEST(Config, ReadsKeysAndOverrides) {
  const Config c = read("&precision compute = 'bf16' /\n&schedule kind='1-sqrt' min_lr_ratio=1d-2/",
                        {"run.seed=7", "schedule.kind=wsd", "run.output_dir=a b", "parallel.overlap=f"});
  EXPECT_EQ(c.precision.compute, ScalarType::bf16);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::wsd);
  EXPECT_EQ(c.schedule.min_lr_ratio, 0.01);
  EXPECT_EQ(c.run.seed, 7);
  EXPECT_EQ(c.run.output_dir, "a b");
  EXPECT_FALSE(c.parallel.overlap);
  EXPECT_EQ(c.model.num_key_value_heads, 0);
}

TEST(Config, ResolveFillsWhatFollows) {
  Config c = read();
  resolve(c, 4);
  EXPECT_EQ(c.parallel.dp, 4);
  EXPECT_EQ(c.model.num_key_value_heads, 8);
  EXPECT_EQ(c.model.head_dim, 8);
  EXPECT_EQ(checkpoint_directory(c), "run/checkpoints");
  EXPECT_EQ(grid_size(c.parallel), 4);
  Config d = read("&parallel dp = 2, tp = 0 /");
  resolve(d, 8);
  EXPECT_EQ(d.parallel.tp, 4);
  resolve(d, 8);
  EXPECT_EQ(d.parallel.tp, 4);
}

TEST(Config, RefusesValues) {
  expect_refused({"run.steps=0"}, "--set:1:11: error: steps = 0 is out of range");
  expect_refused({"optimizer.beta1=1"}, "0 <= x < 1");
  expect_refused({"optimizer.eps=0.0"}, "> 0");
  expect_refused({"optimizer.momentum=1"}, "0 <= x < 1");
  expect_refused({"model.parametrization=mup"}, "base_hidden_size is 0");
  expect_refused({"model.base_hidden_size=32"}, "no use to parametrization = 'standard'");
  expect_refused({"model.parametrization=mup", "model.base_hidden_size=32", "model.tie_word_embeddings=t"},
                 "tied they are one tensor");
  expect_refused({"precision.compute=pf32"}, "did you mean 'fp32'?");
  expect_refused({"model.num_attention_heads=6"}, "60 or 66");
  expect_refused({"model.num_attention_heads=64"}, "head_dim = 1 is odd");
  expect_refused({"model.head_dim=7"}, "head_dim = 7 is odd");
  expect_refused({"model.num_key_value_heads=3"}, "a divisor of 8: 2 or 4");
  expect_refused({"model.num_key_value_heads=16"}, "= expected 8, or another divisor of it");
  expect_refused({"parallel.tp=9"}, "tp <= 8");
  expect_refused({"parallel.tp=0"}, "dp and tp are 0");
  expect_refused({"parallel.order=tp-cp-pp-tp"}, "is no order of the grid's axes");
  expect_refused({"parallel.dp=5"}, "20 or 25");
  expect_refused({"data.micro_batch_size=5"}, "20 or 25");
  expect_refused({"schedule.warmup_steps=101"}, "at most 100");
  expect_refused({"data.validation_every=5"}, "there is no validation data");
  expect_refused({"data.validation_fraction=.1", "data.validation_path=x"}, "exclude each other");
  expect_refused({"data.validation_path=code=a.h5 b.h5"}, "'b.h5' is not name=path");
  expect_refused({"data.validation_path=code=a.h5 code=b.h5"}, "two sets 'code'");
  expect_refused({"data.validation_path=code= wiki=b.h5"}, "the set 'code' has no path");
  expect_refused({"run.wall_time_limit=30"}, "wall_time_margin");
  expect_refused({"run.output_dir="}, "output_dir is empty");
  EXPECT_EQ(message(small, {"parallel.order=dp-tp-cp-pp"}), "");
}

TEST(Config, RefusesWhatDoesNotExistYet) {
}

TEST(Config, TheSameBitsOnEveryGridNeedAGridThatCutsNoSum) {
  const std::string deck = std::string(small) + "&parallel dp = 1 /\n";
  EXPECT_EQ(message(deck, {"precision.reproducible=layout"}), "");
  const auto refused = [&](std::vector<std::string> set, const std::string& words) {
    set.insert(set.begin(), {"precision.reproducible=layout", "parallel.dp=1"});
    EXPECT_NE(message(deck, set).find(words), std::string::npos) << message(deck, set);
  };
  refused({"parallel.cp=2", "parallel.cp_mode=all_to_all"}, "cp = 2 cuts sums elsewhere than context_shards = 1");
  refused({"parallel.cp=2", "precision.context_shards=2"}, "cp_mode = 'all_to_all'");
  refused({"precision.tensor_shards=5"}, "tensor_shards = 5 does not divide");
  refused({"precision.batch_shards=5"}, "batch_shards = 5 does not divide");
  refused({"parallel.tp_mode=reduce_scatter", "parallel.tp=2", "precision.tensor_shards=2", "data.sequence_length=9"},
          "tp_mode = 'all_reduce'");
  refused({"moe.num_experts=6", "parallel.ep=3", "parallel.cp=2", "parallel.dp=3", "parallel.cp_mode=all_to_all",
           "precision.context_shards=2"},
          "ep a multiple of 2");
  refused({"optimizer.name=muon"}, "name = 'adamw'");
  refused({"parallel.gradient_sum=adasum"}, "gradient_sum = 'sum'");
}

TEST(Config, APipelineHasALayerForEveryStage) {
  const std::string deck = std::string(small).replace(small.find("layers = 2"), 10, "layers = 6") + "&parallel dp = 1, pp = 3 /\n";
  EXPECT_EQ(message(deck), "");
  EXPECT_EQ(message(deck, {"parallel.pp_schedule=zero_bubble"}), "");
  const std::string text = message(deck, {"parallel.pp=4", "parallel.pp_schedule=zero_bubble"});
  EXPECT_NE(text.find("needs 8 layers, one a stage; the model has 6"), std::string::npos) << text;
  EXPECT_NE(text.find("pp <= 3"), std::string::npos) << text;
  EXPECT_NE(message(deck, {"parallel.pp=7"}).find("pp <= 6"), std::string::npos);
  EXPECT_NE(message(deck, {"parallel.pp_schedule=interleaved_1f1b", "parallel.pp_chunks=3"}).find("pp <= 2"), std::string::npos);
  EXPECT_NE(message(deck, {"parallel.pp_schedule=zero_bubble", "parallel.recompute=full"}).find("recompute = 'none'"),
            std::string::npos);
  EXPECT_EQ(message(deck, {"parallel.pp_layers=1, 4 1"}), "");
  EXPECT_NE(message(deck, {"parallel.pp_layers=3 3"}).find("has 2 stages with 6 layers; the pipeline has 3"), std::string::npos);
  EXPECT_NE(message(deck, {"parallel.pp_layers=6"}).find("has 1 stage with 6 layers"), std::string::npos);
  EXPECT_NE(message(deck, {"parallel.pp_layers=3 3"}).find("--set parallel.pp_layers="), std::string::npos);
  for (const char* layers : {",1,4,1", "1,4,1,", "1,,4,1", ",", "1;4;1", "1 4 1 x"}) {
    EXPECT_NE(message(deck, {std::string("parallel.pp_layers=") + layers}).find("are no numbers of layers"), std::string::npos);
  }
  EXPECT_EQ(message(deck, {"parallel.pp_layers= 1 , 4,1 "}), "");
  EXPECT_NE(message(deck, {"parallel.pp_layers=2 2 3"}).find("3 numbers whose sum is 6"), std::string::npos);
  EXPECT_NE(message(deck, {"parallel.pp_layers=2 0 4"}).find("are no numbers of layers"), std::string::npos);
}

TEST(Config, OnlyASplitStreamIsGatheredInChunks) {
  const std::string deck = small + "&parallel tp = 2, tp_mode = 'reduce_scatter',\n  tp_overlap_chunks = 4 /\n";
  EXPECT_EQ(message(deck), "");
  EXPECT_EQ(message(deck, {"parallel.tp_gathered_inputs=keep", "parallel.recompute=full"}), "");
  expect_refused({"parallel.tp_overlap_chunks=2"}, "tp_mode = 'reduce_scatter'");
  expect_refused({"parallel.tp_gathered_inputs=keep"}, "'all_reduce' gathers nothing");
  expect_refused({"parallel.tp_gathered_inputs=drop"}, "'gather_again' | 'keep'");
  expect_refused({"parallel.tp_overlap_chunks=0"}, "tp_overlap_chunks");
  expect_refused({"parallel.tp_overlap_chunks=17"}, "tp_overlap_chunks");
  const std::string text = message(deck, {"data.sequence_length=7", "parallel.tp_overlap_chunks=5"});
  EXPECT_NE(text.find("a rank has 4 rows"), std::string::npos) << text;
  EXPECT_EQ(message(deck, {"data.sequence_length=7", "parallel.tp_overlap_chunks=4"}), "");
  const std::string line = message(small + "&parallel tp = 2, tp_mode = 'all_reduce',\n  tp_overlap_chunks = 4 /\n");
  EXPECT_NE(line.find("t.deck:5:"), std::string::npos) << line;
  // With an open degree nothing is known of the rows until the ranks are.
  const std::string open = small + "&parallel dp = 1, tp = 0, tp_mode = 'reduce_scatter', tp_overlap_chunks = 9 /\n";
  EXPECT_EQ(message(open), "");
  EXPECT_NE(message(open, {}, 4), "");
}

TEST(Config, ShardGroupsDivideTheReplicas) {
  const std::string deck = small + "&parallel dp = 6, zero_stage = 2, zero_size = 4 /\n";
  const std::string text = message(deck, {"data.global_batch_size=6"});
  EXPECT_NE(text.find("zero_size = 4 does not divide the 6 replicas (dp x cp)"), std::string::npos) << text;
  EXPECT_NE(text.find("a divisor of 6: 3 or 6"), std::string::npos) << text;
  EXPECT_EQ(message(deck, {"data.global_batch_size=6", "parallel.zero_size=3"}), "");
  EXPECT_EQ(message(deck, {"data.global_batch_size=6", "parallel.zero_size=0"}), "");
  EXPECT_EQ(message(deck, {"data.global_batch_size=6", "parallel.dp=0"}), "") << "nothing is known of the replicas yet";
  EXPECT_NE(message(deck, {"data.global_batch_size=6", "parallel.dp=0"}, 6), "");
  expect_refused({"parallel.zero_size=2"}, "zero_stage = 0 shards nothing");
  expect_refused({"parallel.zero_stage=4"}, "zero_stage");
}

TEST(Config, CompressionNeedsTheWholeGradient) {
  EXPECT_EQ(message(small, {"parallel.compression='bf16'"}), "");
  expect_refused({"parallel.compression='bf16'", "parallel.zero_stage=1"}, "compression = 'none', or zero_stage = 0");
  EXPECT_EQ(message(small, {"parallel.compression='fp16'"}), "");
  expect_refused({"parallel.compression='fp16'", "parallel.zero_stage=2"}, "compression = 'none', or zero_stage = 0");
  expect_refused({"parallel.compression='fp8'"}, "'bf16'");
  expect_refused({"parallel.compression='powersgd'", "parallel.zero_stage=3"}, "compression = 'none', or zero_stage = 0");
  expect_refused({"parallel.compression='powersgd'", "parallel.powersgd_rank=0"}, "powersgd_rank");
  EXPECT_EQ(message(small, {"parallel.bucket_mb=0"}), "");
  expect_refused({"parallel.bucket_mb=-1"}, "bucket_mb");
}

TEST(Config, AdasumNeedsWholeGradientsOfDifferentSamples) {
  const std::string adasum = "parallel.gradient_sum='adasum'";
  EXPECT_EQ(message(small, {adasum}), "");
  EXPECT_EQ(message(small, {adasum, "parallel.tp=2", "model.tie_word_embeddings=true"}), "");
  expect_refused({adasum, "parallel.cp=2"}, "replicas hold parts of the same");
  expect_refused({adasum, "parallel.zero_stage=1"}, "the whole gradient of every replica");
  expect_refused({adasum, "parallel.compression='bf16'"}, "compression = 'none'");
  expect_refused({adasum, "parallel.pp=2", "model.tie_word_embeddings=true"}, "both ends of the pipeline");
  EXPECT_EQ(message(small, {adasum, "parallel.pp=2"}), "");
  expect_refused({"parallel.gradient_sum='mean'"}, "'sum' | 'adasum'");
  const std::string line = message(small + "&parallel cp = 2,\n  gradient_sum = 'adasum' /\n");
  EXPECT_NE(line.find("t.deck:5:"), std::string::npos) << line;
  EXPECT_NE(message(small + "&parallel dp = 1, cp = 0, gradient_sum = 'adasum' /\n", {}, 2), "") << "once cp is known";
}

TEST(Config, SizeOfAShardGroup) {
  ParallelConfig p{.dp = 6};
  EXPECT_EQ(shard_group_size(p), 1);
  p.zero_stage = 1;
  EXPECT_EQ(shard_group_size(p), 6);
  p.zero_size = 3;
  EXPECT_EQ(shard_group_size(p), 3);
}

TEST(Config, ContextParallelGroupsNeedTokensAndHeads) {
  EXPECT_EQ(message(small, {"parallel.cp=32"}), "");
  expect_refused({"parallel.cp=33"}, "cp <= 32");
  const std::string mode = "parallel.cp_mode=all_to_all";
  EXPECT_EQ(message(small, {"parallel.cp=8", mode}), "");
  expect_refused({"parallel.cp=9", mode}, "cp <= 8, or cp_mode = 'ring'");
  EXPECT_EQ(message(small, {"parallel.cp=4", "parallel.tp=2", mode}), "");
  expect_refused({"parallel.cp=3", "parallel.tp=3", mode}, "cp <= 2");
  expect_refused({"parallel.cp=2", "parallel.tp=5", mode}, "expected cp = 1, or cp_mode = 'ring'");
  expect_refused({"parallel.cp=3", "parallel.tp=3", "model.num_key_value_heads=4", mode}, "a rank has 2");
  expect_refused({"parallel.cp=4", "parallel.tp=5", mode}, "a rank has 1");
  EXPECT_EQ(read("&parallel cp = 4, cp_mode = 'all_to_all' /\n").parallel.cp_mode, CpMode::all_to_all);
}

TEST(Config, GridMismatchNamesBothAndTheNearest) {
  EXPECT_EQ(message(small + "&parallel dp = 2, tp = 2 /\n", {}, 6),
            "t.deck:4:16: error: the grid dp * tp * pp * cp = 2 * 2 * 1 * 1 = 4 is not the 6 ranks of this run\n"
            "   4 | &parallel dp = 2, tp = 2 /\n"
            "     |                ^\n"
            "     = expected a grid of 6 ranks: dp = 3, tp = 2; dp = 2, tp = 3; dp = 6, tp = 1\n"
            "     = or start 4 ranks\n"
            "1 error in the deck");
  expect_refused({"parallel.tp=2"}, "tp * pp * cp = 2 * 1 * 1 = 2 does not divide the 3 ranks", 3);
  expect_refused({"parallel.tp=2"}, "micro_batch_size * dp = 1 * 5", 10);
  expect_refused({"parallel.dp=1000000", "parallel.tp=8", "data.global_batch_size=1000000"}, "8000000", 2);
  expect_refused({"parallel.dp=0", "parallel.tp=1"}, "dp = 1 * 7", 7);
}

// Where the ranks are known, a grid that does not fit them is said with the other mistakes.
TEST(Config, TheGridAndTheBatchInOneRun) {
  const auto both = [](const std::vector<std::string>& set, std::int64_t ranks) {
    try {
      read_deck_text(small, "t.deck", set, nullptr, ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string open = both({"parallel.dp=5", "parallel.cp=0"}, 8);
  for (const char* words : {"dp * tp * pp = 5 * 1 * 1 = 5 does not divide the 8 ranks", "micro_batch_size * dp = 1 * 5", "2 errors"}) {
    EXPECT_NE(open.find(words), std::string::npos) << open;
  }
  EXPECT_NE(both({"parallel.dp=5"}, 8).find("= 5 is not the 8 ranks of this run"), std::string::npos);
  EXPECT_NE(both({"parallel.cp=0"}, 8).find("dp and cp are 0"), std::string::npos);
  EXPECT_NE(both({}, 5).find("micro_batch_size * dp = 1 * 5"), std::string::npos) << "dp follows from the ranks";
  EXPECT_EQ(both({"parallel.tp=2.5"}, 8).find("ranks of this run"), std::string::npos) << "nothing follows from a wrong degree";
  EXPECT_EQ(both({"parallel.cp=2"}, 8), "");
  Config made = read();
  made.parallel.cp = 0;  // and dp
  EXPECT_THROW(resolve(made, 4), Error);
}

TEST(Config, MissingKeysAndEverythingElseInOneRun) {
  const std::string text = message(
      "&run\n  sede = 5\n/\n&modl hidden_size = 10 num_attention_heads = 3 /\n"
      "&data path = a.h5 sequence_length = 8 global_batch_size = 7 micro_batch_size = 2 /\n",
      {"optimizer.beta1=2"});
  for (const char* words : {"did you mean 'seed'?", "did you mean '&model'?", "9 or 12", "write 'a.h5'",
                            "6 or 8", "needs the key 'steps'", "needs the key 'num_hidden_layers'",
                            "needs the key 'intermediate_size'", "beta1 = 2.0 is out of range",
                            "9 errors in the deck"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
  EXPECT_EQ(text.find("needs the key 'path'"), std::string::npos) << text;
}

TEST(Config, WarnsOfKeysSetTwice) {
  std::string warnings;
  read_deck_text(small + "&parallel tp = 1\n tp = 2 /\n", "t.deck", {}, &warnings);
  EXPECT_NE(warnings.find("t.deck:5:2: warning: 'tp' is set twice"), std::string::npos) << warnings;
}

TEST(Config, UnreadableDecks) {
  EXPECT_THROW(read_deck("/nonexistent/x.deck"), Error);
  EXPECT_THROW(read_deck("/"), Error);
  EXPECT_THROW(read_deck("/dev/zero"), Error);
}

/// A configuration in which no value is plain.
Config unusual() {
  Config c = read("", {"run.title=it's \"x\" ! / & \xC3\xA9", "optimizer.learning_rate=0.1234567890123456789",
                       "optimizer.eps=4.9e-324", "model.rope_theta=1.7976931348623157e308",
                       "run.seed=9223372036854775807", "model.qk_norm=t", "precision.compute=bf16",
                       "schedule.kind=inverse-sqrt", "data.path=" + std::string(1024, 'p')});
  resolve(c, 4);
  return c;
}

TEST(CanonicalDeck, IsReadBackIdentically) {
  const Config c = unusual();
  const std::string text = canonical_deck(c);
  const Config again = read_deck_text(text, "deck.nml");
  for (const Parameter& p : parameters()) EXPECT_EQ(p.get(again), p.get(c)) << p.name;
  EXPECT_EQ(canonical_deck(again), text);
  EXPECT_NE(text.find("dp                  = 4                 ! set: default 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("beta2               = 0.95\n"), std::string::npos) << text;
}

TEST(CanonicalDeck, ChangedKeysAreNamedByGroup) {
  Config c = read("", {"parallel.zero_stage=2", "parallel.cp_mode=all_to_all", "data.document_mask=block_diagonal",
                       "precision.reproducible=run"});
  resolve(c, 4);
  EXPECT_EQ(changed_keys(c), "&model num_key_value_heads = 8, head_dim = 8\n"
                             "&parallel dp = 4, cp_mode = 'all_to_all', zero_stage = 2\n"
                             "&data document_mask = 'block_diagonal'");
  EXPECT_EQ(changed_keys(Config{}), "");
}

// Of deck.nml nothing keeps another run in the folders of the first.
TEST(CanonicalDeck, CheckpointsLieInTheRunUnlessTheDeckSaysOtherwise) {
  Config c = read();
  resolve(c, 1);
  const std::vector<std::string> elsewhere{"run.output_dir=other"};
  EXPECT_EQ(checkpoint_directory(read_deck_text(canonical_deck(c), "deck.nml", elsewhere)), "other/checkpoints");
  c.checkpoint.directory = "kept";
  EXPECT_EQ(checkpoint_directory(read_deck_text(canonical_deck(c), "deck.nml", elsewhere)), "kept");
}

/// A Fortran program with the table's groups; it prints each value as spelled() would, reals in hex.
std::string fortran_reader() {
  std::string text = "program p\n character(1024) :: f\n call get_command_argument(1, f)\n";
  for (const Group& g : parameter_groups()) text += " call read_" + g.name + "()\n";
  text += "contains\n";
  for (const Group& g : parameter_groups()) {
    std::string declared, listed, shown;
    for (const Variable& v : g.variables) {
      const bool real = v.type == ValueType::real;
      declared += v.type == ValueType::integer   ? " integer(8) :: "
                  : real                         ? " real(8) :: "
                  : v.type == ValueType::logical ? " logical :: "
                                                 : " character(1024) :: ";
      declared += v.name + "\n";
      listed += (listed.empty() ? "" : ", ") + v.name;
      const std::string format = v.type == ValueType::integer   ? "'(a,i0)'"
                                 : real                         ? "'(a,z16.16)'"
                                 : v.type == ValueType::logical ? "'(a,l1)'"
                                                                : "'(a,a)'";
      const std::string value = real                          ? "transfer(" + v.name + ", 0_8)"
                                : v.type == ValueType::string ? "trim(" + v.name + ")"
                                                              : v.name;
      shown += " print " + format + ", '" + g.name + "." + v.name + " ', " + value + "\n";
    }
    for (std::size_t at = 60; at < listed.size(); at += 60) {  // lines of a legal length
      at = listed.find(", ", at);
      if (at == std::string::npos) break;
      listed.insert(at + 2, "&\n  ");
    }
    text += " subroutine read_" + g.name + "()\n" + declared + " namelist /" + g.name + "/ " + listed +
            "\n open(10, file=f, status='old')\n read(10, nml=" + g.name + ")\n close(10)\n" + shown +
            " end subroutine\n";
  }
  return text + "end program\n";
}

TEST(CanonicalDeck, IsReadIdenticallyByGfortran) {
  ASSERT_EQ(std::system("gfortran --version > /dev/null"), 0) << "install_dependencies.sh --tests brings gfortran";
  const Config c = unusual();
  const test::TemporaryFolder folder(test::world(), "deck");
  const std::string base = (folder / "read").string();
  std::ofstream(base + ".f90") << fortran_reader();
  std::ofstream(base + ".nml", std::ios::binary) << canonical_deck(c);
  ASSERT_EQ(std::system(("gfortran -o " + base + ".exe " + base + ".f90 && " + base + ".exe " + base + ".nml > " + base + ".out").c_str()), 0);
  std::string expected;
  for (const Parameter& p : parameters()) {
    const Scalar s = p.get(c);
    char hex[32] = "";
    if (p.type == ValueType::real) std::snprintf(hex, sizeof hex, "%016llX", std::bit_cast<unsigned long long>(std::get<double>(s)));
    expected += p.group + "." + p.name + " " +
                (p.type == ValueType::real      ? hex
                 : p.type == ValueType::logical ? (std::get<bool>(s) ? "T" : "F")
                 : p.type == ValueType::string  ? std::get<std::string>(s)
                                                : spelled(s)) + "\n";
  }
  EXPECT_EQ(contents(base + ".out"), expected);
}

}  // namespace
}  // namespace nanotron::deck
