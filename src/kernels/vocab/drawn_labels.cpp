#include "nanotron/kernels/vocab/drawn_labels.hpp"

#include <cfloat>
#include <cmath>

#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

constexpr std::uint32_t labels_purpose = stream_id("drawn labels");
constexpr index_t max_labels = index_t{1} << 24;  // integers that float has

template <class M>
constexpr M none = std::is_same_v<M, double> ? M(-DBL_MAX) : M(-FLT_MAX);

// The scores of one row.
template <class T>
struct ScoreRow {
  using M = master_t<T>;

  /// f(score, label) for up to four neighbours, of one call of Philox.
  template <class F>
  NANOTRON_FUNCTION void of_four(index_t four, const F& f) const {
    const PhiloxCounter bits = philox({{position, static_cast<std::uint32_t>(four), 0, sample}}, key);
    for (int k = 0; k < 4; ++k) {
      const index_t label = 4 * four + k, column = label - begin;
      if (column < 0 || column >= columns) continue;
      const double u = (static_cast<double>(bits.word[k]) + 0.5) * 0x1.0p-32;
      f(static_cast<M>(logits[column]) + static_cast<M>(-logarithm(-logarithm(u))), label);
    }
  }

  const T* logits;
  index_t columns, begin;  // of the vocabulary
  std::uint32_t position, sample;
  PhiloxKey key;
};

template <class T>
NANOTRON_FUNCTION ScoreRow<T> score_row(const LabelDraw& draw, const TokenRows& tokens, MatrixRef<const T> logits,
                                        index_t begin, index_t r) {
  const index_t token = tokens.first + r, length = tokens.shard.length();
  const auto sample = static_cast<std::uint64_t>(draw.samples.of(token / length));
  return {.logits = logits.data + r * logits.leading,
          .columns = logits.columns,
          .begin = begin,
          .position = static_cast<std::uint32_t>(tokens.shard.position_of(token % length)),
          .sample = static_cast<std::uint32_t>(sample),
          .key = {{static_cast<std::uint32_t>(draw.seed) ^ labels_purpose,
                   static_cast<std::uint32_t>(draw.seed >> 32) ^ static_cast<std::uint32_t>(sample >> 32)}}};
}

}  // namespace

template <class T>
void draw_of_shard(Device& device, const LabelDraw& draw, const TokenRows& tokens, MatrixRef<const T> logits,
                   index_t vocab_begin, Vector<master_t<T>> score, Vector<master_t<T>> candidate) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "draw labels", reads(logits), writes(score, candidate));
  NANOTRON_REQUIRE(vocab_begin + logits.columns <= max_labels, "labels are drawn from {} at most", max_labels);
  NANOTRON_REQUIRE(draw.samples.are_known(), "labels are drawn in training alone");
  const index_t first = vocab_begin / 4, fours = (vocab_begin + logits.columns + 3) / 4 - first;
  const LabelDraw of_draw = draw;
  const TokenRows of_tokens = tokens;
  for_each_row(
      device, "draw labels", logits.rows, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const ScoreRow<T> scores = score_row<T>(of_draw, of_tokens, logits, vocab_begin, r);
        const M top = row.template max<M>(fours, none<M>, [=](const index_t i) {
          M most = none<M>;
          scores.of_four(first + i, [&](const M value, index_t) { most = most < value ? value : most; });
          return most;
        });
        const M label = row.template max<M>(fours, none<M>, [=](const index_t i) {
          M smallest = none<M>;
          scores.of_four(first + i, [&](const M value, const index_t j) {
            if (value >= top && smallest < static_cast<M>(-j)) smallest = static_cast<M>(-j);
          });
          return smallest;
        });
        row.for_each(1, [=](index_t) {
          score[r] = top;
          candidate[r] = label;
        });
      });
}

template <class M>
void withdraw_candidates(Device& device, Vector<const M> own, Vector<const M> score, Vector<M> candidate) {
  const KernelRegion kernel(device, "withdraw candidates", reads(own, score), writes(candidate));
  for_each_element(
      device, "withdraw candidates", static_cast<index_t>(candidate.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        if (own[i] < score[i]) candidate[i] = none<M>;
      });
}

template <class M>
void write_labels(Device& device, Vector<const M> candidate, Vector<std::int32_t> labels) {
  const KernelRegion kernel(device, "write labels", reads(candidate), writes(labels));
  for_each_element(
      device, "write labels", static_cast<index_t>(labels.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const M drawn = candidate[i];
        if (labels[i] >= 0) labels[i] = drawn > none<M> ? static_cast<std::int32_t>(-drawn) : 0;  // logits that are NaN
      });
}

#define NANOTRON_INSTANTIATE(T)                                                                            \
  template void draw_of_shard<T>(Device&, const LabelDraw&, const TokenRows&, MatrixRef<const T>, index_t, \
                                 Vector<master_t<T>>, Vector<master_t<T>>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(M)                                                               \
  template void withdraw_candidates<M>(Device&, Vector<const M>, Vector<const M>, Vector<M>); \
  template void write_labels<M>(Device&, Vector<const M>, Vector<std::int32_t>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
