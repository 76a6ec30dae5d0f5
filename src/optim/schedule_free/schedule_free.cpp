// Schedule-free AdamW (Defazio et al. 2024, "The road less scheduled", algorithm 1) for all parameters, in the order of
// operations of the authors' AdamWScheduleFreeReference. Gradients are taken at y, the master weights; the weights to
// use are x, a running average of z. With g' = gradient_scale g, at update t = 1, 2, ...
//
//   v = beta2 v + (1 - beta2) g'^2
//   z = z - learning_rate (g' / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay y)
//   x = (1 - c) x + c z               c = w_t / (w_1 + ... + w_t),  w_t = max(rate of updates 1 ... t)^2
//   y = (1 - beta1) z + beta1 x       x = y = z before the first update
//
// The rates in w are those of the deck's schedule at updates 1, 2, ...: a pure function of t, so that no scalar is a
// state. y is a function of x and z, whose bits training at y after a use of x, and a resumed run, compute again.

#include <algorithm>
#include <cmath>

#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/optim/element_update.hpp"
#include "nanotron/optim/lr_schedule.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

template <class M>
NANOTRON_FUNCTION M weights_for_gradients(M x, M z, M beta1) {
  return std::fma(beta1, x - z, z);
}

template <class M>
struct ScheduleFreeRule {
  static constexpr int states = 3;  // x, z, v
  bool is_first;
  M beta1, beta2, rest2, correction2, eps, decay, rate, share, rest;

  NANOTRON_FUNCTION M operator()(M y, M g, M (&s)[states]) const {
    const M x = is_first ? y : s[0], z = is_first ? y : s[1];
    s[2] = beta2 * s[2] + rest2 * (g * g);
    s[1] = (z - rate * decay * y) - rate * (g / (std::sqrt(s[2] / correction2) + eps));
    s[0] = rest * x + share * s[1];
    return weights_for_gradients(s[0], s[1], beta1);
  }
};

// y = weights_for_gradients(x, z)
template <class M>
void interpolate(Device& device, const Vector<M>& x, const Vector<M>& z, M beta1, const Vector<M>& y) {
  const KernelRegion kernel(device, "weights for gradients", reads(x, z), writes(y));
  const M* const average = x.data();
  const M* const last = z.data();
  M* const to = y.data();
  kernels::for_each_piece<M>(
      device, "weights for gradients", static_cast<index_t>(y.extent(0)),
      KOKKOS_LAMBDA(const kernels::Row& row, const index_t begin, const index_t count) {
        row.template for_each_chunk<M>(count, [=](const index_t at, const auto n) {
          const index_t i = begin + at;
          const auto a = kernels::load(average + i, n), b = kernels::load(last + i, n);
          kernels::store(to + i, n, [&](const int k) { return weights_for_gradients(a[k], b[k], beta1); });
        });
      });
}

namespace {

// c above, of updates in any order; in turn from 1 each takes one step.
class AverageShare {
 public:
  explicit AverageShare(const deck::Config& config)
      : rate_(config.schedule, config.optimizer.learning_rate, config.run.steps) {}

  double at(std::int64_t update) {
    if (update < update_) update_ = 0, largest_ = sum_ = 0.0;
    for (; update_ < update; ++update_) {
      largest_ = std::max(largest_, rate_(update_));
      sum_ += largest_ * largest_;
    }
    return sum_ > 0.0 ? largest_ * largest_ / sum_ : 0.0;
  }

 private:
  LrSchedule rate_;
  std::int64_t update_ = 0;
  double largest_ = 0.0, sum_ = 0.0;  // of the updates up to this one
};

template <class M>
class ScheduleFreeAdamw final : public ElementOptimizer<M> {
 public:
  ScheduleFreeAdamw(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
      : ElementOptimizer<M>({"x", "z", "exp_avg_sq"}, config, setup, arena), share_(config) {}
  std::string name() const override { return "schedule_free_adamw"; }

  std::vector<Moment<M>> moments() const override {
    std::vector<Moment<M>> all = ElementOptimizer<M>::moments();
    all.front().are_weights = true;
    return all;
  }
  void load_weights(Device& device, Vector<M> master, WeightsFor use) override {
    if (this->steps() == 0) return;
    this->for_each_stored([&](const UpdatePart& part, const std::vector<kernels::StateVector<M>>& states) {
      const Vector<M> to(master.data() + part.parameters, part.size());
      if (use == WeightsFor::use)
        kernels::copy<M>(device, std::get<Vector<M>>(states[0]), to);
      else
        interpolate<M>(device, std::get<Vector<M>>(states[0]), std::get<Vector<M>>(states[1]), beta1(), to);
    });
  }
  void take_weights(Device& device, Vector<M> master) override {
    if (this->steps() == 0) return;
    this->for_each_stored([&](const UpdatePart& part, const std::vector<kernels::StateVector<M>>& states) {
      kernels::copy<M>(device, Vector<const M>(master.data() + part.parameters, part.size()),
                       std::get<Vector<M>>(states[0]));
    });
    load_weights(device, master, WeightsFor::gradients);
  }

 private:
  void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) override {
    const deck::OptimizerConfig& c = this->config();
    const double share = share_.at(operands.update);
    const ScheduleFreeRule<M> rule{
        .is_first = operands.update == 1,
        .beta1 = beta1(),
        .beta2 = static_cast<M>(c.beta2),
        .rest2 = static_cast<M>(1.0 - c.beta2),
        .correction2 = static_cast<M>(1.0 - power(c.beta2, static_cast<double>(operands.update))),
        .eps = static_cast<M>(c.eps),
        .decay = static_cast<M>(rate.weight_decay),
        .rate = static_cast<M>(rate.learning_rate),
        .share = static_cast<M>(share),
        .rest = static_cast<M>(1.0 - share)};
    kernels::update_elements(device, "schedule-free adamw", operands, rule);
  }

  M beta1() const { return static_cast<M>(this->config().beta1); }

  AverageShare share_;
};

}  // namespace

OptimizerKind schedule_free_adamw() {
  OptimizerKind kind = kind_of<ScheduleFreeAdamw>("schedule_free_adamw");
  kind.has_bf16_states = false;  // two of them are weights
  kind.derives_weights = true;
  return kind;
}

}  // namespace nanotron::optim
