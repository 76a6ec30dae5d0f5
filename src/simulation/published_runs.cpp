#include "nanotron/simulation/published_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/simulation/step_prediction.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "simulation/tables.hpp"

namespace nanotron::simulation {
namespace {

// Tables of values separated by commas, with a line of names above; '#' begins a comment line.

/// An error names file and line.
class CsvRow {
 public:
  CsvRow(std::string where, std::map<std::string, std::string> values)
      : where_(std::move(where)), values_(std::move(values)) {}

  bool has_column(const std::string& column) const { return values_.contains(column); }
  bool has(const std::string& column) const { return has_column(column) && !values_.at(column).empty(); }
  std::string text(const std::string& column) const;
  std::int64_t integer(const std::string& column) const;  // more than 0
  double real(const std::string& column) const;           // more than 0
  std::vector<std::string> words(const std::string& column) const;
  [[noreturn]] void wrong(const std::string& column, const std::string& expected) const;

 private:
  std::string where_;
  std::map<std::string, std::string> values_;
};

std::vector<CsvRow> read_csv(const std::string& name, const std::string& text);

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == '\r') continue;
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

void CsvRow::wrong(const std::string& column, const std::string& expected) const {
  fail(ExitCode::deck_error, {.what = "the column " + column + " has no legal value",
                              .expected = expected,
                              .found = has_column(column) ? "'" + values_.at(column) + "'" : "no such column",
                              .where = where_,
                              .change = "correct the table"});
}

std::string CsvRow::text(const std::string& column) const {
  if (!has(column)) wrong(column, "a text");
  return values_.at(column);
}

double CsvRow::real(const std::string& column) const {
  const std::string word = text(column);
  double value = 0.0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value > 0.0)) wrong(column, "a number above 0");
  return value;
}

std::int64_t CsvRow::integer(const std::string& column) const {
  const double value = real(column);
  if (value != static_cast<double>(static_cast<std::int64_t>(value))) wrong(column, "an integer above 0");
  return static_cast<std::int64_t>(value);
}

std::vector<std::string> CsvRow::words(const std::string& column) const {
  std::vector<std::string> all;
  std::istringstream stream(has(column) ? values_.at(column) : "");
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}

std::vector<CsvRow> read_csv(const std::string& name, const std::string& text) {
  std::vector<CsvRow> rows;
  std::vector<std::string> names;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#' || line == "\r") continue;
    const std::vector<std::string> cells = cells_of(line);
    if (names.empty()) {
      names = cells;
      continue;
    }
    const std::string where = fmt::format("{}:{}", name, number);
    if (cells.size() != names.size()) {
      fail(ExitCode::deck_error, {.what = "a row of the table does not have as many values as its header",
                                  .expected = fmt::format("{} values", names.size()),
                                  .found = fmt::format("{}", cells.size()),
                                  .where = where,
                                  .change = "correct the table"});
    }
    std::map<std::string, std::string> values;
    for (std::size_t i = 0; i < names.size(); ++i) values[names[i]] = cells[i];
    rows.emplace_back(where, std::move(values));
  }
  return rows;
}

constexpr double sequence = 2048.0, vocabulary = 51200.0;

// A row of the GPT table.
struct GptRun {
  std::string source, parameters;
  std::int64_t layers = 0, hidden = 0, heads = 0, tp = 0, pp = 0, gpus = 0, batch = 0;

  std::int64_t dp() const { return gpus / (tp * pp); }
  double sc21_flops() const {
    const auto h = static_cast<double>(hidden), l = static_cast<double>(layers);
    return 96.0 * static_cast<double>(batch) * sequence * l * h * h *
           (1.0 + sequence / (6.0 * h) + vocabulary / (16.0 * l * h));
  }
};

enum class Recomputation { full, selective };

struct GptOptions {
  std::int64_t micro_batch = 1, virtual_stages = 1;
  bool overlaps_reduction = false;
};

// Table 1 of SC21: examples/academic_paper_scripts/sc21/run_table_1.sh of Megatron-LM d98e8a64. DDP = torch, which
// reduces gradients beside backward, up to 18.4B.
struct Sc21Options {
  std::int64_t layers = 0, hidden = 0, micro_batch = 0, layers_of_virtual_stage = 0;
  bool has_torch_ddp = false;
};
constexpr std::array sc21_options{
    Sc21Options{24, 2304, 16, 0, true},   Sc21Options{30, 3072, 16, 0, true},  Sc21Options{36, 4096, 16, 0, true},
    Sc21Options{40, 6144, 8, 0, true},    Sc21Options{48, 8192, 4, 0, false},  Sc21Options{60, 10240, 2, 5, false},
    Sc21Options{80, 12288, 2, 5, false},  Sc21Options{96, 16384, 1, 3, false}, Sc21Options{105, 20480, 1, 1, false},
    Sc21Options{128, 25600, 1, 0, false},
};

