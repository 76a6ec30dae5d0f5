#pragma once

#include <cmath>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/vocab/drawn_labels.hpp"

namespace nanotron::kernels::reference {

/// The label of a token of a sample at a position, from its logits (vocabulary); scores in the type of the logits.
template <class M>
std::int32_t drawn_label(std::uint64_t seed, std::uint64_t sample, std::uint32_t position, const M* logits,
                         index_t vocabulary) {
  std::int32_t label = 0;
  M most = 0;
  for (index_t j = 0; j < vocabulary; ++j) {
    const PhiloxCounter bits =
        philox({{position, static_cast<std::uint32_t>(j / 4), 0, static_cast<std::uint32_t>(sample)}},
               {{static_cast<std::uint32_t>(seed) ^ stream_id("drawn labels"),
                 static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(sample >> 32)}});
    const double u = (bits.word[j % 4] + 0.5) / 4294967296.0;
    const M score = logits[j] + static_cast<M>(-std::log(-std::log(u)));
    if (j == 0 || score > most) most = score, label = static_cast<std::int32_t>(j);
  }
  return label;
}

}  // namespace nanotron::kernels::reference
