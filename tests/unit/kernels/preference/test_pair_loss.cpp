// ranks: 1
#include "nanotron/kernels/preference/pair_loss.hpp"

#include "support/reference/pair_loss.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr index_t sequences = 3, length = 11;
constexpr double beta = 0.7;

// Chosen answers of 4, 5 and 6 positions, rejected ones to position 9; the rest is empty.
std::int32_t start_of(index_t sequence, index_t position) {
  const index_t second = 4 + sequence;
  return static_cast<std::int32_t>(position < second ? 0 : position < 9 ? second : position);
}

// All rows of these shards, one after the other, as ranks of a context-parallel group have them.
class Pairs {
 public:
  explicit Pairs(const std::vector<SequenceShard>& shards) : starts_(sequences * length), sums_(2 * sequences) {
    for (index_t i = 0; i < starts_.size(); ++i) starts_.host[i] = start_of(i / length, i % length);
    starts_.push();
    for (const SequenceShard& shard : shards) rows_.push_back({shard, length, starts_.read()});
  }

  // The loss of all pairs and the weights of all tokens (sequences, length), of losses as long.
  struct Result {
    double loss = 0.0;
    std::vector<double> weights, chosen, rejected, accuracy;
  };
  Result run(const std::vector<double>& losses, const std::vector<double>& reference) {
    Device device(timers_);
    Array<double> logs(2 * sequences);
    logs.host = reference;
    logs.push();
    std::vector<double> sums(2 * sequences, 0.0);
    for (const auto& rows : rows_) {
      const Array<double> here = local(rows, losses);
      kernels::pair_sums(device, rows, {}, here.read(), sums_.vector());
      device.fence();
      sums_.pull();
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += sums_.host[i];
    }
    sums_.host = sums;
    sums_.push();
    Result result{.weights = std::vector<double>(losses.size()),
                  .chosen = std::vector<double>(sequences, 0.0),
                  .rejected = std::vector<double>(sequences, 0.0),
                  .accuracy = std::vector<double>(sequences, 0.0)};
    for (const auto& rows : rows_) add(device, rows, {sums_.read(), logs.read(), beta}, result);
    return result;
  }

 private:
  static index_t place(const kernels::PairRows& rows, index_t i) {
    return rows.sequence_of(i) * length + rows.shard.position_of(i % rows.shard.length());
  }
  static Array<double> local(const kernels::PairRows& rows, const std::vector<double>& losses) {
    Array<double> here(sequences * rows.shard.length());
    for (index_t i = 0; i < here.size(); ++i) here.host[i] = losses[place(rows, i)];
    here.push();
    return here;
  }
  static void add(Device& device, const kernels::PairRows& rows, const kernels::PairLogs& logs, Result& result) {
    Array<double> weights(sequences * rows.shard.length(), 99.0), losses(weights.size(), 99.0);
    std::vector<Array<double>> rewards(3, Array<double>(sequences, 99.0));
    for (auto& of : rewards) of = Array<double>(sequences, 99.0);  // each its own memory
    kernels::pair_weights(device, rows, logs, weights.vector());
    kernels::pair_losses(device, rows, logs, losses.vector());
    kernels::pair_rewards(device, rows, logs, rewards[0].vector(), rewards[1].vector(), rewards[2].vector());
    device.fence();
    weights.pull(), losses.pull();
    for (auto& of : rewards) of.pull();
    for (index_t i = 0; i < weights.size(); ++i) {
      result.weights[place(rows, i)] = weights.host[i];
      result.loss += losses.host[i];
    }
    for (std::size_t s = 0; s < sequences; ++s) {
      result.chosen[s] += rewards[0].host[s];
      result.rejected[s] += rewards[1].host[s];
      result.accuracy[s] += rewards[2].host[s];
    }
  }

  Timers timers_;
  Array<std::int32_t> starts_;
  Array<double> sums_;
  std::vector<kernels::PairRows> rows_;
};

// Positions without a target have no loss: the prompt's two, and the empty ones.
std::vector<double> token_losses() {
  std::vector<double> losses = Array<double>::random(sequences * length, 3, 1.5).host;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto position = static_cast<index_t>(i % length);
    const bool is_prompt = position - start_of(static_cast<index_t>(i) / length, position) < 2;
    losses[i] = position >= 9 || is_prompt ? 0.0 : std::abs(losses[i]);
  }
  return losses;
}

std::vector<SequenceShard> shards_of(int ranks) {
  const SequenceLayout layout({ranks, 1}, length);
  std::vector<SequenceShard> shards;
  for (int r = 0; r < ranks; ++r) shards.push_back(layout[r]);
  return shards;
}

TEST(PairLoss, FollowsTheReferenceOnAnyShards) {
  const std::vector<double> losses = token_losses(), reference{-3.0, -4.0, -9.0, -2.5, -1.0, -1.5};
  for (const int ranks : {1, 2, 3}) {
    Pairs pairs(shards_of(ranks));
    const auto result = pairs.run(losses, reference);
    double loss = 0.0;
    for (index_t s = 0; s < sequences; ++s) {
      double logs[2] = {0.0, 0.0};
      for (index_t p = 0; p < 9; ++p) logs[start_of(s, p) == 0 ? 0 : 1] -= losses[s * length + p];
      const kernels::reference::Pair pair{logs[0], logs[1], reference[2 * s], reference[2 * s + 1]};
      loss += kernels::reference::pair_loss(pair, beta);
      EXPECT_NEAR(result.chosen[s], beta * (logs[0] - reference[2 * s]), 1e-14);
      EXPECT_NEAR(result.rejected[s], beta * (logs[1] - reference[2 * s + 1]), 1e-14);
      EXPECT_EQ(result.accuracy[s], result.chosen[s] > result.rejected[s] ? 1.0 : 0.0);
    }
    EXPECT_NEAR(result.loss, loss, 1e-14 * loss) << ranks;
  }
}

TEST(PairLoss, WeightsAreTheGradient) {
  Pairs pairs(shards_of(2));
  const std::vector<double> reference{-3.0, -4.0, -9.0, -2.5, -1.0, -1.5};
  std::vector<double> losses = token_losses();
  const std::vector<double> weights = pairs.run(losses, reference).weights;
  constexpr double h = 1e-5;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] == 0.0) continue;
    losses[i] += h;
    const double above = pairs.run(losses, reference).loss;
    losses[i] -= 2 * h;
    const double below = pairs.run(losses, reference).loss;
    losses[i] += h;
    EXPECT_NEAR(weights[i], (above - below) / (2 * h), 1e-9) << i;
  }
}

TEST(PairLoss, IsFiniteForAnyMargin) {
  Pairs pairs(shards_of(1));
  const std::vector<double> losses = token_losses();
  for (const double far : {1e4, -1e4}) {
    const auto result = pairs.run(losses, {far, -far, far, -far, far, -far});
    const double expected = far > 0 ? 2e4 * beta * sequences : 0.0;
    EXPECT_NEAR(result.loss, expected, 1e-3 * std::abs(expected));
    EXPECT_NEAR(result.weights.front(), far > 0 ? beta : 0.0, 1e-15);
  }
}

}  // namespace
}  // namespace nanotron::test
