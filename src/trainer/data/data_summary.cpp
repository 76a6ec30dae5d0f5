#include "nanotron/trainer/data/data_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/named_files.hpp"

namespace nanotron::trainer {
namespace {

// Why `path` is not found ("No such file or directory", "Permission denied"); empty if it exists.
std::string why_missing(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return "";
  return (error ? error : std::make_error_code(std::errc::no_such_file_or_directory)).message();
}

std::string missing_files(const char* key, const std::string& files) {
  std::string missing;
  for (const deck::NamedFile& file : deck::named_files(files)) {
    const std::string why = why_missing(file.path);
    if (!why.empty()) missing += fmt::format("warning: {}: {}: {}\n", deck::key_of(key, file), file.path, why);
  }
  return missing;
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

// The blend as a table: of each file the weights, its sequences, and the epochs of it that the samples from `begin` to
// `end` are. Empty for a file without a name.
std::string blend_text(const deck::Config& config, const Loaders& loaders, index_t begin, index_t end) {
  const std::vector<deck::NamedFile> named = deck::named_files(config.data.path);
  if (named.front().name.empty()) return "";
  const std::vector<deck::BlendStage> stages = deck::blend_stages(config.data);
  const std::vector<data::BatchLoader::FileUse> uses = loaders.training.uses_before(end),
                                                before = loaders.training.uses_before(begin);
  std::size_t width = 4;
  for (const deck::NamedFile& file : named) width = std::max(width, file.name.size());
  std::string text =
      fmt::format("blend of {} files, in % of the samples from a token of the run on\n  {:<{}} {:>12} {:>12} {:>10}",
                  named.size(), "file", width, "sequences", "samples", "epochs");
  for (const deck::BlendStage& stage : stages)
    text += fmt::format(" {:>10}", fmt::format("from {:g}", static_cast<double>(stage.from_token)));
  for (std::size_t i = 0; i < named.size(); ++i) {
    const index_t sequences = uses[i].sequences, samples = uses[i].samples - before[i].samples;
    text += fmt::format("\n  {:<{}} {:>12} {:>12} {:>10.3f}", named[i].name, width, sequences, samples,
                        static_cast<double>(samples) / static_cast<double>(sequences));
    for (const deck::BlendStage& stage : stages) {
      double sum = 0.0;
      for (const double weight : stage.weights) sum += weight;
      text += fmt::format(" {:>10.2f}", 100.0 * stage.weights[i] / sum);
    }
  }
  return text;
}

}  // namespace

std::int64_t vocabulary_of_data(const deck::Config& config, MPI_Comm world) {
  std::int64_t size = 0;
  open_collectively(world, [&] {
    for (const deck::NamedFile& file : deck::named_files(config.data.path)) {
      if (const std::string why = why_missing(file.path); !why.empty()) {
        fail(ExitCode::data_error,
             {.what = "the token file, which has the vocabulary size, cannot be read",
              .expected = "an HDF5 file",
              .found = why,
              .where = whole_path(file.path),
              .change = "make one with tools/nanotron_tokenize.py, or correct data%path; to --check or "
                        "--plan without it: --set model.vocab_size=..."});
      }
      size = std::max<std::int64_t>(size, data::TokenFile(file.path).vocab_size());
    }
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, 0, world));  // check_token_files() reports files that differ
  if (size == 0) {
    fail(ExitCode::deck_error,
         {.what = "vocabulary size unknown",
          .expected = "model%vocab_size in the deck, or the attribute vocab_size in the token file",
          .found = "neither",
          .where = config.data.path});
  }
  return size;
}

std::string entropy_text(const TokenFiles& files, const deck::DataConfig& data) {
  const std::vector<deck::NamedFile> named = deck::named_files(data.path);
  std::string text;
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

std::string describe_data(const deck::Config& config, MPI_Comm world) {
  return comm::text_of_root(world, [&] {
    const std::string missing = missing_files("data%path", config.data.path) +
                                missing_files("data%validation_path", config.data.validation_path);
    if (!missing.empty()) return missing + "the data are not checked";
    const TokenFiles tokens(config);
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

}  // namespace nanotron::trainer
