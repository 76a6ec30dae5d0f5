#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::apps {

// What a checkpoint says about its training; empty or 0 where it says nothing.
struct TrainedWith {
  std::string tokens_file{};
  index_t sequence_length = 0;
  index_t vocab_size = 0;
  data::TokenizerId tokenizer{};
};
TrainedWith trained_with(const io::CheckpointInfo& info);

struct Prompt {
  std::vector<std::int32_t> ids;  // at least one
  std::optional<std::int32_t> eos;
  std::string text;                         // on rank 0, of ids, if there is a vocabulary
  std::unique_ptr<data::TokenFile> tokens;  // on rank 0, if it has a vocabulary
};

// The same ids and eos on every rank; only rank 0 opens the token file. Collective; every error is thrown on every
// rank. Warns on stderr if the tokenizer is not the checkpoint's, and if the tokenizer may encode the prompt in other
// tokens than the longest that match, which are taken here.
Prompt make_prompt(const GenerateOptions& options, const TrainedWith& trained, const comm::Communicator& world);

}  // namespace nanotron::apps
