#include "prompt.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/trainer/start/deck_features.hpp"

namespace nanotron::apps {
namespace {

// Warnings go to stderr, the generated text to stdout.
template <class... A>
void warn(fmt::format_string<A...> text, A&&... values) {
  fmt::print(stderr, "warning: {}\n", fmt::format(text, std::forward<A>(values)...));
}

// The file of --tokens-file; without the option the file of the training, if it still exists and fits the model.
std::unique_ptr<data::TokenFile> open_tokens(const GenerateOptions& options, const TrainedWith& trained) {
  if (!options.tokens_file.empty()) {
    auto file = std::make_unique<data::TokenFile>(options.tokens_file);
    if (!file->has_vocabulary() && !options.ids) {
      fail(ExitCode::data_error, {.what = "the token file has no vocabulary",
                                  .expected = "/vocabulary, to write text",
                                  .where = options.tokens_file,
                                  .change = "recreate it with tools/nanotron_tokenize.py, or use --ids"});
    }
    if (file->vocab_size() > trained.vocab_size) {
      fail(ExitCode::data_error,
           {.what = "the token file's vocabulary differs from the checkpoint's",
            .expected = fmt::format("at most {} tokens, as the model has", trained.vocab_size),
            .found = fmt::format("{}", file->vocab_size()),
            .where = options.tokens_file,
            .change = "name the token file that the model was trained on, or one of the same tokenizer"});
    }
    return file;
  }
  if (trained.tokens_file.empty() || !files::exists(trained.tokens_file)) return nullptr;
  auto file = std::make_unique<data::TokenFile>(trained.tokens_file);
  if (file->vocab_size() <= trained.vocab_size) return file;
  warn("the training token file {} now has {} tokens, the model {}: the file is not used", trained.tokens_file,
       file->vocab_size(), trained.vocab_size);
  return nullptr;
}

// Warns about another tokenizer than that of the training: the text would look like noise, without any error.
void compare_tokenizers(const data::TokenFile& file, const TrainedWith& trained) {
  if (data::same_tokenizer(file.tokenizer(), trained.tokenizer) != data::SameTokenizer::no) return;
  warn(
      "the token file {} has the tokenizer {}, the checkpoint was trained with {}: text and ids do not match; name "
      "a file of that tokenizer with --tokens-file, or use --prompt-ids and --ids",
      file.path(), describe(file.tokenizer(), trained.tokenizer), describe(trained.tokenizer, file.tokenizer()));
}

// Texts begin like the training documents; one without a prompt may begin after the end of another.
void begin(Prompt& prompt) {
  const auto bos = prompt.tokens ? prompt.tokens->bos_token_id() : std::nullopt;
  const auto first = bos ? static_cast<std::int32_t>(*bos) : prompt.eos.value_or(-1);
  const bool has_begin = !prompt.ids.empty() && (!bos || prompt.ids.front() == first);
  if (!has_begin && first >= 0) prompt.ids.insert(prompt.ids.begin(), first);
}

void fill_ids(const GenerateOptions& options, Prompt& prompt) {
  const bool has_vocabulary = prompt.tokens && prompt.tokens->has_vocabulary();
  if (options.prompt && !options.prompt->empty()) {
    if (!has_vocabulary) {
      fail(ExitCode::deck_error, {.what = "the prompt text cannot be encoded",
                                  .expected = "a token file with a vocabulary",
                                  .change = "--tokens-file, or --prompt-ids instead of --prompt"});
    }
    prompt.ids = prompt.tokens->encode(*options.prompt);
    if (prompt.tokens->is_ambiguous(*options.prompt)) {
      warn(
          "--prompt is split into the longest tokens of the vocabulary; the tokenizer {} may split it elsewhere: "
          "encode it with the tokenizer itself and give --prompt-ids (here {})",
          prompt.tokens->tokenizer().name, fmt::join(prompt.ids, ","));
    }
  } else {
    prompt.ids = options.prompt_ids;
  }
  if (has_vocabulary) prompt.text = prompt.tokens->decode(prompt.ids);
  if (options.prompt_ids.empty()) begin(prompt);
  if (prompt.ids.empty()) {
    fail(ExitCode::deck_error, {.what = "there is no prompt",
                                .expected = "--prompt or --prompt-ids, or a token file with a token that "
                                            "begins or ends its documents"});
  }
}

void broadcast(Prompt& prompt, const comm::Communicator& world) {
  std::int32_t numbers[] = {static_cast<std::int32_t>(prompt.ids.size()), prompt.eos.value_or(-1)};
  NANOTRON_CHECK_MPI(MPI_Bcast(numbers, 2, MPI_INT32_T, 0, world.get()));
  prompt.ids.resize(static_cast<std::size_t>(numbers[0]));
  NANOTRON_CHECK_MPI(MPI_Bcast(prompt.ids.data(), numbers[0], MPI_INT32_T, 0, world.get()));
  if (numbers[1] >= 0) prompt.eos = numbers[1];
}

}  // namespace

TrainedWith trained_with(const io::CheckpointInfo& info) {
  TrainedWith trained{.vocab_size = info.model.vocab_size, .tokenizer = info.tokenizer};
  if (info.deck.empty()) return trained;
  try {
    const deck::Config config = trainer::read_deck_text(info.deck, "the checkpoint's deck");
    const std::vector<deck::NamedFile> files = deck::named_files(config.data.path);
    if (!files.empty()) trained.tokens_file = files.front().path;  // all are of one tokenizer
    trained.sequence_length = config.data.sequence_length;
  } catch (const Error&) {  // a deck of another version of the program: its values are optional here
  }
  return trained;
}

Prompt make_prompt(const GenerateOptions& options, const TrainedWith& trained, const comm::Communicator& world) {
  Prompt prompt;
  comm::collectively(world.get(), [&] {
    if (world.rank() != 0) return;
    prompt.tokens = open_tokens(options, trained);
    if (prompt.tokens) compare_tokenizers(*prompt.tokens, trained);
    if (prompt.tokens && prompt.tokens->eos_token_id()) {
      prompt.eos = static_cast<std::int32_t>(*prompt.tokens->eos_token_id());
    }
    if (options.eos) prompt.eos = *options.eos;
    if (prompt.eos && *prompt.eos < 0) prompt.eos.reset();
    fill_ids(options, prompt);
    if (prompt.tokens && !prompt.tokens->has_vocabulary()) prompt.tokens.reset();
  });
  broadcast(prompt, world);
  return prompt;
}

}  // namespace nanotron::apps