std::string deck_text(const GptRun& r, const GptOptions& options, Recomputation recomputation) {
  const bool full = recomputation == Recomputation::full;
  return fmt::format(
      "&run steps = 1 /\n"
      "&model hidden_size = {0}, num_hidden_layers = {1}, num_attention_heads = {2}, intermediate_size = {3},\n"
      "  vocab_size = {4}, tie_word_embeddings = .true., normalization = 'layer_norm', hidden_act = 'gelu_new',\n"
      "  position_embedding_type = 'learned_absolute', max_position_embeddings = {5}, qkv_bias = .true.,\n"
      "  o_proj_bias = .true., mlp_bias = .true. /\n"
      "&parallel dp = {6}, tp = {7}, pp = {8}, pp_schedule = '{9}', pp_chunks = {10}, recompute = '{11}',\n"
      "  tp_mode = '{12}', overlap = {15} /\n"
      "&data path = 'none', sequence_length = {5}, global_batch_size = {13}, micro_batch_size = {14} /\n"
      "&precision compute = 'bf16' /\n",
      r.hidden, r.layers, r.heads, 4 * r.hidden, static_cast<std::int64_t>(vocabulary),
      static_cast<std::int64_t>(sequence), r.dp(), r.tp, r.pp, options.virtual_stages > 1 ? "interleaved_1f1b" : "1f1b",
      std::max<std::int64_t>(2, options.virtual_stages), full ? "full" : "none",
      full || r.tp == 1 ? "all_reduce" : "reduce_scatter", r.batch, options.micro_batch,
      options.overlaps_reduction ? ".true." : ".false.");
}

// Megatron-LM's kernels before FlashAttention. SC21 ran in fp16, gradients too (CONFIG.sh of its scripts). In 2022
// weight gradients were added in their GEMM, and the input gradient's reduction ran beside the weight gradient's GEMM.
// kernel_share: kernels of PyTorch and Apex, the estimate of tests/data/*.nml.
Software megatron(const std::string& source, Recomputation recomputation) {
  const bool first = source == "SC21";
  return {.name = first ? "Megatron-LM 2021" : "Megatron-LM 2022",
          .attention = recomputation == Recomputation::full ? AttentionForm::unfused : AttentionForm::recomputed,
          .dropout = true,
          .recomputes_whole_layers = recomputation == Recomputation::full,
          .overlaps_tensor_parallel = !first,
          .adds_gradients_apart = first,
          .scatters_messages = true,
          .kernel_share = 0.85,
          .reduces_in_bf16 = first};
}

GptOptions options_of(const GptRun& r) {
  const std::int64_t of_rank = r.layers / r.pp, of_replica = r.batch / r.dp();
  if (r.source != "SC21") {
    return {.micro_batch = r.pp == 1 ? of_replica : 1, .virtual_stages = r.pp > 1 && of_rank % 3 == 0 ? 3 : 1};
  }
  const auto found = std::ranges::find_if(
      sc21_options, [&](const Sc21Options& o) { return o.layers == r.layers && o.hidden == r.hidden; });
  if (found == sc21_options.end()) {
    fail(ExitCode::deck_error, {.what = "a run of SC21 is not in its table 1",
                                .expected = "layers and hidden of a row of that table",
                                .found = fmt::format("layers = {}, hidden = {}", r.layers, r.hidden),
                                .change = "describe the run by a deck, in a table with the column deck"});
  }
  const std::int64_t of_stage = found->layers_of_virtual_stage;
  return {.micro_batch = found->micro_batch,
          .virtual_stages = of_stage > 0 ? of_rank / of_stage : 1,
          .overlaps_reduction = found->has_torch_ddp};
}

RunComparison compare(const GptRun& r, Recomputation recomputation, double measured, const deck::Machine& machine) {
  const GptOptions options = options_of(r);
  deck::Config config = trainer::read_deck_text(deck_text(r, options, recomputation), r.source, {}, nullptr, r.gpus);
  trainer::resolve(config, r.gpus);
  const StepPrediction p = predict_step(config, machine, megatron(r.source, recomputation));
  return {.source = r.source,
          .run = fmt::format("GPT {}B, {} GPUs, {}", r.parameters, r.gpus,
                             recomputation == Recomputation::full ? "full" : "selective"),
          .assumed = fmt::format("micro-batch {}, {} virtual", options.micro_batch, options.virtual_stages),
          .measured = measured,
          .predicted = p.seconds,
          .parts = parts_text(p)};
}

