#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/trainer/data/run_data.hpp"

namespace nanotron::trainer {
namespace {

// Why `path` is not found ("No such file or directory", "Permission denied"); empty if it exists.
std::string why_missing(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return "";
  return (error ? error : std::make_error_code(std::errc::no_such_file_or_directory)).message();
}

// " (blend.txt:17:5)"; empty where the file is not of a list.
std::string place_text(const deck::Config& config, const deck::NamedFile& file) {
  const std::string place = deck::place_of(config, "data.path", file.line);
  return place.empty() ? "" : fmt::format(" ({})", place);
}

std::string missing_files(const char* key, const std::string& files) {
  constexpr std::size_t most = 20;
  std::string missing;
  std::size_t found = 0;
  for (const deck::NamedFile& file : deck::named_files(files)) {
    const std::string why = why_missing(file.path);
    if (why.empty() || ++found > most) continue;
    missing += fmt::format("warning: {}: {}: {}\n", deck::key_of(key, file), file.path, why);
  }
  return found > most ? missing + fmt::format("warning: {}: {} more files\n", key, found - most) : missing;
}

// "1200", "800 (code), 400 (wiki)"; "0" without validation.
std::string validation_text(const Loaders& loaders, const deck::DataConfig& data) {
  const std::vector<std::string> names = deck::validation_set_names(data);
  std::string text;
  for (std::size_t i = 0; i < loaders.validation.size(); ++i) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", loaders.validation[i].number_of_sequences(),
                        i < names.size() ? fmt::format(" ({})", names[i]) : "");
  }
  return text.empty() ? "0" : text;
}

// One row of the table of a blend.
struct BlendRow {
  std::string name;
  index_t tokens = 0, sequences = 0, samples = 0;  // samples, and their tokens, of the run
  std::vector<double> percent{};                   // of the samples of each stage

  void add(const BlendRow& other) {
    tokens += other.tokens;
    sequences += other.sequences;
    samples += other.samples;
    percent.resize(other.percent.size());
    for (std::size_t i = 0; i < percent.size(); ++i) percent[i] += other.percent[i];
  }
};

// For each file its sequences, the samples [begin, end) and the weights of the stages.
std::vector<BlendRow> blend_rows(const deck::Config& config, const Loaders& loaders, index_t begin, index_t end) {
  const std::vector<deck::NamedFile> named = deck::named_files(config.data.path);
  const std::vector<data::BatchLoader::FileUse> uses = loaders.training.uses_before(end),
                                                before = loaders.training.uses_before(begin);
  std::vector<BlendRow> rows;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const index_t samples = uses[i].samples - before[i].samples;
    rows.push_back({.name = named[i].name,
                    .tokens = samples * config.data.sequence_length,
                    .sequences = uses[i].sequences,
                    .samples = samples,
                    .percent = {}});
  }
  for (const deck::BlendStage& stage : deck::blend_stages(config.data)) {
    const double sum = std::accumulate(stage.weights.begin(), stage.weights.end(), 0.0);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].percent.push_back(100.0 * stage.weights[i] / sum);
  }
  return rows;
}

// Of many files those with the most samples, what the others are together, and the total.
std::vector<BlendRow> shortened(std::vector<BlendRow> rows, std::int64_t most) {
  if (most == 0 || static_cast<std::int64_t>(rows.size()) <= most) return rows;
  BlendRow total{.name = "total"},
      others{.name = fmt::format("{} other files", static_cast<std::int64_t>(rows.size()) - most)};
  std::ranges::stable_sort(rows, std::greater<>(), &BlendRow::samples);
  for (const BlendRow& row : rows) total.add(row);
  for (std::size_t i = static_cast<std::size_t>(most); i < rows.size(); ++i) others.add(rows[i]);
  rows.resize(static_cast<std::size_t>(most));
  rows.insert(rows.end(), {others, total});
  return rows;
}

// The blend as a table. Empty for a single file without a name.
std::string blend_text(const deck::Config& config, const Loaders& loaders, index_t begin, index_t end) {
  const std::vector<deck::NamedFile> named = deck::named_files(config.data.path);
  if (named.front().name.empty()) return "";
  const std::vector<BlendRow> rows = shortened(blend_rows(config, loaders, begin, end), config.output.blend_rows);
  std::size_t width = 4;
  for (const BlendRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format(
      "blend of {} files; last columns: % of the samples from the given token on\n  {:<{}} {:>12} {:>12} {:>15} {:>10}",
      named.size(), "file", width, "sequences", "samples", "tokens", "epochs");
  for (const deck::BlendStage& stage : deck::blend_stages(config.data))
    text += fmt::format(" {:>10}", fmt::format("from {:g}", static_cast<double>(stage.from_token)));
  for (const BlendRow& row : rows) {
    text += fmt::format("\n  {:<{}} {:>12} {:>12} {:>15} {:>10.3f}", row.name, width, row.sequences, row.samples,
                        row.tokens, static_cast<double>(row.samples) / static_cast<double>(row.sequences));
    for (const double percent : row.percent) text += fmt::format(" {:>10.2f}", percent);
  }
  const std::int64_t most = config.output.blend_rows;
  if (most > 0 && static_cast<std::int64_t>(named.size()) > most) text += "\n  all files: --set output.blend_rows=0";
  return text;
}

}  // namespace

