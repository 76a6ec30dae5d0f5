#include "nanotron_generate/prompt.hpp"

#include <filesystem>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/agreement.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::apps {
namespace {

// With its vocabulary, from what was asked for or from the training, if that can still be read.
std::unique_ptr<data::TokenFile> open_tokens(const GenerateOptions& options,
                                             const TrainedWith& trained) {
  if (!options.tokens_file.empty()) {
    auto file = std::make_unique<data::TokenFile>(options.tokens_file);
    if (!file->has_vocabulary() && !options.ids) {
      fail(ExitCode::data_error,
           {.what = "the token file has no vocabulary",
            .expected = "/vocabulary, to write text",
            .where = options.tokens_file,
            .change = "make it again with tools/nanotron_tokenize.py, or use --ids"});
    }
    return file;
  }
  if (trained.tokens_file.empty() || !std::filesystem::exists(trained.tokens_file)) return nullptr;
  return std::make_unique<data::TokenFile>(trained.tokens_file);
}

void fill_ids(const GenerateOptions& options, Prompt& prompt) {
  const bool has_vocabulary = prompt.tokens && prompt.tokens->has_vocabulary();
  if (options.prompt && !options.prompt->empty()) {
    if (!has_vocabulary) {
      fail(ExitCode::deck_error, {.what = "the text of the prompt cannot be turned into tokens",
                                  .expected = "a token file with a vocabulary",
                                  .change = "--tokens-file, or --prompt-ids in place of --prompt"});
    }
    prompt.ids = prompt.tokens->encode(*options.prompt);
  } else {
    prompt.ids = options.prompt_ids;
  }
  if (has_vocabulary) prompt.text = prompt.tokens->decode(prompt.ids);
  if (prompt.ids.empty() && prompt.eos) prompt.ids = {*prompt.eos};
  if (prompt.ids.empty()) {
    fail(ExitCode::deck_error,
         {.what = "there is no prompt",
          .expected = "--prompt or --prompt-ids, or a token file with an end-of-text "
                      "token to begin with"});
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

TrainedWith trained_with(const std::string& deck) {
  if (deck.empty()) return {};
  try {
    const deck::Config config = deck::read_deck_text(deck, "the checkpoint's deck");
    return {.tokens_file = config.data.path, .sequence_length = config.data.sequence_length};
  } catch (const Error&) {
    return {};  // written by another version of the program: what it tells is a convenience only
  }
}

Prompt make_prompt(const GenerateOptions& options, const TrainedWith& trained,
                   const comm::Communicator& world) {
  Prompt prompt;
  comm::collectively(world.get(), [&] {
    if (world.rank() != 0) return;
    prompt.tokens = open_tokens(options, trained);
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
