// ranks: 1
// Labels drawn from logits: those of plain loops however the vocabulary is sharded, as often as the softmax says.

#include "nanotron/kernels/vocab/drawn_labels.hpp"

#include "nanotron/tensor/shard.hpp"
#include "support/reference/drawn_labels.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr std::uint64_t seed = 0x123456789abcull;
constexpr index_t length = 6;  // of a sequence

template <class T>
class DrawnLabels : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  // logits (rows, vocabulary), worked shard after shard, with the reductions done here. Rows begin at token `begin`.
  std::vector<std::int32_t> draw(const Array<T>& logits, const Array<std::int32_t>& labels, index_t begin, int shards) {
    const index_t rows = labels.size(), vocabulary = logits.size() / rows;
    const kernels::LabelDraw draw{seed, {.first = (index_t{1} << 33) + 5}};
    const SequenceShard whole = SequenceLayout({}, length)[0];
    Array<M> score(rows, std::numeric_limits<M>::lowest()), candidate(rows, std::numeric_limits<M>::lowest());
    std::vector<Array<M>> own, of_own;
    for (int s = 0; s < shards; ++s) {
      const Range range = shard_range(vocabulary, shards, s);
      own.emplace_back(rows), of_own.emplace_back(rows);
      const MatrixRef<const T> part(logits.data() + range.begin, rows, range.size(), vocabulary);
      kernels::draw_of_shard<T>(this->device_, draw, {begin, whole}, part, range.begin, own[s].vector(),
                                of_own[s].vector());
      this->device_.fence();
      own[s].pull();
      for (index_t r = 0; r < rows; ++r) score.host[r] = std::max(score.host[r], own[s].host[r]);
    }
    score.push();
    for (int s = 0; s < shards; ++s) {
      kernels::withdraw_candidates<M>(this->device_, own[s].read(), score.read(), of_own[s].vector());
      this->device_.fence();
      of_own[s].pull();
      for (index_t r = 0; r < rows; ++r) candidate.host[r] = std::max(candidate.host[r], of_own[s].host[r]);
    }
    candidate.push();
    kernels::write_labels<M>(this->device_, candidate.read(), labels.vector());
    this->device_.fence();
    return values_of(labels.vector());
  }
};
TYPED_TEST_SUITE(DrawnLabels, ScalarTypes);

TYPED_TEST(DrawnLabels, AreThoseOfPlainLoops) {
  using M = master_t<TypeParam>;
  constexpr index_t rows = 40, begin = 7;
  for (const index_t vocabulary : {1, 3, 131, 517}) {
    const auto logits = Array<TypeParam>::random(rows * vocabulary, 3, 2.0);
    for (const int shards : {1, 2, 3}) {
      if (shards > vocabulary) continue;
      Array<std::int32_t> labels(rows, 1);
      for (index_t r = 0; r < rows; r += 4) labels.host[r] = -1;
      labels.push();
      const std::vector<std::int32_t> drawn = this->draw(logits, labels, begin, shards);
      for (index_t r = 0; r < rows; ++r) {
        std::vector<M> of_row;
        for (index_t j = 0; j < vocabulary; ++j) of_row.push_back(static_cast<M>(logits.host[r * vocabulary + j]));
        const index_t token = begin + r;
        const auto sample = static_cast<std::uint64_t>((index_t{1} << 33) + 5 + token / length);
        const std::int32_t expected = kernels::reference::drawn_label<M>(
            seed, sample, static_cast<std::uint32_t>(token % length), of_row.data(), vocabulary);
        EXPECT_EQ(drawn[r], r % 4 == 0 ? -1 : expected) << "row " << r << ", " << vocabulary << " in " << shards;
      }
    }
  }
}

TYPED_TEST(DrawnLabels, FollowTheSoftmax) {
  constexpr index_t rows = 20000, vocabulary = 5;
  const double weights[vocabulary] = {1, 2, 4, 0.5, 0.5};
  Array<TypeParam> logits(rows * vocabulary);
  for (index_t i = 0; i < logits.size(); ++i) logits.host[i] = of<TypeParam>(std::log(weights[i % vocabulary]));
  logits.push();
  const Array<std::int32_t> labels(rows, 0);
  std::vector<double> count(vocabulary, 0.0);
  for (const std::int32_t label : this->draw(logits, labels, 0, 2)) count.at(static_cast<std::size_t>(label)) += 1.0;
  double chi2 = 0.0;
  for (index_t j = 0; j < vocabulary; ++j) {
    const double expected = rows * weights[j] / 8.0;
    chi2 += (count[j] - expected) * (count[j] - expected) / expected;
  }
  EXPECT_LT(chi2, 23.0);  // of 4 degrees of freedom: exceeded once in 8000 draws
}

}  // namespace
}  // namespace nanotron::test