void compare_gpt(const CsvRow& row, const deck::Machine& machine, std::vector<RunComparison>& all) {
  const GptRun r{.source = row.text("source"),
                 .parameters = row.text("parameters_B"),
                 .layers = row.integer("layers"),
                 .hidden = row.integer("hidden"),
                 .heads = row.integer("heads"),
                 .tp = row.integer("tp"),
                 .pp = row.integer("pp"),
                 .gpus = row.integer("gpus"),
                 .batch = row.integer("batch")};
  if (row.has("tflops_per_gpu")) {
    const double seconds = r.sc21_flops() / (static_cast<double>(r.gpus) * 1e12 * row.real("tflops_per_gpu"));
    all.push_back(compare(r, Recomputation::full, seconds, machine));
  }
  if (row.has("seconds_full")) all.push_back(compare(r, Recomputation::full, row.real("seconds_full"), machine));
  if (row.has("seconds_selective")) {
    all.push_back(compare(r, Recomputation::selective, row.real("seconds_selective"), machine));
  }
}

void compare_deck(const CsvRow& row, const std::filesystem::path& folder, const deck::Machine& machine,
                  std::vector<RunComparison>& all) {
  const std::int64_t ranks = row.integer("ranks");
  deck::Config config = trainer::read_deck_text(deck::read_deck_file((folder / row.text("deck")).string()),
                                                row.text("deck"), row.words("set"), nullptr, ranks);
  trainer::resolve(config, ranks);
  Software software;
  if (row.has("software")) {
    const std::string file = (folder / row.text("software")).string();
    software = read_software(file, deck::read_deck_file(file));
  }
  const StepPrediction p = estimate_step(config, machine, software);
  const std::string measure = row.text("measure");
  const double value = row.real("value");
  double seconds = value;
  if (measure == "tokens_per_second_per_gpu") {
    seconds = p.tokens / (value * static_cast<double>(ranks));
  } else if (measure == "tflops_per_gpu") {
    // Masked pairs counted, as Chowdhery et al. 2022 do: 12 L q s for 6 L q (s + 1).
    const deck::ModelConfig& m = config.model;
    const double masked = 6.0 * static_cast<double>(m.num_hidden_layers * m.num_attention_heads * m.head_dim) *
                          static_cast<double>(config.data.sequence_length - 1);
    seconds = (p.model_flops + masked * p.tokens / static_cast<double>(ranks)) / (value * 1e12);
  } else if (measure != "seconds") {
    row.wrong("measure", "seconds, tokens_per_second_per_gpu or tflops_per_gpu");
  }
  all.push_back({.source = row.text("source"),
                 .run = row.text("run"),
                 .assumed = software.name,
                 .measured = seconds,
                 .predicted = p.seconds,
                 .parts = parts_text(p)});
}

}  // namespace

std::vector<RunComparison> compare_published(const std::string& path, const deck::Machine& machine) {
  std::vector<RunComparison> all;
  for (const CsvRow& row : read_csv(path, deck::read_deck_file(path))) {
    if (row.has_column("deck")) {
      compare_deck(row, std::filesystem::path(path).parent_path(), machine, all);
    } else {
      compare_gpt(row, machine, all);
    }
  }
  return all;
}

double mean_absolute_error(const std::vector<RunComparison>& runs) {
  double sum = 0.0;
  for (const RunComparison& run : runs) sum += std::abs(run.error());
  return runs.empty() ? 0.0 : sum / static_cast<double>(runs.size());
}

std::string describe(const std::vector<RunComparison>& runs) {
  std::string text = fmt::format("{:<26}{:<36}{:<26}{:>12}{:>12}{:>9}  {}\n", "source", "run", "assumed", "measured s",
                                 "predicted s", "error", "% of the predicted step");
  for (const RunComparison& r : runs) {
    text += fmt::format("{:<26}{:<36}{:<26}{:>12.4g}{:>12.4g}{:>+7.1f} %  {}\n", r.source, r.run, r.assumed, r.measured,
                        r.predicted, 100.0 * r.error(), r.parts);
  }
  text += fmt::format("mean error of {} runs: {:.1f} %\n", runs.size(), 100.0 * mean_absolute_error(runs));
  if (runs.empty()) return text;
  const auto size = [](const RunComparison& r) { return std::abs(r.error()); };
  const RunComparison& worst = *std::ranges::max_element(runs, {}, size);
  return text + fmt::format("largest: {:+.1f} %, {} {}\n", 100.0 * worst.error(), worst.source, worst.run);
}

}  // namespace nanotron::simulation
