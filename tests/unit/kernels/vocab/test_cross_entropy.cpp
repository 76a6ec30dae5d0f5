// ranks: 1
#include "nanotron/kernels/vocab/cross_entropy.hpp"
#include "nanotron/tensor/kernel_region.hpp"
#include "nanotron/tensor/shard.hpp"
#include "support/reference/cross_entropy.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class CrossEntropy : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  // The vocabulary cut into `shards`, worked one after the other, with the reductions done here.
  void check(index_t rows, index_t vocabulary, int shards, double spread, const kernels::LossGradient& of = {0.25}) {
    const auto logits = Array<T>::random(rows * vocabulary, 1, spread);
    Array<std::int32_t> targets(rows);
    for (index_t r = 0; r < rows; ++r) {
      targets.host[r] = r % 5 == 3 ? -1 : static_cast<std::int32_t>((r * 7919) % vocabulary);
    }
    targets.push();
    std::vector<double> loss2(rows), lse2_2(rows), gradient2(logits.host.size());
    kernels::reference::cross_entropy<T>(logits.on_host(rows, vocabulary), targets.host.data(), of, loss2.data(),
                                         lse2_2.data(), matrix_of(gradient2, rows, vocabulary));

    std::vector<Array<T>> local;
    std::vector<Array<M>> own;
    Array<M> max(rows, std::numeric_limits<M>::lowest()), sum(rows), target(rows);
    Array<M> part(rows), part_target(rows);
    for (int s = 0; s < shards; ++s) {
      const Range range = shard_range(vocabulary, shards, s);
      local.emplace_back(rows * range.size());
      for (index_t r = 0; r < rows; ++r) {
        std::copy_n(logits.host.begin() + r * vocabulary + range.begin, range.size(),
                    local.back().host.begin() + r * range.size());
      }
      local.back().push();
      own.emplace_back(2 * rows);
      kernels::cross_entropy_local_max<T>(this->device_, local[s].read(rows, range.size()), part.vector(),
                                          own[s].vector());
      this->device_.fence();
      part.pull();
      for (index_t r = 0; r < rows; ++r) max.host[r] = std::max(max.host[r], part.host[r]);
    }
    max.push();
    for (int s = 0; s < shards; ++s) {
      const Range range = shard_range(vocabulary, shards, s);
      kernels::cross_entropy_local_sum<T>(this->device_, local[s].read(rows, range.size()), targets.read(), range.begin,
                                          max.read(), own[s].read(), part.vector(), part_target.vector());
      this->device_.fence();
      part.pull(), part_target.pull();
      for (index_t r = 0; r < rows; ++r) {
        sum.host[r] += part.host[r];
        target.host[r] += part_target.host[r];
      }
    }
    sum.push(), target.push();
    Array<double> loss(rows), lse2(rows);
    kernels::cross_entropy_loss<M>(this->device_, max.read(), sum.read(), target.read(), targets.read(), loss.vector(),
                                   lse2.vector());
    std::vector<T> gradient(logits.host.size());
    for (int s = 0; s < shards; ++s) {
      const Range range = shard_range(vocabulary, shards, s);
      kernels::cross_entropy_gradient<T>(this->device_, local[s].matrix(rows, range.size()), targets.read(),
                                         range.begin, max.read(), sum.read(), of);
      this->device_.fence();
      local[s].pull();
      for (index_t r = 0; r < rows; ++r) {
        std::copy_n(local[s].host.begin() + r * range.size(), range.size(),
                    gradient.begin() + r * vocabulary + range.begin);
      }
    }
    loss.pull(), lse2.pull();
    // The logits are read exactly; l - max loses up to |l - max| roundings of M, the sum a few.
    const double tolerance = 64 * unit_roundoff<M>();
    expect_close(loss.host, loss2, tolerance);
    expect_close(lse2.host, lse2_2, tolerance);
    expect_close(gradient, gradient2, tolerance + unit_roundoff<T>(), of.scale / vocabulary);
  }
};
TYPED_TEST_SUITE(CrossEntropy, ScalarTypes);

