#pragma once

// &data of a test.

#include "nanotron/deck/keys/data.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::test {

inline deck::DataConfig data_config(index_t sequence, index_t global_batch, index_t micro_batch,
                                    deck::Shuffle shuffle) {
  deck::DataConfig data;
  data.sequence_length = sequence;
  data.global_batch_size = global_batch;
  data.micro_batch_size = micro_batch;
  data.shuffle = shuffle;
  return data;
}

}  // namespace nanotron::test
