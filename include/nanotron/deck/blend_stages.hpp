#pragma once
// data%weights and data%stages: in which proportions a run takes its samples from the files of data%path.
//
//   path    = 'web=w.h5 code=c.h5'
//   weights = 'web=0.7 code=0.3'
//   stages  = '2e9: web=0.5 code=0.5; 3e9: code=1'     from token 2e9 on half and half, from 3e9 on code alone

#include <cstdint>
#include <string>
#include <vector>

#include "nanotron/deck/data_config.hpp"

namespace nanotron::deck {

struct BlendStage {
  std::int64_t from_token = 0;  // of the run, sequence_length for each sample
  std::vector<double> weights;  // of the files of data%path in their order, not negative, their sum positive
};

struct BlendMistake {
  std::string key, found, expected;  // key: "data.weights" or "data.stages"; empty: no mistake
};

/// The stages, the first from token 0 with data%weights; a file that a later stage does not name has weight 0 there.
/// One file needs no weights. Up to the first mistake.
std::vector<BlendStage> blend_stages(const DataConfig& data, BlendMistake* mistake = nullptr);

}  // namespace nanotron::deck