// One pass gives the bits of the calls one by one, also with a sum in shards.
TYPED_TEST(CrossEntropy, OnePassOverTheWholeVocabulary) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 9, columns = 1003;
  for (const SumOrder& order : {SumOrder(), SumOrder({{columns, 1}}, 4, 1, 0)}) {
    auto parts = Array<T>::random(rows * columns, 1, 3.0), once = Array<T>::random(rows * columns, 1, 3.0);
    Array<std::int32_t> targets(rows);
    for (index_t r = 0; r < rows; ++r) targets.host[r] = r % 4 == 2 ? -1 : static_cast<std::int32_t>(r * 111);
    targets.push();
    Array<M> max(rows), own(2 * rows), sum(rows), target(rows);
    Array<double> loss(rows), loss_once(rows), loss_only(rows), lse2(rows), lse2_once(rows);
    const kernels::LossGradient of{.scale = 0.125, .z_scale = 0.01, .cap = 20.0};
    kernels::cross_entropy_whole_loss<T>(this->device_, once.read(rows, columns), targets.read(), loss_only.vector(),
                                         order);
    kernels::cross_entropy_whole<T>(this->device_, once.matrix(rows, columns), targets.read(), of, loss_once.vector(),
                                    lse2_once.vector(), order);
    kernels::cross_entropy_local_max<T>(this->device_, parts.read(rows, columns), max.vector(), own.vector(), order);
    kernels::cross_entropy_local_sum<T>(this->device_, parts.read(rows, columns), targets.read(), 0, max.read(),
                                        own.read(), sum.vector(), target.vector(), order);
    kernels::cross_entropy_loss<M>(this->device_, max.read(), sum.read(), target.read(), targets.read(), loss.vector(),
                                   lse2.vector());
    kernels::cross_entropy_gradient<T>(this->device_, parts.matrix(rows, columns), targets.read(), 0, max.read(),
                                       sum.read(), of);
    this->device_.fence();
    parts.pull(), once.pull(), loss.pull(), loss_once.pull(), loss_only.pull(), lse2.pull(), lse2_once.pull();
    EXPECT_EQ(lse2_once.host, lse2.host);
    EXPECT_EQ(loss_once.host, loss.host);
    EXPECT_EQ(loss_only.host, loss.host);
    for (std::size_t i = 0; i < parts.host.size(); ++i) {
      ASSERT_EQ(static_cast<double>(once.host[i]), static_cast<double>(parts.host[i])) << i;
    }
  }
}

// A row with a weight has the gradient of one with so much more scale, also where the weight is negative.
TYPED_TEST(CrossEntropy, WeightsOfRows) {
  using T = TypeParam;
  const index_t rows = 6, columns = 301;
  auto logits = Array<T>::random(rows * columns, 1, 3.0);
  const auto before = logits.host;
  Array<std::int32_t> targets(rows);
  for (index_t r = 0; r < rows; ++r) targets.host[r] = r == 4 ? -1 : static_cast<std::int32_t>(r * 41);
  targets.push();
  const auto weights = Array<double>::random(rows, 2, 2.0);
  Array<double> loss(rows), lse2(rows);
  kernels::cross_entropy_whole<T>(this->device_, logits.matrix(rows, columns), targets.read(),
                                  {.scale = 0.5, .cap = 20.0, .row_weights = weights.read()}, loss.vector());
  this->device_.fence();
  logits.pull();
  for (index_t r = 0; r < rows; ++r) {
    double loss2 = 0.0, lse2_2 = 0.0;
    std::vector<double> gradient2(columns);
    const std::vector<T> row(logits.host.begin() + r * columns, logits.host.begin() + (r + 1) * columns);
    kernels::reference::cross_entropy<T>({before.data() + r * columns, 1, columns}, targets.host.data() + r,
                                         {.scale = 0.5 * weights.host[r], .cap = 20.0}, &loss2, &lse2_2,
                                         matrix_of(gradient2, 1, columns));
    expect_close(row, gradient2, 64 * unit_roundoff<master_t<T>>() + unit_roundoff<T>(), 0.5 / columns);
  }
}

// Passes over memory of the logits, (reads, writes), that the calls count.
template <class T>
std::pair<double, double> passes(Processor processor, const SumOrder& order, bool whole) {
  constexpr index_t rows = 8, columns = 50000;
  Timers timers;
  WorkList work;
  Device device = Device::planning(timers, GemmMode::library, processor, &work);
  using M = master_t<T>;
  const Matrix<T> logits(nullptr, rows, columns);
  const Vector<const std::int32_t> targets(nullptr, rows);
  const Vector<M> of_rows(nullptr, rows), own(nullptr, processor == Processor::gpu ? 2 * rows : 0);
  const Vector<double> loss(nullptr, rows);
  if (whole) {
    kernels::cross_entropy_whole<T>(device, logits, targets, {.scale = 1.0}, loss, {}, order);
  } else {
    kernels::cross_entropy_local_max<T>(device, logits, of_rows, own, order);
    kernels::cross_entropy_local_sum<T>(device, logits, targets, 0, of_rows, own, of_rows, of_rows, order);
    kernels::cross_entropy_gradient<T>(device, logits, targets, 0, of_rows, of_rows, {.scale = 1.0});
  }
  double read = 0, written = 0;
  for (const WorkRow& row : work.rows()) {
    read += static_cast<double>(row.calls) * row.work.read;
    written += static_cast<double>(row.calls) * row.work.written;
  }
  return {std::round(read / bytes_of(logits)), std::round(written / bytes_of(logits))};
}

