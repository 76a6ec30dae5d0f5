// Muon (Jordan et al. 2024) for the 2-D parameters of the layers, AdamW for 1-D parameters, embedding and head. With O
// the orthogonalised momentum of a whole logical matrix (kernels/optim/muon.hpp), however it is sharded:
//
//   p = (1 - learning_rate weight_decay) p - learning_rate 0.2 sqrt(max(rows, columns)) O
//
// (the second term times model::muon_rate_factor, which is 1 without mup). The factor 0.2 sqrt(...) brings the root
// mean square of an update to that of AdamW, about 0.2, so that learning rate and weight decay carry over (Liu et al.
// 2025, "Muon is scalable for LLM training", section 2.2).

#include "nanotron/kernels/optim/muon.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/model/parameters/parametrization.hpp"
#include "optim/host_states/host_states.hpp"
#include "optim/matrices/matrix_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
namespace {

constexpr double update_size = 0.2;  // root mean square, as of AdamW's update

// FLOPs of the GEMMs of an orthogonalisation, up to a constant factor.
double work_of(index_t n_rows, index_t n_columns) {
  const auto rows = static_cast<double>(n_rows), columns = static_cast<double>(n_columns);
  const double side = std::min(rows, columns);
  return side * side * (2.0 * std::max(rows, columns) + side);
}

template <class M>
class Muon final : public MatrixOptimizer<M> {
 public:
  using Base = MatrixOptimizer<M>;
  using Scalars = Vector<const kernels::UpdateScalars>;

  Muon(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
      : Base("muon", work_of, config, setup, arena),
        momentum_(arena.take<M>(memory_of_states(config.optimizer), this->layouts().moments.size())),
        state_({momentum_}, config.optimizer.state_memory, elements(), setup.host_bucket, arena),
        workspace_(arena.take<M>(MemoryKind::workspace, largest_workspace())) {}

  std::string name() const override { return "muon"; }
  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Scalars scalars) override {
    state_.begin(device);
    Base::update(device, weights, gradient, learning_rate, scalars);
    state_.store(device);
  }
  void finish_update(Device& device) override {
    Base::finish_update(device);
    state_.finish(device);
  }
  std::vector<Moment<M>> moments() const override {
    std::vector<Moment<M>> all = Base::moments();
    all.push_back({"momentum", Covers::hidden_matrices, this->layouts().moments, momentum_});
    return all;
  }

 private:
  // As update() goes through them.
  std::vector<SourceElements> elements() const {
    std::vector<SourceElements> all;
    for (const auto& stack : this->stacks()) {
      for (const auto& layer : stack.layers) {
        for (const auto& piece : layer)
          all.push_back({.elements = {piece.part.moments, piece.part.moments + piece.part.size()}});
      }
    }
    return all;
  }
  index_t largest_workspace() const {
    index_t most = 0;
    for (const auto& stack : this->stacks()) {
      for (const HiddenMatrix& m : stack.layout.matrices)
        most = std::max(most, kernels::orthogonalise_workspace(m.rows, m.columns));
    }
    return most;
  }
  // Nesterov momentum.
  void prepare(Device& device, const UpdatePart& part, Vector<const M> gradient, Vector<M> to,
               Scalars scalars) override {
    state_.for_each_part(
        device, {part.moments, part.moments + part.size()}, [&](const Range& moments, const auto& states) {
          const index_t first = moments.begin - part.moments;
          kernels::nesterov<M>(device, Vector<const M>(gradient.data() + first, moments.size()),
                               std::get<Vector<M>>(states.front()), Vector<M>(to.data() + first, moments.size()),
                               this->config().momentum, scalars);
        });
  }
  void compute(Device& device, const typename Base::Place&, Matrix<M> whole, Scalars) override {
    kernels::orthogonalise<M>(device, whole, workspace_, static_cast<int>(this->config().newton_schulz_steps));
  }
  typename Base::Descent descent(const HiddenMatrix& m, bool decays, double learning_rate) const override {
    const double size = update_size * std::sqrt(static_cast<double>(std::max(m.rows, m.columns)));
    return {.keep = decays ? 1.0 - learning_rate * this->config().weight_decay : 1.0,
            .rate = model::muon_rate_factor(m.fan_in_ratio) * learning_rate * size};
  }

  Vector<M> momentum_;
  StatesOfUpdate<M> state_;
  Vector<M> workspace_;
};

}  // namespace

OptimizerKind muon() {
  OptimizerKind kind = kind_of<Muon>("muon");
  kind.has_bf16_states = false;
  kind.keys = {"optimizer.momentum", "optimizer.newton_schulz_steps"};
  kind.check = [](const deck::Config& c, deck::Findings& f) { check_matrices(c, f, "Muon"); };
  return kind;
}

}  // namespace nanotron::optim
