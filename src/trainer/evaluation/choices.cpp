// Scores multiple-choice questions with the weights of a checkpoint.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "loaded_model.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/data/choices/choice_sequences.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "nanotron/io/files/text_file.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "nanotron/trainer/evaluation/evaluation.hpp"
#include "nanotron/trainer/start/measured_keys.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "nanotron/trainer/state/token_buffer.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {
namespace {

// The log-likelihood of choices, over all ranks, and the accuracy of the best ones.

/// Element c: the sum of ln p(token | context, tokens of the choice before it) over the tokens of choice c, in their
/// order; on rank 0 of the world, zeros elsewhere. loader: of `sequences`, for this rank. Collective over the world;
/// overwrites the tokens of the state.
template <class T>
std::vector<double> choice_scores(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state,
                                  ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens, data::BatchLoader& loader,
                                  const data::ChoiceSequences& sequences, const deck::Config& config);

/// By what a log-likelihood is divided before choices are compared.
enum class ChoiceLength { one, characters, bytes };

/// The choice of the question with the largest score / length, from 0; of equal ones the first.
index_t best_choice(const data::ChoiceFile& file, const data::Question& question, std::span<const double> scores,
                    ChoiceLength length);

struct Accuracy {
  double mean = 0.0;            // of the questions, the share whose best choice is the answer
  double standard_error = 0.0;  // sqrt(mean (1 - mean) / (questions - 1)); 0 for a single question
};
Accuracy accuracy(const data::ChoiceFile& file, std::span<const double> scores, ChoiceLength length);

using Segment = data::ChoiceSequences::Segment;

// The index in this shard's tokens of a position of the sequence; -1 if another rank has it.
index_t token_at(const SequenceShard& shard, index_t position) {
  for (const auto& [positions, token] : shard.pieces()) {
    if (positions.contains(position)) return token + position - positions.begin;
  }
  return -1;
}

// The targets of a global batch, sequence by sequence: where those of each sequence begin, and how many there are.
struct BatchTargets {
  index_t first_sample;
  std::vector<std::size_t> begins{0};

  BatchTargets(const data::ChoiceSequences& sequences, index_t first, index_t batch) : first_sample(first) {
    for (index_t s = first; s < std::min(first + batch, sequences.count()); ++s) {
      begins.push_back(begins.back() + static_cast<std::size_t>(sequences.targets(s)));
    }
  }
  index_t sequences() const { return static_cast<index_t>(begins.size()) - 1; }
};

// Calls use(segment, position, index among the batch's targets) for each target of a sequence.
template <class Use>
void for_each_target(const data::ChoiceSequences& sequences, const BatchTargets& batch, index_t sample,
                     const Use& use) {
  std::size_t at = batch.begins[static_cast<std::size_t>(sample)];
  for (const Segment& segment : sequences.segments(batch.first_sample + sample)) {
    for (index_t p = segment.first_target(); p < segment.position + segment.length; ++p) use(segment, p, at++);
  }
}

template <class T>
std::vector<double> choice_scores(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state,
                                  ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens, data::BatchLoader& loader,
                                  const data::ChoiceSequences& sequences, const deck::Config& config) {
  const SequenceLayout layout = sequence_layout(config);
  const SequenceShard& shard = layout[grid.cp_rank()];
  const auto rows = Kokkos::create_mirror(state.loss_rows);
  std::vector<double> scores;
  for (index_t b = 0; b < loader.number_of_batches(); ++b) {
    const BatchTargets batch(sequences, b * config.data.global_batch_size, config.data.global_batch_size);
    tokens.load(device, loader, batch.first_sample);
    schedule.forward();
    Kokkos::deep_copy(device.exec(), rows, state.loss_rows);
    device.fence();
    // One rank has the loss of a token, and all others add zero: the sum is exact.
    std::vector<double> losses(batch.begins.back(), 0.0);
    for (index_t j = 0; j < loader.per_rank(batch.first_sample) && grid.tp_rank() == 0; ++j) {
      const index_t in_batch = loader.sample_of(batch.first_sample, j) - batch.first_sample;
      if (in_batch >= batch.sequences()) continue;
      for_each_target(sequences, batch, in_batch, [&](const Segment&, index_t position, std::size_t at) {
        const index_t token = token_at(shard, position);
        if (token >= 0) losses[at] = rows(static_cast<std::size_t>(j * shard.length() + token));
      });
    }
    const bool collects = grid.world().rank() == 0;
    NANOTRON_CHECK_MPI(MPI_Reduce(collects ? MPI_IN_PLACE : losses.data(), losses.data(),
                                  static_cast<int>(losses.size()), MPI_DOUBLE, MPI_SUM, 0, grid.world().mpi()));
    for (index_t s = 0; s < batch.sequences(); ++s) {
      for_each_target(sequences, batch, s, [&](const Segment& segment, index_t, std::size_t at) {
        const auto choice = static_cast<std::size_t>(segment.choice);
        if (choice >= scores.size()) scores.resize(choice + 1, 0.0);
        if (collects) scores[choice] -= losses[at];
      });
    }
  }
  return scores;
}

index_t best_choice(const data::ChoiceFile& file, const data::Question& question, std::span<const double> scores,
                    ChoiceLength length) {
  const auto value = [&](index_t choice) {
    const auto c = static_cast<std::size_t>(choice);
    const index_t divisor = length == ChoiceLength::one          ? 1
                            : length == ChoiceLength::characters ? file.choices()[c].characters
                                                                 : file.choices()[c].bytes;
    return scores[c] / static_cast<double>(divisor);
  };
  index_t best = question.choices.begin;
  for (index_t c = best + 1; c < question.choices.end; ++c) {
    if (value(c) > value(best)) best = c;
  }
  return best - question.choices.begin;
}

Accuracy accuracy(const data::ChoiceFile& file, std::span<const double> scores, ChoiceLength length) {
  index_t right = 0;
  for (const data::Question& q : file.questions()) {
    if (best_choice(file, q, scores, length) == q.answer) ++right;
  }
  const auto n = static_cast<double>(file.questions().size());
  const double mean = static_cast<double>(right) / n;
  return {mean, n > 1.0 ? std::sqrt(mean * (1.0 - mean) / (n - 1.0)) : 0.0};
}

#define NANOTRON_INSTANTIATE(T)                                                                                \
  template std::vector<double> choice_scores<T>(Device&, comm::ProcessGrid&, const TrainingState<T>&,          \
                                                ForwardBackwardSchedule<T>&, TokenBuffer&, data::BatchLoader&, \
                                                const data::ChoiceSequences&, const deck::Config&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

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
  return config.data.document_mask != deck::DocumentMask::none && !deck::drops_tokens(config.model)
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
      const nlohmann::ordered_json line = {
          {"line", q.line},
          {"answer", q.answer},
          {"best", best(ChoiceLength::one)},
          {"best_norm", best(ChoiceLength::characters)},
          {"best_bytes", best(ChoiceLength::bytes)},
          {"tokens", tokens},
          {"log_likelihoods", std::vector<double>(of_question.begin(), of_question.end())}};
      text += line.dump() + '\n';
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
