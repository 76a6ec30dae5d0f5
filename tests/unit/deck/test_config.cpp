// ranks: 1
// The parameter table and its page, values of keys, the resolved grid, deck.nml; features are asked. The checks of the
// features themselves: unit/trainer/test_deck_features.cpp.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/namelist/suggestions.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "support/small_deck.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron::deck {
namespace {

using test::small_deck;

const test::DeckReader decks{
    [](const std::string& text, const test::Settings& set) { return read_deck_text(text, "t.deck", {}, set); },
    [](deck::Config& c, int ranks) { deck::resolve(c, ranks, {}); }};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
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
    for (const std::string& choice : p.legal_values) {
      p.set(c, Scalar(choice));
      EXPECT_EQ(p.get(c), Scalar(choice)) << key;
    }
  }
  EXPECT_EQ(parameter_groups().size(), 12U);
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
  const Config c = read_deck_text(default_deck(), "defaults", {});
  for (const Parameter& p : parameters()) EXPECT_EQ(p.get(c), p.get(Config{})) << p.name;
  EXPECT_NE(parameters_help().find("clip_grad_norm"), std::string::npos);
}

TEST(Parameters, HelpHasColumns) {
  for (const NamelistGroup& group : parameter_groups()) {
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
    EXPECT_TRUE(seen.insert(known.theirs).second) << known.theirs << " is given twice";
    EXPECT_EQ(to_lower(known.theirs), known.theirs);
    EXPECT_FALSE(known.ours.empty() && known.note.empty()) << known.theirs;
    for (const Parameter& p : parameters()) EXPECT_NE(p.name, known.theirs) << "is a key of ours";
    if (known.ours.empty()) continue;
    const std::size_t dot = known.ours.find('.');
    EXPECT_NO_THROW(parameter(std::string(known.ours.substr(0, dot)), std::string(known.ours.substr(dot + 1))))
        << known.ours;
  }
}

