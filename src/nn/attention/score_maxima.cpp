#include "nanotron/nn/attention/score_maxima.hpp"

#include <limits>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::nn {
namespace {

index_t layers_with_maxima(const deck::Config& config) {
  return config.optimizer.qk_clip > 0.0 ? deck::stored_layers(config.model) : 0;
}

}  // namespace

ScoreMaxima::ScoreMaxima(const deck::Config& config, comm::Group& data_parallel, comm::Group& tp, Arena& arena)
    : data_parallel_(&data_parallel),
      tp_(&tp),
      running_(arena.take<double>(MemoryKind::workspace, layers_with_maxima(config), config.model.num_attention_heads)),
      of_step_(
          arena.take<double>(MemoryKind::workspace, layers_with_maxima(config), config.model.num_attention_heads)) {}

kernels::ScoreMaxima ScoreMaxima::of_layer(index_t number) const {
  const auto heads = static_cast<index_t>(running_.extent(1));
  if (elements_of(running_) == 0) return {};
  return {running_.data() == nullptr ? nullptr : running_.data() + number * heads, heads};
}

void ScoreMaxima::take(Device& device) const {
  if (elements_of(running_) == 0) return;
  kernels::copy<double>(device, flat(running_), flat(of_step_));
  kernels::fill<double>(device, flat(running_), std::numeric_limits<double>::lowest());
  for (comm::Group* const group : {data_parallel_, tp_}) {
    comm::all_reduce<double>(*group, of_step_.data(), static_cast<std::size_t>(elements_of(of_step_)),
                             comm::ReduceOp::max, device.stream());
  }
}

comm::StepTraffic ScoreMaxima::traffic() const {
  if (elements_of(running_) == 0) return {};
  const index_t bytes = elements_of(of_step_) * static_cast<index_t>(sizeof(double));
  return {.tensor_parallel = comm::all_reduce_bytes(bytes, tp_->size()),
          .data_parallel = comm::all_reduce_bytes(bytes, data_parallel_->size())};
}

}  // namespace nanotron::nn
