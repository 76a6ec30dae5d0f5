#pragma once

// What a run says about its data.

#include <string>

#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/data/training_stages.hpp"

namespace nanotron::trainer {

/// vocab_size of the token files, the largest. Collective.
std::int64_t vocabulary_of_data(const deck::Config& config, MPI_Comm world);

/// "unigram entropy of the data: 7.1234 nats per token"; empty where no training file has it.
std::string entropy_text(const TokenFiles& files, const deck::DataConfig& data);

/// The stages of training as a table, where there are several; of files with names, for each stage, the weights, the
/// sequences of each file and the epochs of it that the stage takes. Loaders: of each stage.
std::vector<std::string> data_tables(const TrainingStages& stages, const std::vector<Loaders>& loaders);

/// Opens and checks the data of the deck on rank 0 and describes them; names the files that are missing. Collective.
std::string describe_data(const deck::Config& config, MPI_Comm world);

}  // namespace nanotron::trainer
