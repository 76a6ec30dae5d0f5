#include "fp8_recipe.hpp"

#include <algorithm>
#include <numeric>

#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/kernels/mlp/swiglu_fp8.hpp"
#include "nanotron/nn/linear/linear.hpp"

namespace nanotron::model {
namespace {

constexpr auto shared = MemoryKind::workspace;

bool is_dense(const LocalSizes& s) { return !s.is_routed; }

// SwiGLU where the gradient of gate | up is but an operand of FP8 GEMMs (kernels/mlp/swiglu_fp8.hpp).
class SwigluOfCodes final : public nn::Activation<bf16> {
 public:
  void forward(Device& device, Matrix<const bf16> in, Matrix<bf16> h, Vector<float> maxima) const override {
    kernels::gated_forward<bf16>(device, kernels::Swiglu(), in, h, maxima);
  }
  void backward(Device& device, Matrix<bf16> in, Matrix<const bf16> dh, Vector<float> maxima,
                Vector<float>) const override {
    kernels::swiglu_backward_maxima(device, in, dh, maxima);
  }
  nn::RowGemm<bf16> input_gradient(const nn::Linear<bf16>& first, const Vector<float>& maxima,
                                   Matrix<const bf16> dh) const override {
    return first.backward_input(maxima, dh);
  }
};

nn::Fp8Columns<std::byte> take_columns(Arena& arena, const nn::Fp8Chunks& chunks, index_t width,
                                       kernels::Fp8Scaling scaling) {
  return {arena.take<std::byte>(shared, width * chunks.padded_tokens()),
          arena.take<float>(shared, chunks.scales(width, scaling))};
}

}  // namespace

KeptOutputs Fp8Recipe::kept_outputs(const LocalSizes& s) const {
  return {.input_norm = s.is_sharded, .middle_norm = s.is_sharded || !is_dense(s), .hidden = !is_dense(s)};
}

// Codes of the inputs of linear layers that wait for backward; of hidden, which 'full' does not multiply again, only
// where they are kept.
void Fp8Recipe::take_codes(Arena& arena, MemoryKind kind, const LocalSizes& s, LayerActivations<bf16>& act) const {
  const nn::Fp8Chunks chunks(s.chunks);
  const auto take = [&](nn::OperandCodes& of, index_t width) {
    of.kept = arena.take<std::byte>(kind, width * chunks.padded_tokens());
    of.scales = arena.take<float>(kind, chunks.scales(width, scaling_));
  };
  if (!s.is_sharded) take(act.attention.of_input, s.hidden);
  take(act.attention.of_out, s.query);
  if (!is_dense(s)) return;
  nn::MlpActivations<bf16>& mlp = act.feed_forward.mlp;
  if (!s.is_sharded) take(mlp.of_input, s.hidden);
  if (kind == MemoryKind::activations) take(mlp.of_hidden, s.intermediate);
}

// From the kernel that writes a tensor to the one that quantises it. The rows of the norms are those of all tokens only
// where hidden states are replicated.
void Fp8Recipe::take_maxima(Arena& arena, const LocalSizes& s, LayerActivations<bf16>& act) const {
  if (has_parts()) return;
  if (!s.is_sharded) act.attention.of_input.maxima = arena.take<float>(shared, s.tokens);
  if (!is_dense(s)) return;
  nn::MlpActivations<bf16>& mlp = act.feed_forward.mlp;
  mlp.of_input.maxima = act.attention.of_input.maxima;
  mlp.of_hidden.maxima = mlp.gradient_maxima = arena.take<float>(shared, s.tokens);
}

void Fp8Recipe::take_workspace(Arena& arena, const LocalSizes& s, const ActivationSetup& setup) {
  const nn::Fp8Chunks& chunks = chunks_.emplace(s.chunks);
  const index_t mlp = is_dense(s) ? s.intermediate : 0, gate_up = is_dense(s) ? s.gate_up : 0;
  const index_t gradient = std::max({s.hidden, s.query + 2 * s.key, gate_up}),
                input = std::max({s.hidden, s.query, mlp});
  const index_t widest = std::max(gradient, input), rows = chunks.longest() * kernels::fp8_padded(widest);
  const bool again = setup.any_recompute() != deck::Recompute::none || s.is_sharded;
  work_ = {.chunks = &chunks,
           .scaling = scaling_,
           .gradients = setup.backward == Backward::two_parts ? nn::Fp8Gradients::quantised_again
                                                              : nn::Fp8Gradients::of_input_gradient,
           .rows = arena.take<std::byte>(shared, rows),
           .input = again ? take_columns(arena, chunks, input, scaling_) : nn::Fp8Columns<std::byte>{},
           .gradient = take_columns(arena, chunks, gradient, scaling_),
           .maxima = arena.take<float>(shared, has_parts() ? 0 : s.tokens),
           .scale = arena.take<float>(shared, kernels::Fp8ScaleLayout(scaling_, chunks.longest(), widest).count)};
}

std::size_t Fp8Recipe::gemm_workspace_bytes(const LocalSizes& s, Processor processor) const {
  const index_t chunk = nn::Fp8Chunks(s.chunks).longest();
  index_t step = 0;  // divides the rows of each chunk
  for (const Range& rows : s.chunks) step = std::gcd(step, rows.size());
  const auto of_gemm = [&](index_t m, index_t n, index_t k, index_t m_step) {
    const auto scaling = has_parts() ? kernels::Fp8Scaling::tiles : kernels::Fp8Scaling::tensor;
    return kernels::gemm_fp8_workspace_bytes(processor, {m, n, k, scaling, m_step});
  };
  // Forward, input gradient, weight gradient.
  const auto of_linear = [&](index_t out, index_t in) {
    if (out == 0 || in == 0) return std::size_t{0};
    return std::max({of_gemm(s.tokens, out, in, step), of_gemm(s.tokens, in, out, step), of_gemm(out, in, chunk, out)});
  };
  const index_t dense = is_dense(s) ? s.intermediate : 0;
  return std::max({of_linear(s.query + 2 * s.key, s.hidden), of_linear(s.hidden, s.query),
                   of_linear(dense > 0 ? s.gate_up : 0, s.hidden), of_linear(s.hidden, dense)});
}

// The gradient of gate | up is stored only where a bias or a delayed weight gradient reads it, or where its two halves
// do not begin at whole words of codes.
std::shared_ptr<const nn::Activation<bf16>> Fp8Recipe::activation(const nn::ActivationSource<bf16>& source,
                                                                  const ParameterTable& table) const {
  const bool is_read_again =
      table.contains("model/layers/mlp/up_proj/bias") || work_.gradients == nn::Fp8Gradients::quantised_again;
  const bool is_whole = table.intermediate.size() % kernels::fp8_padding == 0;
  if (source.model.hidden_act != deck::HiddenAct::silu || is_read_again || !is_whole || has_parts())
    return GemmRecipe<bf16>::activation(source, table);
  return std::make_shared<SwigluOfCodes>();
}

}  // namespace nanotron::model
