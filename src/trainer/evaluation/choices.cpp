// Scores multiple-choice questions with the weights of a checkpoint.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "choice_scores.hpp"
#include "loaded_model.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/agreement.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "nanotron/io/files/text_file.hpp"
#include "nanotron/trainer/data/run_stages.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/evaluation/evaluation.hpp"
#include "nanotron/trainer/state/run_grid.hpp"
#include "trainer/start/block_times.hpp"

namespace nanotron::trainer {
namespace {

data::ChoiceFile open_choices(const deck::Config& config, const std::string& path, comm::Group& world, Log& log) {
  std::optional<data::ChoiceFile> file;
  open_collectively(world.mpi(), [&] {
    file.emplace(path);
    file->require_vocab_size(config.model.vocab_size);
  });
  io::require_same_tokens(world.mpi(), file->tokens(), "--choices", config.data.verify, true, log);
  const std::uint64_t hash = file->hash_of_tables();
  const auto half = [&](int shift) { return static_cast<std::int64_t>((hash >> shift) & 0xffffffff); };
  if (comm::min(world, half(0)) != comm::max(world, half(0)) ||
      comm::min(world, half(32)) != comm::max(world, half(32))) {
    fail(ExitCode::data_error, {.what = "ranks see different files of questions",
                                .expected = "the same /choices and /questions on all hosts",
                                .found = "different ones",
                                .where = path,
                                .change = "copy one file to all hosts, or name one that all share"});
  }
  return std::move(*file);
}

// A capacity would make the experts of a choice depend on the others of its sequence.
data::ChoicePacking packing_of(const deck::Config& config) {
  return config.data.document_mask != deck::DocumentMask::none && config.model.moe.capacity_factor == 0.0
             ? data::ChoicePacking::several
             : data::ChoicePacking::one;
}

// Where the scores of each question go, a JSON object per line; on the rank that writes. It appears under its name when
// it is complete. What cannot be written is known before the questions are scored.
class ResultFile {
 public:
  ResultFile(const std::string& path, bool writes) : path_(writes ? path : ""), beside_(path + ".tmp") {
    if (path_.empty()) return;
    const int descriptor = files::open_plain(beside_, O_WRONLY | O_CREAT);
    if (descriptor < 0) failed("opened", files::why_not_plain(errno));
    ::close(descriptor);
  }
  ~ResultFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(beside_, ignored);
  }
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void write(const data::ChoiceFile& file, std::span<const double> scores) {
    if (path_.empty()) return;
    std::string text;
    for (const data::Question& q : file.questions()) {
      std::vector<index_t> tokens;
      for (index_t c = q.choices.begin; c < q.choices.end; ++c) {
        tokens.push_back(file.choices()[static_cast<std::size_t>(c)].scored);
      }
      const auto of_question =
          scores.subspan(static_cast<std::size_t>(q.choices.begin), static_cast<std::size_t>(q.choices.size()));
      const auto best = [&](ChoiceLength length) { return best_choice(file, q, scores, length); };
      text += fmt::format(
          "{{\"line\": {}, \"answer\": {}, \"best\": {}, \"best_norm\": {}, \"best_bytes\": {}, "
          "\"tokens\": [{}], \"log_likelihoods\": [{}]}}\n",
          q.line, q.answer, best(ChoiceLength::one), best(ChoiceLength::characters), best(ChoiceLength::bytes),
          fmt::join(tokens, ", "), fmt::join(of_question, ", "));
    }
    if (const int error = io::replace_text(path_, text); error != 0) failed("written", std::strerror(error));
  }

 private:
  [[noreturn]] void failed(const char* what, const std::string& why) const {
    fail(ExitCode::system_error,
         {.what = fmt::format("the file of --results cannot be {}", what), .found = why, .where = beside_});
  }