TEST(Suggestions, NamesOfOtherProgramsAreUnderstood) {
  const auto hint = [](const std::string& group, const std::string& line, const std::string& words) {
    const std::string text = decks.message(small_deck + "&" + group + " " + line + " /\n");
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
  hint("output", "tensorboard = .true.", "nanotron-export writes");
  hint("checkpoint", "batch_size = 4", "data%micro_batch_size those that a rank computes");
  hint("lr_scheduler", "kind = 'cosine'", "did you mean '&schedule'?");
  EXPECT_NE(decks.message(small_deck, {"lr=1e-3"}).find("did you mean optimizer.learning_rate?"), std::string::npos);
  EXPECT_NE(decks.message(small_deck, {"steps=1"}).find("did you mean run.steps?"), std::string::npos);
  EXPECT_NE(decks.message(small_deck, {"data.seq_length=8"}).find("did you mean 'sequence_length'?"),
            std::string::npos);
  // A required key under another name is one error, not two.
  std::string other = small_deck;
  other.replace(other.find("sequence_length"), 15, "seq_len");
  EXPECT_NE(decks.message(other).find("1 error in the deck"), std::string::npos) << decks.message(other);
}

TEST(Config, DecksOfOtherFormatsAreToldOnce) {
  const auto refused = [](const std::string& text, const std::string& format) {
    const std::string said = decks.message(text);
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
  EXPECT_EQ(decks.message("! a comment: of ours\n" + small_deck), "");
  for (const char* text :
       {"", "hidden_size = 512\n", "$model\nx: 1\n$end\n", "Dear all,\nthis: is a letter\nof\nwords\n"})
    EXPECT_EQ(decks.message(text).find("looks like"), std::string::npos) << text;
}

TEST(Parameters, DocPageIsNotStale) {
  const std::string page = contents(test::test_folder() / "../doc/input_parameters.md");
  EXPECT_TRUE(page == parameters_markdown())
      << "doc/input_parameters.md is stale: nanotron_hpc --parameters-markdown > doc/input_parameters.md";
}

TEST(Parameters, KeysOfTheToolsAreNotStale) {
  EXPECT_TRUE(contents(test::test_folder() / "../tools/nanotron_tools/model_keys.py") == parameters_python())
      << "model_keys.py is stale: nanotron_hpc --parameters-python > tools/nanotron_tools/model_keys.py";
}

TEST(Parameters, ExamplesOfTheDocPageAreADeckOfAllGroups) {
  std::istringstream page(parameters_markdown());
  std::string line, text;
  while (std::getline(page, line))
    if (line.starts_with("    ")) text += line + "\n";
  for (const NamelistGroup& group : parameter_groups())
    EXPECT_NE(text.find("    &" + group.name + "\n"), std::string::npos) << group.name;
  EXPECT_NO_THROW(read_deck_text(text, "examples", {})) << text;
}

TEST(Config, ReadsKeysAndOverrides) {
  const Config c = decks.read("&precision compute = 'bf16' /\n&schedule kind='1-sqrt' min_lr_ratio=1d-2/",
                              {"run.seed=7", "schedule.kind=wsd", "run.output_dir=a b", "parallel.overlap=f"});
  EXPECT_EQ(c.precision.compute, ScalarType::bf16);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::wsd);
  EXPECT_EQ(c.schedule.min_lr_ratio, 0.01);
  EXPECT_EQ(c.run.seed, 7);
  EXPECT_EQ(c.run.output_dir, "a b");
  EXPECT_FALSE(c.parallel.overlap);
  EXPECT_EQ(c.model.num_key_value_heads, 0);
}

TEST(Config, SizeOfAShardGroup) {
  ParallelConfig p{.dp = 6};
  EXPECT_EQ(shard_group_size(p), 1);
  p.zero_stage = 1;
  EXPECT_EQ(shard_group_size(p), 6);
  p.zero_size = 3;
  EXPECT_EQ(shard_group_size(p), 3);
}

TEST(Config, WarnsOfKeysSetTwice) {
  std::string warnings;
  read_deck_text(small_deck + "&parallel tp = 1\n tp = 2 /\n", "t.deck", {}, {}, &warnings);
  EXPECT_NE(warnings.find("t.deck:5:2: warning: 'tp' is set twice"), std::string::npos) << warnings;
}

TEST(Config, UnreadableDecks) {
  EXPECT_THROW(read_deck("/nonexistent/x.deck", {}), Error);
  EXPECT_THROW(read_deck("/", {}), Error);
  EXPECT_THROW(read_deck("/dev/zero", {}), Error);
}

TEST(Config, RefusesPathsThatAShellWouldReplace) {
  for (const char* key : {"run.output_dir", "checkpoint.directory", "checkpoint.resume", "data.path"})
    decks.expect_refused({std::string(key) + "=~/x"}, "begins with '~'");
  decks.expect_refused({"data.path=web=~/w.h5"}, "begins with '~'");
  EXPECT_EQ(decks.message(small_deck, {"run.output_dir=a~/b"}), "");
}

TEST(Config, RefusesFoldersOfTheKernel) {
  decks.expect_refused({"run.output_dir=/proc/run"}, "is in /proc, where the system keeps no files");
  decks.expect_refused({"run.output_dir=/tmp/../sys"}, "is in /sys");
  decks.expect_refused({"checkpoint.directory=/dev/null"}, "is in /dev");
  EXPECT_EQ(decks.message(small_deck, {"checkpoint.directory=/dev/shm/run"}), "");
  EXPECT_EQ(decks.message(small_deck, {"run.output_dir=/process/run"}), "");
}

TEST(Config, RefusesValues) {
  decks.expect_refused({"run.steps=0"}, "--set:1:11: error: steps = 0 is out of range");
  decks.expect_refused({"optimizer.beta1=1"}, "0 <= x < 1");
  decks.expect_refused({"optimizer.eps=0.0"}, "> 0");
  decks.expect_refused({"optimizer.momentum=1"}, "0 <= x < 1");
  decks.expect_refused({"precision.compute=pf32"}, "did you mean 'fp32'?");
  decks.expect_refused({"parallel.tp=0"}, "dp and tp are 0");
  EXPECT_NE(
      decks.message(small_deck, {"parallel.tp=2"}, 3).find("tp * pp * cp = 2 * 1 * 1 = 2 does not divide the 3 ranks"),
      std::string::npos);
}

// A feature of this test: dp is a power of two, and a seed of 0 asks for one.
void check_dp(const Config& c, Findings& f) {
  const std::int64_t dp = c.parallel.dp;
  if ((dp & (dp - 1)) != 0 && f.is_valid({"parallel.dp"})) {
    f.error({"parallel.dp", "run.seed"}, "dp = " + std::to_string(dp) + " is no power of two", "dp = 2", "or another");
  }
}
void fill_seed(Config& c) {
  if (c.run.seed == 0) c.run.seed = 10 * c.parallel.dp;
}
constexpr Feature of_this_test[] = {{check_dp, fill_seed}};

TEST(Features, CheckDecksAndGridsThatAreProposed) {
  const auto said = [](const std::string& more, const std::vector<std::string>& set,
                       std::optional<std::int64_t> ranks) {
    try {
      read_deck_text(small_deck + more, "t.deck", of_this_test, set, nullptr, ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(said("&parallel dp = 2 /\n", {}, std::nullopt), "");
  EXPECT_EQ(said("&parallel dp = 6 /\n", {}, 6),
            "t.deck:4:16: error: dp = 6 is no power of two\n"
            "   4 | &parallel dp = 6 /\n"
            "     |                ^\n"
            "     = expected dp = 2\n"
            "     = or another\n"
            "1 error in the deck; grids of 6 ranks that this deck allows: dp = 2, tp = 3; dp = 2, tp = 1, cp = 3; "
            "dp = 2, tp = 1, pp = 3");
  EXPECT_NE(said("", {"parallel.dp=2"}, 6).find("a grid of 6 ranks: dp = 2, tp = 3; "), std::string::npos);
  EXPECT_EQ(said("&parallel dp = 6 /\n", {"parallel.dp=x"}, 6).find("power of two"), std::string::npos)
      << "nothing follows from a wrong value";
}

TEST(Features, FillInWhatAsksForIt) {
  Config c = read_deck_text(small_deck, "t.deck", of_this_test, {"run.seed=0"});
  EXPECT_EQ(c.run.seed, 0);
  resolve(c, 4, of_this_test);
  EXPECT_EQ(c.run.seed, 40);
  EXPECT_EQ(c.parallel.dp, 4);
  c.parallel.dp = 0;
  EXPECT_THROW(resolve(c, 6, of_this_test), Error);
}

/// A configuration in which no value is plain.
Config unusual() {
  Config c = decks.read(
      "", {"run.title=it's \"x\" ! / & \xC3\xA9", "optimizer.learning_rate=0.1234567890123456789",
           "optimizer.eps=4.9e-324", "model.rope_theta=1.7976931348623157e308", "run.seed=9223372036854775807",
           "model.qk_norm=t", "precision.compute=bf16", "schedule.kind=inverse-sqrt",
           "data.path='it''s', '''a'', ''b''', '" + std::string(1024, 'p') + "'"});
  resolve(c, 4, {});
  return c;
}

TEST(CanonicalDeck, IsReadBackIdentically) {
  const Config c = unusual();
  const std::string text = canonical_deck(c);
  const Config again = read_deck_text(text, "deck.nml", {});
  for (const Parameter& p : parameters()) EXPECT_EQ(p.get(again), p.get(c)) << p.name;
  EXPECT_EQ(canonical_deck(again), text);
  EXPECT_NE(text.find("dp                  = 4                 ! set: default 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("beta2               = 0.95\n"), std::string::npos) << text;
}

TEST(CanonicalDeck, ChangedKeysAreNamedByGroup) {
  Config c =
      decks.read("", {"parallel.zero_stage=2", "parallel.cp_mode=all_to_all", "data.document_mask=block_diagonal",
                      "precision.reproducible=none", "model.num_key_value_heads=8", "model.head_dim=8"});
  resolve(c, 4, {});
  EXPECT_EQ(changed_keys(c),
            "&model num_key_value_heads = 8, head_dim = 8\n"
            "&parallel dp = 4, cp_mode = 'all_to_all', zero_stage = 2\n"
            "&data document_mask = 'block_diagonal'");
  EXPECT_EQ(changed_keys(Config{}), "");
}

// Of deck.nml nothing keeps another run in the folders of the first.
TEST(CanonicalDeck, CheckpointsLieInTheRunUnlessTheDeckSaysOtherwise) {
  Config c = decks.read();
  resolve(c, 1, {});
  const std::vector<std::string> elsewhere{"run.output_dir=other"};
  EXPECT_EQ(checkpoint_directory(read_deck_text(canonical_deck(c), "deck.nml", {}, elsewhere)), "other/checkpoints");
  c.checkpoint.directory = "kept";
  EXPECT_EQ(checkpoint_directory(read_deck_text(canonical_deck(c), "deck.nml", {}, elsewhere)), "kept");
}

/// A Fortran program with the table's groups; it prints each value as spelled() would, reals in hex.
std::string fortran_reader() {
  std::string text = "program p\n character(1024) :: f\n call get_command_argument(1, f)\n";
  for (const NamelistGroup& g : parameter_groups()) text += " call read_" + g.name + "()\n";
  text += "contains\n";
  for (const NamelistGroup& g : parameter_groups()) {
    std::string declared = " integer :: i\n", listed, shown, cleared;
    for (const Variable& v : g.variables) {
      const bool real = v.type == ValueType::real;
      declared += v.type == ValueType::integer   ? " integer(8) :: "
                  : real                         ? " real(8) :: "
                  : v.type == ValueType::logical ? " logical :: "
                                                 : " character(1024) :: ";
      declared += v.name + (v.extent > 0 ? "(" + std::to_string(v.extent) + ")" : "") + "\n";
      listed += (listed.empty() ? "" : ", ") + v.name;
      const std::string format = v.type == ValueType::integer   ? "'(a,i0)'"
                                 : real                         ? "'(a,z16.16)'"
                                 : v.type == ValueType::logical ? "'(a,l1)'"
                                                                : "'(a,a)'";
      const std::string value = real                          ? "transfer(" + v.name + ", 0_8)"
                                : v.type == ValueType::string ? "trim(" + v.name + ")"
                                                              : v.name;
      const std::string print = " print " + format + ", '" + g.name + "." + v.name + " ', ";
      if (v.extent == 0) shown += print + value + "\n";
      if (v.extent == 0) continue;
      cleared += " " + v.name + " = ' '\n";
      shown +=
          " do i = 1, max(1, count(len_trim(" + v.name + ") > 0))\n " + print + "trim(" + v.name + "(i))\n end do\n";
    }
    for (std::size_t at = 60; at < listed.size(); at += 60) {  // lines of a legal length
      at = listed.find(", ", at);
      if (at == std::string::npos) break;
      listed.insert(at + 2, "&\n  ");
    }
    text += " subroutine read_" + g.name + "()\n" + declared + " namelist /" + g.name + "/ " + listed + "\n" + cleared +
            " open(10, file=f, status='old')\n read(10, nml=" + g.name + ")\n close(10)\n" + shown +
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
  ASSERT_EQ(std::system(("gfortran -o " + base + ".exe " + base + ".f90 && " + base + ".exe " + base + ".nml > " +
                         base + ".out")
                            .c_str()),
            0);
  std::string expected;
  for (const Parameter& p : parameters()) {
    const Scalar s = p.get(c);
    char hex[32] = "";
    if (p.type == ValueType::real)
      std::snprintf(hex, sizeof hex, "%016llX", std::bit_cast<unsigned long long>(std::get<double>(s)));
    const std::string key = p.group + "." + p.name + " ";
    expected += key +
                std::regex_replace(p.type == ValueType::real      ? hex
                                   : p.type == ValueType::logical ? (std::get<bool>(s) ? "T" : "F")
                                   : p.type == ValueType::string  ? std::get<std::string>(s)
                                                                  : spelled(s),
                                   std::regex("\n"), "\n" + key) +
                "\n";
  }
  EXPECT_EQ(contents(base + ".out"), expected);
}

}  // namespace
}  // namespace nanotron::deck
