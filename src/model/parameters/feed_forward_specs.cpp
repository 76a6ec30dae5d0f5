#include <cmath>

#include "table_builder.hpp"

#include "nanotron/base/elementary/hyperbolic.hpp"
#include "nanotron/base/elementary/logarithm.hpp"

namespace nanotron::model::detail {
namespace {

Projections first_projections(const deck::ModelConfig& m) {
  return m.is_gated() ? gate_and_up() : Projections{"up_proj"};
}

// Scalars a of each layer with softplus(a) = 0.8 and 0.8 - 0.5, transformers' initial values. Each tensor-parallel rank
// has a part of the columns that their gradients are sums over. partial: backward does not add these parts.
void add_xielu(TableBuilder& build, bool partial) {
  const auto scalar = [&](const char* name, double softplus) {
    build.scalar_1d(std::string("model/layers/mlp/act_fn/") + name, logarithm(exponential_minus_one(softplus)),
                    partial);
    build.align();
  };
  scalar("alpha_p", 0.8);
  scalar("alpha_n", 0.8 - 0.5);
}

}  // namespace

const Projections& gate_and_up() {
  static const Projections names{"gate_proj", "up_proj"};
  return names;
}

void add_mlp(TableBuilder& build, const std::string& prefix, const Projections& first, index_t hidden, index_t width,
             const Range& local) {
  const Held f = exclusively(local);
  for (const std::string& name : first) {
    build.matrix(prefix + name + "/weight", width, hidden, Partition::column_parallel, f, Role::hidden);
  }
  build.align();
  build.matrix(prefix + "down_proj/weight", hidden, width, Partition::row_parallel, f, Role::residual);
}

void add_dense_1d(TableBuilder& build, const deck::ModelConfig& m, const ParameterTable& table) {
  if (m.hidden_act == deck::HiddenAct::xielu) add_xielu(build, table.layout.tensor_shards == 0);
  if (!m.mlp_bias) return;
  const std::string mlp = "model/layers/mlp/";
  for (const std::string& name : first_projections(m)) {
    build.bias(mlp + name + "/bias", m.intermediate_size, exclusively(table.intermediate));
  }
  build.align();
  build.whole_1d(mlp + "down_proj/bias", m.hidden_size, Initial::zeros, false);
  build.align();
}

void add_dense(TableBuilder& build, const deck::ModelConfig& m, const ParameterTable& table) {
  add_mlp(build, "model/layers/mlp/", first_projections(m), m.hidden_size, m.intermediate_size, table.intermediate);
}

}  // namespace nanotron::model::detail
