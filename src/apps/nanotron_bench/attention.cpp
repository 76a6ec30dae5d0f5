#include "attention.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/nn/attention/score_map.hpp"
#include "nanotron/nn/dropout/dropout.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr index_t max_tokens = 16384;

kernels::AttentionShape with(kernels::AttentionShape shape, kernels::BackwardAlgorithm algorithm) {
  shape.backward = algorithm;
  return shape;
}

// As many sequences as make max_tokens.
std::vector<kernels::AttentionShape> shapes_of(const Bench& bench) {
  const kernels::AttentionShape of_deck = attention_shape(bench);
  if constexpr (built_for == Processor::cpu) return {of_deck};
  std::vector<kernels::AttentionShape> shapes;
  for (const index_t head_dim : {64, 128}) {
    for (index_t length = 2048; length <= max_tokens; length *= 2) {
      shapes.push_back(of_deck);
      kernels::AttentionShape& shape = shapes.back();
      shape.head_dim = head_dim;
      shape.query_length = shape.key_length = length;
      shape.batch = max_tokens / length;
    }
  }
  return shapes;
}

}  // namespace

template <class T>
AttentionBench<T>::AttentionBench(Device& device, const kernels::AttentionShape& shape)
    : device_(device),
      shape_(shape),
      qkv_(tokens() * (query_width() + 2 * key_width())),
      gradient_(tokens() * (query_width() + 2 * key_width())),
      out_(tokens() * query_width()),
      dout_(tokens() * query_width()),
      lse_(tokens() * shape.query_heads),
      workspace_("attention", std::max(kernels::attention_workspace_bytes<T>(
                                           with(shape, kernels::BackwardAlgorithm::fastest), built_for),
                                       kernels::attention_workspace_bytes<T>(
                                           with(shape, kernels::BackwardAlgorithm::deterministic), built_for))) {}

template <class T>
double AttentionBench<T>::forward_flops() const {
  return 2.0 * static_cast<double>(tokens() * query_width()) * static_cast<double>(shape_.query_length + 1);
}

template <class T>
typename AttentionBench<T>::Columns AttentionBench<T>::columns_of(const Buffer<T>& all) const {
  const MatrixRef<T> whole = all.matrix(tokens(), query_width() + 2 * key_width());
  return {whole.column_block(0, query_width()), whole.column_block(query_width(), key_width()),
          whole.column_block(query_width() + key_width(), key_width())};
}

template <class T>
void AttentionBench<T>::forward() {
  const Columns in = columns_of(qkv_);
  kernels::attention_forward<T>(device_, shape_, in.q, in.k, in.v, out_.matrix(tokens(), query_width()),
                                lse_.vector(tokens() * shape_.query_heads),
                                Vector<std::byte>(workspace_.data(), workspace_.size()));
}

template <class T>
void AttentionBench<T>::backward(kernels::BackwardAlgorithm algorithm) {
  const Columns in = columns_of(qkv_), d = columns_of(gradient_);
  kernels::attention_backward<T>(device_, with(shape_, algorithm), in.q, in.k, in.v,
                                 out_.matrix(tokens(), query_width()), dout_.matrix(tokens(), query_width()),
                                 lse_.vector(tokens() * shape_.query_heads), d.q, d.k, d.v,
                                 Vector<std::byte>(workspace_.data(), workspace_.size()));
}

kernels::AttentionShape attention_shape(const Bench& bench) {
  const model::LocalSizes s = bench.sizes();
  const model::ParameterTable table = bench.table();
  const index_t length = bench.config.data.sequence_length;
  return {.batch = s.tokens / length,
          .query_length = length,
          .key_length = length,
          .query_heads = s.query_heads,
          .key_heads = s.key_heads,
          .head_dim = bench.config.model.head_dim,
          .first_query_head = table.heads.query.begin,
          .first_key_head = table.heads.key.begin,
          .group = table.heads.group,
          .scores = nn::score_map(bench.config.model),
          .mask = nn::probability_mask_in_training(bench.config.model)};
}

std::vector<deck::AttentionRate> attention_rates(const Bench& bench, ScalarType type) {
  std::vector<deck::AttentionRate> rates;
  with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
    Timers timers;
    Device device(timers);
    const Kokkos::View<std::byte*, MemorySpace> memory("gemm_workspace", gemm_workspace_bytes<T>(bench.sizes()));
    device.set_gemm_workspace(Vector<std::byte>(memory.data(), memory.size()));
    for (const kernels::AttentionShape& shape : shapes_of(bench)) {
      AttentionBench<T> attention(device, shape);
      const auto rate = [&](double flops, const auto& work) {
        return flops / seconds_of(device, bench.grid.world(), bench.options.seconds / 4, work).median;
      };
      const auto backward = [&](kernels::BackwardAlgorithm algorithm) {
        return rate(attention.backward_flops(), [&] { attention.backward(algorithm); });
      };
      const double ordinary = backward(kernels::BackwardAlgorithm::fastest);
      rates.push_back({.head_dim = static_cast<double>(shape.head_dim),
                       .length = static_cast<double>(shape.query_length),
                       .forward = rate(attention.forward_flops(), [&] { attention.forward(); }),
                       .backward = ordinary,
                       .deterministic = built_for == Processor::cpu
                                            ? ordinary
                                            : backward(kernels::BackwardAlgorithm::deterministic)});
    }
  });
  return rates;
}

NANOTRON_INSTANTIATE_CLASS(AttentionBench)

}  // namespace nanotron::apps::bench
