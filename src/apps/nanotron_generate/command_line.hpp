#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nanotron/model/generation/generation.hpp"

namespace nanotron::apps {

struct GenerateOptions {
  std::string checkpoint;
  std::string tokens_file;            // empty: the one the checkpoint was trained on, if it exists
  std::optional<std::string> prompt;  // text
  std::vector<std::int32_t> prompt_ids;
  index_t new_tokens = 0;  // 0: as many as fit into the context, at most 256
  index_t context = 0;     // 0: the length of the sequences in training
  index_t samples = 1;
  model::Sampling sampling;
  std::optional<std::int32_t> eos;    // negative: none; not given: that of the token file
  std::optional<ScalarType> compute;  // not given: as the parameters are stored
  bool ids = false;
};

// Nothing when help or version has been printed; only the writing rank prints.
// Error(deck_error) for an invalid command line.
std::optional<GenerateOptions> parse_generate_options(int argc, char** argv, bool is_writer);

}  // namespace nanotron::apps
