// What a rank sends in a step, against formulas; what it hands over is held against the collectives by
// tests/regression.

#include <gtest/gtest.h>

#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {
namespace {

constexpr double layers = 4, hidden = 64;

deck::Config model() {
  deck::Config c;
  c.model.hidden_size = 64;
  c.model.num_hidden_layers = 4;
  c.model.num_attention_heads = 8;
  c.model.intermediate_size = 192;
  c.model.vocab_size = 256;
  c.data.sequence_length = 32;
  c.data.global_batch_size = 16;
  c.precision.compute = ScalarType::bf16;
  return c;
}

struct Traffic : comm::StepTraffic {
  double params_1d = 0.0, params_2d = 0.0;  // elements of the rank
};

Traffic traffic_of(deck::Config c) {
  trainer::resolve(c, deck::grid_size(c.parallel));
  comm::ProcessGrid grid = comm::ProcessGrid::planned(comm::shape_of(c), {});
  const model::ParameterTable table = model::parameter_table_of(transformer_setup(c, grid));
  return {plan_step(c, {}).traffic, static_cast<double>(table.params_1d.size()),
          static_cast<double>(table.size - table.params_1d.size())};
}

TEST(SentTraffic, AnAllReduceIsAReduceScatterAndAGather) {
  deck::Config c = model();
  c.parallel.dp = 1;
  c.parallel.tp = 4;
  const Traffic whole = traffic_of(c);
  EXPECT_DOUBLE_EQ(whole.tensor_parallel.sent, 1.5 * static_cast<double>(whole.tensor_parallel.counted));
  c.parallel.tp_mode = deck::TpMode::reduce_scatter;
  c.parallel.tp_gathered_inputs = deck::GatheredInputs::keep;
  const Traffic split = traffic_of(c);
  const double norms = 1.5 * sizeof(float) * (2 * layers + 1) * hidden;  // whose gradients ranks have parts of
  EXPECT_DOUBLE_EQ(split.tensor_parallel.sent, whole.tensor_parallel.sent + norms);
}

TEST(SentTraffic, ZeroGathersWeightsInsteadOfSummingTwice) {
  deck::Config c = model();
  c.parallel.dp = 8;
  const Traffic none = traffic_of(c);
  EXPECT_DOUBLE_EQ(static_cast<double>(none.data_parallel.counted), 4.0 * (none.params_1d + none.params_2d));
  EXPECT_DOUBLE_EQ(none.data_parallel.sent, 7.0 * (none.params_1d + none.params_2d));  // 4 x 2 x 7 / 8
  c.parallel.zero_stage = 1;
  const Traffic one = traffic_of(c);
  EXPECT_DOUBLE_EQ(one.data_parallel.sent, 7.0 * one.params_1d + (4.0 + 2.0) * 7.0 / 8.0 * one.params_2d);
  c.parallel.zero_stage = 2;  // two micro-batches
  const Traffic two = traffic_of(c);
  EXPECT_DOUBLE_EQ(two.data_parallel.sent, 7.0 * two.params_1d + (2 * 4.0 + 2.0) * 7.0 / 8.0 * two.params_2d);
  c.parallel.zero_size = 4;
  c.parallel.zero_stage = 1;
  const Traffic hybrid = traffic_of(c);  // between the two groups of 4 a quarter is all-reduced: 4 x 2 / 2
  EXPECT_DOUBLE_EQ(hybrid.data_parallel.sent,
                   7.0 * hybrid.params_1d + ((4.0 + 2.0) * 3.0 / 4.0 + 4.0 / 4.0) * hybrid.params_2d);
}

TEST(SentTraffic, MessagesAreSentAndWhatStaysIsNot) {
  deck::Config c = model();
  c.parallel.dp = 1;
  c.parallel.pp = 2;
  const Traffic stages = traffic_of(c);
  EXPECT_GT(stages.pipeline.counted, 0);
  EXPECT_EQ(stages.pipeline.sent, static_cast<double>(stages.pipeline.counted));
  c.parallel.pp = 1;
  c.parallel.cp = 2;
  const Traffic ring = traffic_of(c);
  EXPECT_GT(ring.context_parallel.counted, 0);
  EXPECT_EQ(ring.context_parallel.sent, static_cast<double>(ring.context_parallel.counted));
  c.parallel.cp_mode = deck::CpMode::all_to_all;
  const Traffic traded = traffic_of(c);
  EXPECT_DOUBLE_EQ(2.0 * traded.context_parallel.sent, static_cast<double>(traded.context_parallel.counted));
  c.parallel.cp = 1;
  c.parallel.dp = 4;
  c.parallel.ep = 4;
  c.model.moe.num_experts = 4;
  const Traffic experts = traffic_of(c);
  EXPECT_GT(experts.expert_parallel.counted, 0);
  EXPECT_DOUBLE_EQ(experts.expert_parallel.sent, 0.75 * static_cast<double>(experts.expert_parallel.counted));
}

}  // namespace
}  // namespace nanotron::trainer
