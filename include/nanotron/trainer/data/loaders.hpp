#pragma once

// What a trainer reads its batches from.

#include <vector>

#include "nanotron/data/batch_loader.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/trainer/data/data_watch.hpp"

namespace nanotron::trainer {

/// The batch loaders. validation: the sets of the deck in its order, then the held-out split if the deck has one.
struct Loaders {
  data::BatchLoader training;
  std::vector<data::BatchLoader> validation;
  data::TokenizerId tokenizer{};     // of the training file
  std::vector<io::DataFile> data{};  // what checkpoints keep of the files (data_identity.hpp)
  DataWatch watch{};
};

}  // namespace nanotron::trainer
