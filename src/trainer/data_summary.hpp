#pragma once

// What a run says about its data. Private to the trainer layer.

#include <string>

#include "nanotron/trainer/token_files.hpp"

namespace nanotron::trainer {

/// vocab_size of the token files, the largest. Collective.
std::int64_t vocabulary_of_data(const deck::Config& config, MPI_Comm world);

/// "unigram entropy of the data: 7.1234 nats per token"; empty where no training file has it.
std::string entropy_text(const TokenFiles& files, const deck::DataConfig& data);

/// The blend of a run as a table: of each file the weights of the stages, its sequences, and the epochs of it that the
/// run takes. Empty for a file without a name.
std::string blend_text(const deck::Config& config, const Loaders& loaders);

}  // namespace nanotron::trainer
