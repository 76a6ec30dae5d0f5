#pragma once
// data%weights and data%stages: the proportions of samples from the files of data%path, and the keys of the deck that
// change at a token of the run.
//
//   path    = 'web=w.h5 code=c.h5'
//   weights = 'web=0.7 code=0.3'
//   stages  = '2e9: web=0.5 code=0.5; 3e9: code=1 sequence_length=32768 global_batch_size=4 rope_theta=5e6'
//
// From token 2e9 on half and half, from 3e9 on only code, in steps of four sequences of 32768 tokens. Weights without
// names are those of the files in their order: weights = '0.7 0.3', stages = '2e9: 0.5 0.5'.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanotron/deck/keys/data.hpp"
#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {

struct Parameter;

/// A key of the deck that a stage sets.
struct StageSetting {
  const Parameter* key = nullptr;
  Scalar value{};  // checked
};

struct BlendStage {
  std::int64_t from_token = 0;         // of the run, sequence_length for each sample
  std::vector<double> weights;         // of the files of data%path in their order, not negative, their sum positive
  std::vector<StageSetting> settings;  // empty: a stage of weights only
};

/// data%sequence_length, global_batch_size and micro_batch_size, parallel%recompute, model%rope_theta.
const std::vector<const Parameter*>& stage_keys();

struct BlendMistake {
  std::string key, found, expected;  // key: "data.weights" or "data.stages"; empty: no mistake
};

/// The stages, the first from token 0 with data%weights; a file that a later stage does not name has weight 0 there. A
/// stage that names no file keeps the weights of the one before. One file needs no weights. Where the numbers of tokens
/// are the weights (named_files.hpp) and not filled in yet, they are 1. Stops at the first mistake.
std::vector<BlendStage> blend_stages(const DataConfig& data, BlendMistake* mistake = nullptr);

}  // namespace nanotron::deck
