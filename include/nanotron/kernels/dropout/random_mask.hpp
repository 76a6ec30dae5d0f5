#pragma once

// Dropout (Srivastava et al. 2014) without a stored mask: elements are zeroed with probability p, the others multiplied
// by 1 / (1 - p). Whether an element is kept is a pure function of the seed, the number of its sample in training, its
// position in the sequence, its place in the model (layer and site) and the element: a channel, or a query head and the
// position of a key. Forward and backward compute it again, on any grid:
//
//   a, b = 64 bits of Philox(seed; position, head, place, sample)            of a row, base/random.hpp
//   x    = h(h(element xor a) + b)                                           h: an invertible mix of 32 bits
//   kept: x >= 2^32 p
//
// Attention's probabilities after the softmax, M the mask divided by 1 - p:
//
//   o = (M P) V      dV = (M P)^T dO      dP = M (dO V^T)      D = do . o as without a mask

#include "nanotron/base/random.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sequence_layout.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

enum class MaskSite : std::uint32_t { embedding, attention, feed_forward, probabilities };

inline constexpr std::uint32_t mask_purpose = stream_id("dropout");  // its key among random numbers

/// What the elements of a row have in common.
struct MaskRow {
  std::uint32_t a, b;
};

struct RandomMask {
  std::uint32_t threshold = 0;  // 2^32 p; 0: nothing is zeroed
  std::uint32_t place = 0;      // of the model: layer and site
  std::uint64_t seed = 0;
  SampleNumbers samples{};  // unknown: nothing is zeroed

  NANOTRON_FUNCTION bool is_on() const { return threshold > 0 && samples.are_known(); }
  /// 1 / (1 - p); 1 where nothing is zeroed.
  NANOTRON_FUNCTION double factor() const { return is_on() ? 1.0 / (1.0 - threshold * 0x1.0p-32) : 1.0; }

  /// Of a sequence of the micro-batch; position: in the whole sequence; head: in the whole model.
  NANOTRON_FUNCTION MaskRow row(index_t sequence, index_t position, index_t head = 0) const {
    const auto sample = static_cast<std::uint64_t>(samples.of(sequence));
    const PhiloxCounter bits =
        philox({{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(head), place,
                 static_cast<std::uint32_t>(sample)}},
               {{static_cast<std::uint32_t>(seed) ^ mask_purpose,
                 static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(sample >> 32)}});
    return {bits.word[0], bits.word[1]};
  }
  NANOTRON_FUNCTION bool keeps(const MaskRow& row, index_t element) const {
    return mixed(mixed(static_cast<std::uint32_t>(element) ^ row.a) + row.b) >= threshold;
  }

 private:
  // Multiplications and shifts of the low-bias hash of Wellons' hash-prospector.
  NANOTRON_FUNCTION static std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0x735a2d97u;
    return x ^ (x >> 15);
  }
};

/// rate: p in [0, 1). layer: its number in the model, -1 before the first one.
inline RandomMask random_mask(double rate, MaskSite site, index_t layer, std::uint64_t seed) {
  return {.threshold = static_cast<std::uint32_t>(rate * 0x1.0p32),
          .place = static_cast<std::uint32_t>(4 * (layer + 1)) + static_cast<std::uint32_t>(site),
          .seed = seed};
}

// On rows of the hidden states, whose elements are the channels.

/// Row r is the token first + r of a micro-batch, (sequences, positions of the shard). Rows after the last token are
/// padding.
struct TokenRows {
  index_t first = 0;
  SequenceShard shard{};
};

/// y = factor M x + z, and y = factor M x, rounded to T once; M: the mask divided by 1 - p. y may be z, or x.
template <class T>
void add_masked(Device& device, const RandomMask& mask, const TokenRows& tokens, double factor, MatrixRef<const T> x,
                MatrixRef<const T> z, MatrixRef<T> y);
template <class T>
void scale_masked(Device& device, const RandomMask& mask, const TokenRows& tokens, double factor, MatrixRef<const T> x,
                  MatrixRef<T> y);

}  // namespace nanotron::kernels
