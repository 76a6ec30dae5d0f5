// ranks: 1 2 3 4
// Adasum against its definition on vectors, for any number of replicas.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/reduction/gram.hpp"
#include "nanotron/parallel/reducers/adasum/adasum_plan.hpp"
#include "support/differences.hpp"
#include "unit/parallel/reducers/reducer_subject.hpp"

namespace nanotron::parallel {
namespace {

using Values = std::vector<double>;

double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Of vectors, by the definition.
Values adasum(const std::vector<Values>& g) {
  if (g.size() == 1) return g[0];
  const auto middle = g.begin() + static_cast<std::ptrdiff_t>((g.size() + 1) / 2);
  const Values a = adasum({g.begin(), middle}), b = adasum({middle, g.end()});
  const double product = dot(a, b);
  const double of_a = dot(a, a) > 0 ? 1 - product / (2 * dot(a, a)) : 1,
               of_b = dot(b, b) > 0 ? 1 - product / (2 * dot(b, b)) : 1;
  Values sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = of_a * a[i] + of_b * b[i];
  return sum;
}

// By way of the inner products.
Values combined(const std::vector<Values>& g) {
  Values gram, coefficients(g.size());
  for (std::size_t j = 0; j < g.size(); ++j) {
    for (std::size_t i = 0; i <= j; ++i) gram.push_back(dot(g[i], g[j]));
  }
  adasum_coefficients(gram, coefficients);
  Values sum(g[0].size(), 0.0);
  for (std::size_t r = 0; r < g.size(); ++r) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += coefficients[r] * g[r][i];
  }
  return sum;
}

std::vector<Values> random_vectors(int count, std::size_t size) {
  std::vector<Values> g(static_cast<std::size_t>(count), Values(size));
  for (int r = 0; r < count; ++r) {  // something in common, so that products matter
    for (std::size_t i = 0; i < size; ++i) g[r][i] = normal(5, 1, i) + normal(6, static_cast<std::uint32_t>(r), i);
  }
  return g;
}

TEST(Coefficients, AreThoseOfTheDefinition) {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    const std::vector<Values> g = random_vectors(replicas, 50);
    EXPECT_LT(test::largest_difference(combined(g), adasum(g)), 1e-12) << replicas;
  }
}

TEST(Coefficients, OfEqualGradientsGiveOneOfThem) {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    const std::vector<Values> g(static_cast<std::size_t>(replicas), random_vectors(1, 20)[0]);
    EXPECT_LT(test::largest_difference(combined(g), g[0]), 1e-13) << replicas;
  }
}

TEST(Coefficients, OfOrthogonalGradientsGiveTheirSum) {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    std::vector<Values> g(static_cast<std::size_t>(replicas), Values(9, 0.0));
    Values sum(9, 0.0);
    for (int r = 0; r < replicas; ++r) g[r][r] = sum[r] = 1.0 + r;
    EXPECT_EQ(combined(g), sum) << replicas;
  }
}

// A gradient of zero, one that the sum of others cancels, and one that is not a number.
TEST(Coefficients, OfGradientsWithoutADirection) {
  std::vector<Values> g = random_vectors(4, 30);
  const Values zero(30, 0.0);
  g[2] = zero;
  EXPECT_LT(test::largest_difference(combined(g), adasum(g)), 1e-12);
  EXPECT_EQ(combined({zero, zero, zero}), zero);
  g = random_vectors(3, 30);
  for (std::size_t i = 0; i < 30; ++i) g[1][i] = -g[0][i];
  EXPECT_LT(test::largest_difference(combined(g), g[2]), 1e-12) << "what cancels takes no part";
  g[0][7] = std::nan("");
  EXPECT_TRUE(std::isnan(combined(g)[3]));
}

TEST(Shards, CoverTheSpace) {
  for (const index_t size : {1, 5, 64, 1000}) {
    for (const int replicas : {1, 2, 3, 7}) {
      index_t next = 0;
      for (int r = 0; r < replicas; ++r) {
        EXPECT_EQ(combined_range(size, replicas, r).begin, next);
        next = combined_range(size, replicas, r).end;
        EXPECT_LE(combined_range(size, replicas, r).size(), combined_size(size, replicas));
      }
      EXPECT_EQ(next, size);
    }
  }
}

class AdasumSums : public testing::Test {
 protected:
  AdasumSums() { config_.parallel.gradient_sum = deck::GradientRule::adasum; }

  index_t size() { return subject().table().size; }

  // Zero between tensors, as there.
  Values gradient_of(int replica) {
    Values g(static_cast<std::size_t>(size()), 0.0);
    for (const AdasumTensor& t : adasum_tensors(subject().table())) {
      for (index_t i = t.local.begin; i < t.local.end; ++i) {
        const auto at = static_cast<std::uint64_t>(i);
        g[static_cast<std::size_t>(i)] = 1e-3 * (normal(3, 1, at) + normal(4, static_cast<std::uint32_t>(replica), at));
      }
    }
    return g;
  }

  test::ReducerSubject& subject() {
    if (!subject_) subject_.emplace(config_, grid_, device_);
    return *subject_;
  }
  Values through(const Values& gradient) { return subject().through(gradient); }

  comm::ProcessGrid grid_{
      comm::Communicator::duplicate(test::world()), {.dp = test::ranks()}, test::device_transport()};
  comm::Group& replicas_ = grid_.data_parallel();
  Timers timers_;
  Device device_{timers_};
  deck::Config config_ = test::ReducerSubject::config(replicas_.size());
  std::optional<test::ReducerSubject> subject_;
};

TEST_F(AdasumSums, AreTakenTensorByTensor) {
  std::vector<Values> all;
  for (int r = 0; r < replicas_.size(); ++r) all.push_back(gradient_of(r));
  const Values ours = through(all[static_cast<std::size_t>(replicas_.rank())]);
  Values expected(static_cast<std::size_t>(size()), 0.0);
  for (const AdasumTensor& t : adasum_tensors(subject().table())) {
    std::vector<Values> of_tensor;
    for (const Values& g : all) of_tensor.emplace_back(g.begin() + t.local.begin, g.begin() + t.local.end);
    const Values sum = adasum(of_tensor);
    for (std::size_t i = 0; i < sum.size(); ++i)
      expected[static_cast<std::size_t>(t.local.begin) + i] = replicas_.size() * sum[i];
  }
  EXPECT_LT(test::largest_difference(ours, expected), 1e-15 * replicas_.size());
  Values of_others = ours;
  MPI_Bcast(of_others.data(), static_cast<int>(of_others.size()), MPI_DOUBLE, 0, test::world());
  EXPECT_EQ(ours, of_others) << "replicas keep the same bits";
}

TEST_F(AdasumSums, OfEqualGradientsAreTheirSum) {
  const Values mine = gradient_of(0), ours = through(mine);
  for (std::size_t i = 0; i < mine.size(); ++i) ASSERT_NEAR(ours[i], replicas_.size() * mine[i], 1e-16) << i;
}

TEST_F(AdasumSums, ShowWhatIsNotFinite) {
  Values mine = gradient_of(replicas_.rank());
  const auto at = static_cast<std::size_t>(adasum_tensors(subject().table()).back().local.begin);
  if (replicas_.rank() == replicas_.size() - 1) mine[at] = INFINITY;
  EXPECT_FALSE(std::isfinite(through(mine)[at]));
}

}  // namespace
}  // namespace nanotron::parallel