TYPED_TEST(CrossEntropy, ReadsTheLogitsTwiceAndWritesThemOnceOnAGpu) {
  using T = TypeParam;
  const SumOrder one_rank_of_four({{50000, 1}}, 4, 4, 0);
  for (const bool whole : {true, false}) {
    EXPECT_EQ(passes<T>(Processor::gpu, {}, whole), std::pair(2.0, 1.0));
    EXPECT_EQ(passes<T>(Processor::gpu, one_rank_of_four, whole), std::pair(3.0, 1.0));
  }
  EXPECT_EQ(passes<T>(Processor::cpu, {}, true), std::pair(1.0, 1.0));  // a core's cache holds a row
  EXPECT_EQ(passes<T>(Processor::cpu, {}, false), std::pair(3.0, 1.0));
}

TYPED_TEST(CrossEntropy, WholeVocabulary) { this->check(13, 1000, 1, 2.0); }
TYPED_TEST(CrossEntropy, ShardsOfUnequalWidth) { this->check(11, 257, 3, 2.0); }
TYPED_TEST(CrossEntropy, ShardsWithoutColumns) { this->check(6, 3, 5, 1.0); }
TYPED_TEST(CrossEntropy, LargeLogits) { this->check(7, 300, 2, 10.0); }
TYPED_TEST(CrossEntropy, ZLoss) { this->check(11, 257, 3, 2.0, {.scale = 0.25, .z_scale = 0.03}); }
TYPED_TEST(CrossEntropy, SlopeOfASoftCap) {
  this->check(11, 257, 2, 2.0, {.scale = 0.25, .z_scale = 0.03, .cap = 9.0});
}

// c tanh(x / c) with the bound of c roundings: x / c, tanh and the product.
TYPED_TEST(CrossEntropy, SoftCap) {
  using T = TypeParam;
  const index_t rows = 7, columns = 1003;
  const double cap = 3.0;
  for (const double spread : {1e-3, 1.0, 100.0}) {
    auto x = Array<T>::random(rows * columns, 1, spread);
    std::vector<double> capped;
    for (const T& value : x.host) capped.push_back(cap * std::tanh(static_cast<double>(value) / cap));
    kernels::cap_logits<T>(this->device_, x.matrix(rows, columns), cap);
    this->device_.fence();
    x.pull();
    expect_close(x.host, capped, 6 * unit_roundoff<master_t<T>>() + unit_roundoff<T>(), 0.0);
  }
}

TEST(CrossEntropyReference, GradientIsTheFiniteDifference) {
  for (const double cap : {0.0, 1.5}) {
    const auto x = Array<double>::random(3 * 6, 1);
    const std::vector<std::int32_t> targets{2, -1, 5};
    const kernels::LossGradient of{.scale = 0.5, .z_scale = 0.2, .cap = cap};
    std::vector<double> loss(3), lse2(3), gradient(18), unused(18);
    const auto logits = [&](std::vector<double> l) {
      for (double& value : l) value = cap > 0.0 ? cap * std::tanh(value / cap) : value;
      return l;
    };
    const std::vector<double> at = logits(x.host);
    kernels::reference::cross_entropy<double>({at.data(), 3, 6}, targets.data(), of, loss.data(), lse2.data(),
                                              matrix_of(gradient, 3, 6));
    const auto total = [&](const std::vector<double>& moved) {
      const std::vector<double> l = logits(moved);
      kernels::reference::cross_entropy<double>({l.data(), 3, 6}, targets.data(), of, loss.data(), lse2.data(),
                                                matrix_of(unused, 3, 6));
      return 0.5 * (loss[0] + loss[1] + loss[2]) + 0.2 * (lse2[0] + lse2[1] + lse2[2]);
    };
    expect_close(gradient, finite_difference(x.host, total), 1e-8);
  }
}

}  // namespace
}  // namespace nanotron::test