std::int64_t vocabulary_of_data(const deck::Config& config, MPI_Comm world) {
  std::int64_t size = 0;
  int rank = 0, ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &ranks));
  const std::vector<deck::NamedFile> files = deck::named_files(config.data.path);
  open_collectively(world, [&] {
    for (std::size_t i = static_cast<std::size_t>(rank); i < files.size(); i += static_cast<std::size_t>(ranks)) {
      if (const std::string why = why_missing(files[i].path); !why.empty()) {
        fail(ExitCode::data_error,
             {.what = "the token file, which has the vocabulary size, cannot be read",
              .expected = "an HDF5 file",
              .found = why,
              .where = whole_path(files[i].path) + place_text(config, files[i]),
              .change = "make one with tools/nanotron_tokenize.py, or correct data%path; to --check or "
                        "--plan without it: --set model.vocab_size=..."});
      }
      size = std::max<std::int64_t>(size, data::TokenFile(files[i].path).vocab_size());
    }
  });
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &size, 1, MPI_INT64_T, MPI_MAX, world));
  if (size == 0) {
    fail(ExitCode::deck_error,
         {.what = "vocabulary size unknown",
          .expected = "model%vocab_size in the deck, or the attribute vocab_size in the token file",
          .found = "neither",
          .where = deck::files_text(config.data.path)});
  }
  return size;
}

std::string entropy_text(const TokenFiles& files, const deck::DataConfig& data) {
  const std::vector<deck::NamedFile> named = deck::named_files(data.path);
  std::string text;
  constexpr std::size_t told = 16;
  if (named.size() > told) return "";
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (!files.training[i].unigram_entropy()) continue;
    text += fmt::format("{}{}{}{:.4f}", text.empty() ? "" : ", ", named[i].name, named[i].name.empty() ? "" : " ",
                        *files.training[i].unigram_entropy());
  }
  return text.empty() ? "" : fmt::format("unigram entropy of the data: {} nats per token", text);
}

std::vector<std::string> data_tables(const TrainingStages& stages, const std::vector<Loaders>& loaders) {
  std::vector<std::string> tables;
  std::vector<index_t> sequences;
  for (const Loaders& of_stage : loaders) sequences.push_back(of_stage.training.number_of_sequences());
  if (stages.has_several()) tables.push_back(stages.table(sequences));
  for (std::size_t k = 0; k < stages.size(); ++k) {
    const TrainingStages::Point begin = stages.begin_of(k), end = stages.end_of(k, begin);
    if (stages.has_several() && end.step <= begin.step) continue;
    const std::string blend = blend_text(stages.config(k), loaders[k], begin.sample, end.sample);
    if (!blend.empty()) tables.push_back(stages.has_several() ? stages.name(k) + ": " + blend : blend);
  }
  return tables;
}

std::string describe_data(const deck::Config& of_deck, MPI_Comm world) {
  return comm::text_of_root(world, [&] {
    deck::Config config = of_deck;
    const std::string missing = missing_files("data%path", config.data.path) +
                                missing_files("data%validation_path", config.data.validation_path);
    if (!missing.empty()) return missing + "the data are not checked";
    const TokenFiles tokens(config);
    fill_weights(tokens, config);
    Log log(false);
    check_token_files(tokens, config, MPI_COMM_SELF, log);
    const TrainingStages stages(config);
    std::vector<Loaders> loaders;
    double epochs = 0.0;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      loaders.push_back(in_stage(stages, k, [&] { return make_loaders(stages.config(k), tokens, {}); }));
      const TrainingStages::Point begin = stages.begin_of(k), end = stages.end_of(k, begin);
      epochs += static_cast<double>(std::max<index_t>(end.sample - begin.sample, 0)) /
                static_cast<double>(loaders[k].training.number_of_sequences());
    }
    std::string text =
        fmt::format("data: {} sequences of {} tokens for training, {} for validation; {} steps are {:.3g} epochs",
                    loaders[0].training.number_of_sequences(), config.data.sequence_length,
                    validation_text(loaders[0], config.data), config.run.steps, epochs);
    for (const std::string& table : data_tables(stages, loaders)) text += "\n" + table;
    return text;
  });
}

std::string describe_blend(const deck::Config& config, MPI_Comm world) {
  if (deck::named_files(config.data.path).size() == 1) return "";
  const std::string missing = comm::text_of_root(world, [&] {
    return missing_files("data%path", config.data.path) +
           missing_files("data%validation_path", config.data.validation_path);
  });
  return missing.empty() ? describe_data(config, world) + "\n" : "";
}

}  // namespace nanotron::trainer
