// ranks: 1
#include "nanotron/model/generation/generation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nanotron/base/error.hpp"

namespace nanotron::model {
namespace {

const std::vector<double> logits{1.0, 3.0, -2.0, 3.0, 0.5, 2.0};

std::vector<std::int32_t> tokens_of(const std::vector<Candidate>& kept) {
  std::vector<std::int32_t> tokens;
  for (const Candidate& c : kept) tokens.push_back(c.token);
  return tokens;
}

double softmax(std::int32_t token, double temperature) {
  double sum = 0.0;
  for (const double l : logits) sum += std::exp(l / temperature);
  return std::exp(logits[static_cast<std::size_t>(token)] / temperature) / sum;
}

TEST(Sampling, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  const auto kept = candidates(logits, {.temperature = 0.0, .top_k = 3, .top_p = 0.1});
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].token, 1);
  for (std::uint64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(draw_token(logits, {.temperature = 0.0, .seed = position}, 0, position), 1);
  }
}

TEST(Sampling, WithoutLimitsItIsTheSoftmax) {
  for (const double temperature : {0.25, 1.0, 4.0}) {
    const auto kept = candidates(logits, {.temperature = temperature});
    ASSERT_EQ(kept.size(), logits.size());
    for (const Candidate& c : kept) EXPECT_NEAR(c.probability, softmax(c.token, temperature), 1e-15);
  }
}

TEST(Sampling, LimitsOfTheTemperature) {
  const auto cold = candidates(logits, {.temperature = 1e-300});
  EXPECT_EQ(cold[1].probability, 0.5);  // the two likeliest are equal
  EXPECT_EQ(cold[3].probability, 0.5);
  for (std::uint64_t position = 0; position < 200; ++position) {
    const auto token = draw_token(logits, {.temperature = 1e-300}, 0, position);
    EXPECT_TRUE(token == 1 || token == 3) << token;
  }
  for (const Candidate& c : candidates(logits, {.temperature = 1e12})) {
    EXPECT_NEAR(c.probability, 1.0 / 6.0, 1e-11);
  }
}

TEST(Sampling, TopKKeepsTheLikeliestAndTheLowerIdOfEquals) {
  EXPECT_EQ(tokens_of(candidates(logits, {.top_k = 1})), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(tokens_of(candidates(logits, {.top_k = 3})), (std::vector<std::int32_t>{1, 3, 5}));
  EXPECT_EQ(candidates(logits, {.top_k = 100}).size(), logits.size());
  const auto kept = candidates(logits, {.top_k = 3});
  const double sum = softmax(1, 1.0) + softmax(3, 1.0) + softmax(5, 1.0);
  EXPECT_NEAR(kept[0].probability, softmax(1, 1.0) / sum, 1e-15);
  EXPECT_NEAR(kept[2].probability, softmax(5, 1.0) / sum, 1e-15);
}

TEST(Sampling, TopPKeepsTheTokenThatCrossesIt) {
  const double likeliest = softmax(1, 1.0);
  EXPECT_EQ(tokens_of(candidates(logits, {.top_p = 0.0})), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(tokens_of(candidates(logits, {.top_p = likeliest * 0.999})), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(tokens_of(candidates(logits, {.top_p = likeliest * 1.001})), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(tokens_of(candidates(logits, {.top_p = likeliest * 2.001})), (std::vector<std::int32_t>{1, 3, 5}));
  // top-p counts in what top-k has left: of two equal ones the first has half.
  EXPECT_EQ(tokens_of(candidates(logits, {.top_k = 2, .top_p = 0.49})), (std::vector<std::int32_t>{1}));
}

TEST(Sampling, DrawsFollowTheDistribution) {
  constexpr int draws = 60000;
  const Sampling sampling{.temperature = 1.3, .top_k = 5, .top_p = 0.9, .seed = 7};
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < draws; ++i) {
    ++counts[static_cast<std::size_t>(draw_token(logits, sampling, i % 3, static_cast<std::uint64_t>(i)))];
  }
  double chi_square = 0.0;
  int seen = 0;
  const auto kept = candidates(logits, sampling);
  for (const Candidate& c : kept) {
    const double expected = c.probability * draws;
    const int count = counts[static_cast<std::size_t>(c.token)];
    chi_square += (count - expected) * (count - expected) / expected;
    seen += count;
  }
  EXPECT_EQ(seen, draws);  // nothing outside of the candidates
  EXPECT_EQ(kept.size(), 4u);
  EXPECT_LT(chi_square, 16.27);  // 3 degrees of freedom, 0.1 %
}

TEST(Sampling, ADrawIsAFunctionOfSeedSampleAndPosition) {
  const std::vector<double> flat(1000, 0.0);
  const auto draws = [&](std::uint64_t seed, std::uint32_t sample) {
    std::vector<std::int32_t> tokens;
    for (std::uint64_t p = 0; p < 20; ++p) tokens.push_back(draw_token(flat, {.seed = seed}, sample, p));
    return tokens;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
}

TEST(Sampling, NumbersThatAreNoneAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& bad :
       {std::vector<double>{0.0, nan}, {nan, 0.0}, {infinity, 0.0}, {-infinity, -infinity}}) {
    for (const double temperature : {0.0, 1.0}) {
      try {
        draw_token(bad, {.temperature = temperature}, 0, 0);
        FAIL() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::numerics_error);
      }
    }
  }
  // A token that must not come is no error.
  EXPECT_EQ(draw_token(std::vector<double>{-infinity, 0.0}, {}, 0, 0), 1);
}

}  // namespace
}  // namespace nanotron::model
