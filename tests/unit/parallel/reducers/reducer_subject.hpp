#pragma once

// A small model and the reducers of its gradients, over all ranks of the test as one data-parallel group.

#include <memory>
#include <optional>
#include <vector>

#include "nanotron/parallel/reducers/reducers.hpp"
#include "support/device_values.hpp"
#include "support/world.hpp"

namespace nanotron::test {

inline int ranks() {
  int size = 0;
  MPI_Comm_size(world(), &size);
  return size;
}

class ReducerSubject {
 public:
  using Values = std::vector<double>;

  ReducerSubject(const deck::Config& config, comm::ProcessGrid& grid, Device& device) {
    Arena planning = Arena::planning();
    const Objects plan(config, grid, device, planning);
    traffic = plan.reducers.traffic();
    arena_.emplace(planning.plan());
    objects_ = std::make_unique<Objects>(config, grid, device, *arena_);
    objects_->reducers.reset();
  }

  // Of so many ranks, each with one micro-batch a step.
  static deck::Config config(int ranks) {
    deck::Config c;
    c.model = {.hidden_size = 24,
               .num_hidden_layers = 2,
               .num_attention_heads = 3,
               .num_key_value_heads = 1,
               .head_dim = 6,
               .intermediate_size = 37,
               .vocab_size = 41,
               .qkv_bias = true};
    c.parallel.dp = ranks;
    c.parallel.bucket_mb = 0.002;
    c.data.global_batch_size = ranks;
    c.data.micro_batch_size = 1;
    c.data.sequence_length = 4;
    return c;
  }

  const model::ParameterTable& table() const { return objects_->model.table(); }
  parallel::Reducers<double>& reducers() { return objects_->reducers; }

  // This rank's gradients through the reducers.
  Values through(const Values& gradient) {
    const Vector<double>& g = objects_->model.parameters().gradient;
    reducers().begin_step(1);
    set_values(g, gradient);
    for (index_t source = table().sources() - 1; source >= 0; --source) {
      reducers().begin(source);
      reducers().end(source);
    }
    reducers().finish();
    return values_of(g);
  }

  comm::StepTraffic traffic;  // as planned

 private:
  struct Objects {
    Objects(const deck::Config& c, comm::ProcessGrid& grid, Device& device, Arena& arena)
        : model({.model = c.model, .sequences = 1, .length = 4, .key_length = 4}, device, arena),
          reducers(c, model, {}, grid, device, arena) {}
    model::Transformer<double> model;
    parallel::Reducers<double> reducers;
  };
  std::optional<Arena> arena_;
  std::unique_ptr<Objects> objects_;
};

}  // namespace nanotron::test
