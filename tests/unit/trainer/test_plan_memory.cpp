// What the arena is planned for, by kind of memory and grid.
#include <gtest/gtest.h>

#include "nanotron/comm/communicator.hpp"
#include "nanotron/trainer/training_state.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

class PlanMemory : public testing::Test {
 protected:
  PlanMemory() {
    config_.precision.compute = ScalarType::fp32;
    config_.model.hidden_size = 256;
    config_.model.num_hidden_layers = 6;
    config_.model.num_attention_heads = 8;
    config_.model.num_key_value_heads = 8;
    config_.model.head_dim = 32;
    config_.model.intermediate_size = 768;
    config_.model.vocab_size = 1024;
    config_.data.sequence_length = 512;
    config_.data.micro_batch_size = 2;
    config_.data.global_batch_size = 2;
  }

  double activations(int tp, deck::TpMode mode) {
    config_.parallel.tp_mode = mode;
    const MemoryPlan plan = plan_memory(config_, {.shape = {.tp = tp}, .at = {}}, group_);
    return static_cast<double>(plan.bytes[static_cast<std::size_t>(MemoryKind::activations)]);
  }

  deck::Config config_;
  comm::Group group_{comm::Communicator::duplicate(test::world()), comm::Transport::mpi};
};

// A split stream cuts all that layers keep; a whole one only what lies inside of the blocks (Korthikanti et al.
// 2022, equations 2 and 4), in elements of T for a token and layer: 4 h outside, 4 h + 3 f inside.
TEST_F(PlanMemory, ASplitStreamTakesOneTpthOfTheActivations) {
  const double alone = activations(1, deck::TpMode::all_reduce);
  const double h = 256, f = 768, outside = 4 * h, inside = 4 * h + 3 * f;
  for (const int tp : {2, 4, 8}) {
    EXPECT_NEAR(activations(tp, deck::TpMode::reduce_scatter) / alone, 1.0 / tp, 0.01 / tp) << tp;
    EXPECT_NEAR(activations(tp, deck::TpMode::all_reduce) / alone, (outside + inside / tp) / (outside + inside), 0.03)
        << tp;
  }
}

}  // namespace
}  // namespace nanotron::trainer