  std::string path_, beside_;
};

void require_finite(const data::ChoiceFile& file, std::span<const double> scores) {
  for (std::size_t c = 0; c < scores.size(); ++c) {
    if (std::isfinite(scores[c])) continue;
    fail(ExitCode::numerics_error,
         {.what = "a log-likelihood is not finite",
          .expected = "a number",
          .found = fmt::format("{}", scores[c]),
          .where = fmt::format("{}: {}", file.tokens().path(), file.name_of(static_cast<index_t>(c)))});
  }
}

// "choices: acc 0.3120 +- 0.0147, acc_norm 0.3340 +- 0.0149, acc_bytes 0.3340 +- 0.0149, 1000 questions, 4000 choices"
std::string text_of(const data::ChoiceFile& file, std::span<const double> scores) {
  std::string text;
  for (const auto& [name, length] :
       {std::pair("acc", ChoiceLength::one), std::pair("acc_norm", ChoiceLength::characters),
        std::pair("acc_bytes", ChoiceLength::bytes)}) {
    const Accuracy a = accuracy(file, scores, length);
    text += fmt::format("{} {:.4f} +- {:.4f}, ", name, a.mean, a.standard_error);
  }
  return fmt::format("choices: {}{} questions, {} choices", text, file.questions().size(), file.choices().size());
}

template <class T>
std::vector<double> scores_as(const deck::Config& config, comm::ProcessGrid& grid,
                              const data::ChoiceSequences& sequences, data::BatchLoader& loader,
                              io::CheckpointReader& reader, Log& log) {
  std::vector<double> scores;
  with_loaded_model<T>(config, grid, reader, log, [&](const LoadedModel<T>& m) {
    scores = choice_scores(m.device, grid, m.state, m.schedule, m.tokens, loader, sequences, config);
  });
  return scores;
}

}  // namespace

ExitCode evaluate_choices(const deck::Config& of_deck, const std::string& choices, const std::string& results,
                          MPI_Comm world) {
  deck::Config config = config_of_checkpoint(of_deck, world);
  comm::ProcessGrid grid = make_grid(world, config);
  const bool is_first = grid.world().rank() == 0;
  Log log(is_first, grid.world().rank());
  const data::ChoiceFile file = open_choices(config, choices, grid.world(), log);
  auto owned = std::make_unique<data::ChoiceSequences>(file, config.data.sequence_length, packing_of(config));
  const data::ChoiceSequences& sequences = *owned;
  std::optional<ResultFile> out;
  comm::collectively(world, [&] { out.emplace(results, is_first); });
  io::CheckpointReader reader = open_for_evaluation(config, grid.world(), log);
  comm::collectively(world, [&] {
    compare_tokenizers({reader.info().tokenizer, fmt::format("the checkpoint {}", reader.folder().string())},
                       {file.tokens().tokenizer(), fmt::format("the file of questions {}", choices)}, config.data, log);
  });
  std::vector<std::optional<std::int64_t>> begins;
  for (const io::DataFile& of : reader.info().data) {
    if (of.use == "training") begins.push_back(of.bos);
  }
  compare_begins(begins, begin_of(file.tokens()), fmt::format("the file of questions {}", choices), log);
  log.info("{} choices in {} sequences of {} tokens, {:.1f} % of them filled; {} contexts truncated on the left",
           file.choices().size(), sequences.count(), config.data.sequence_length, 100.0 * sequences.filled(),
           sequences.cut());
  choose_pipeline_cut(config, grid);
  const SequenceLayout layout = sequence_layout(config);
  data::BatchLoader loader(config.data, std::move(owned), grid.dp_rank(), static_cast<int>(config.parallel.dp),
                           layout[grid.cp_rank()], neighbouring_sequences(config));
  const std::vector<double> scores = with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    return scores_as<T>(config, grid, sequences, loader, reader, log);
  });
  comm::collectively(world, [&] {
    require_finite(file, scores);
    out->write(file, scores);
  });
  log.summary("{}", text_of(file, scores));
  return ExitCode::ok;
}

}  // namespace nanotron::trainer
