#include "nanotron/nn/linear/fp8_linear.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/mlp/swiglu_fp8.hpp"
#include "nanotron/nn/checks.hpp"
#include "nanotron/nn/linear/linear.hpp"

namespace nanotron::nn {
namespace {

using kernels::Fp8Matrix, kernels::fp8_padded, kernels::Fp8Scaling;

// Codes by columns of a chunk, and its scales.
template <class E>
Fp8Matrix<E> columns_of(const Fp8Columns<E>& all, const Fp8Workspace& work, index_t c, index_t width) {
  const Fp8Chunks& chunks = *work.chunks;
  Fp8Matrix<E> codes{.scaling = work.scaling};
  if (all.codes.extent(0) == 0) return codes;
  const index_t padded = chunks.padded_before(c + 1) - chunks.padded_before(c);
  codes.columns = Matrix<E>(all.codes.data() + width * chunks.padded_before(c), width, padded);
  codes.scale = codes.column_scales = all.scales.data() + chunks.scales_before(c, width, work.scaling);
  return codes;
}

// maxima: of all tokens, or empty.
template <class E>
void quantise(Device& device, Matrix<const bf16> x, const Vector<const float>& maxima, const Fp8Workspace& work,
              index_t c, const Fp8Matrix<E>& codes) {
  const Range& tokens = (*work.chunks)[c];
  NANOTRON_REQUIRE(static_cast<index_t>(x.extent(0)) == tokens.size(), "{} tokens in a chunk of {}", x.extent(0),
                   tokens.size());
  if (codes.scaling != Fp8Scaling::tensor) {
    if constexpr (std::is_same_v<E, e4m3>) kernels::quantise_parts(device, x, codes);
    return;
  }
  if (maxima.extent(0) > 0) {
    kernels::quantise<E>(device, x, Vector<const float>(maxima.data() + tokens.begin, tokens.size()), codes);
    return;
  }
  const Vector<float> computed(work.maxima.data() + tokens.begin, tokens.size());
  kernels::row_maxima<bf16>(device, x, computed);
  kernels::quantise<E>(device, x, computed, codes);
}

Matrix<const bf16> rows_of(const Matrix<const bf16>& x, const Range& rows) {
  const auto columns = static_cast<index_t>(x.extent(1));
  return Matrix<const bf16>(x.data() + rows.begin * columns, rows.size(), columns);
}

// y = x W^T, or x W^T + addend.
template <class E>
void multiply_codes(Device& device, const kernels::Fp8Operand<E>& x, const kernels::Fp8Operand<e4m3>& weight,
                    const Matrix<const bf16>& addend, const Matrix<bf16>& y) {
  if constexpr (std::is_same_v<E, e4m3>) {
    if (addend.extent(0) > 0) return kernels::gemm_fp8_add(device, x, weight, addend, MatrixRef<bf16>(y));
  }
  NANOTRON_REQUIRE(addend.extent(0) == 0, "a sum within an FP8 GEMM of gradients");
  kernels::gemm_fp8<E, bf16>(device, x, weight, 0.0, MatrixRef<bf16>(y));
}

// Codes by columns of all tokens of x.
template <class E>
void quantise_again(Device& device, const Matrix<const bf16>& x, const Fp8Workspace& work, const Fp8Columns<E>& to) {
  for (index_t c = 0; c < work.chunks->size(); ++c) {
    const Range& tokens = (*work.chunks)[c];
    if (tokens.size() == 0) continue;
    quantise<E>(device, rows_of(x, tokens), {}, work, c, columns_of(to, work, c, static_cast<index_t>(x.extent(1))));
  }
}

}  // namespace

Fp8Chunks::Fp8Chunks(std::vector<Range> chunks) : chunks_(std::move(chunks)), padded_before_(1) {
  for (const Range& chunk : chunks_) padded_before_.push_back(padded_before_.back() + fp8_padded(chunk.size()));
}

index_t Fp8Chunks::longest() const {
  index_t most = 0;
  for (const Range& chunk : chunks_) most = std::max(most, chunk.size());
  return most;
}

index_t Fp8Chunks::scales_before(index_t c, index_t width, Fp8Scaling scaling) const {
  index_t scales = 0;
  for (index_t i = 0; i < c; ++i) {
    scales += kernels::Fp8ScaleLayout(scaling, width, padded_before(i + 1) - padded_before(i)).count;
  }
  return scales;
}

// Where the codes of a chunk (tokens, width) are written. columns: of all tokens; empty: not written.
template <class G>
template <class E>
Fp8Matrix<E> Fp8Linear<G>::codes_of(const Fp8Columns<E>& columns, index_t tokens, index_t width, index_t chunk) const {
  Fp8Matrix<E> codes = columns_of(columns, work_, chunk, width);
  codes.rows = Matrix<E>(reinterpret_cast<E*>(work_.rows.data()), tokens, fp8_padded(width));
  if (codes.scale == nullptr || codes.scaling != Fp8Scaling::tensor) codes.scale = work_.scale.data();
  return codes;
}

//   y = x W^T (+ addend)        dx = dy W, with dy given or formed from the gradient of SwiGLU's output
template <class G>
void Fp8Linear<G>::multiply(Device& device, const RowGemm<bf16>& gemm, Matrix<const bf16> x, Matrix<bf16> y,
                            index_t chunk) const {
  const auto tokens = static_cast<index_t>(x.extent(0)), width = static_cast<index_t>(x.extent(1));
  if (tokens == 0) return;
  const Vector<const float> maxima = gemm.codes.maxima;
  if (gemm.op == kernels::Op::transpose) {
    const Fp8Matrix<e4m3> codes = codes_of(columns_in<e4m3>(gemm.codes.kept, gemm.codes.scales), tokens, width, chunk);
    quantise<e4m3>(device, x, maxima, work_, chunk, codes);
    return multiply_codes<e4m3>(device, codes.by_rows(), weight_.by_rows(), gemm.addend, y);
  }
  const auto codes = codes_of(quantises_gradient_again() ? Fp8Columns<G>{} : gradients(), tokens, width, chunk);
  if (gemm.swiglu_gradient.extent(0) > 0) {
    quantise_swiglu(device, gemm, x, chunk, codes);
  } else {
    quantise<G>(device, x, maxima, work_, chunk, codes);
  }
  multiply_codes<G>(device, codes.by_rows(), weight_.by_columns(), gemm.addend, y);
}

template <class G>
void Fp8Linear<G>::quantise_swiglu(Device& device, const RowGemm<bf16>& gemm, Matrix<const bf16> gate_up, index_t chunk,
                                   const Fp8Matrix<G>& codes) const {
  if constexpr (std::is_same_v<G, e5m2>) {
    const Range& rows = (*work_.chunks)[chunk];
    kernels::quantise_swiglu_backward(device, gate_up, rows_of(gemm.swiglu_gradient, rows),
                                      Vector<const float>(gemm.codes.maxima.data() + rows.begin, rows.size()), codes);
  } else {
    NANOTRON_REQUIRE(false, "the gradient of SwiGLU is not stored, but its scales are those of parts");
  }
}

template <class G>
void Fp8Linear<G>::backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x,
                                   const OperandCodes& of_x, Matrix<float> gradient) const {
  if (quantises_gradient_again()) quantise_again(device, dy, work_, gradients());
  const bool kept = of_x.kept.extent(0) > 0;
  const Fp8Columns<e4m3> inputs =
      kept ? columns_in<e4m3>(of_x.kept, of_x.scales) : columns_in<e4m3>(work_.input.codes, work_.input.scales);
  if (!kept) quantise_again(device, x, work_, inputs);
  const Fp8Chunks& chunks = *work_.chunks;
  for (index_t c = 0; c < chunks.size(); ++c) {
    if (chunks[c].size() == 0) continue;
    const auto codes_dy = columns_of(gradients(), work_, c, static_cast<index_t>(gradient.extent(0)));
    const auto codes_x = columns_of(inputs, work_, c, static_cast<index_t>(gradient.extent(1)));
    kernels::gemm_fp8<G, float>(device, codes_dy.by_columns(), codes_x.by_columns(), 1.0, MatrixRef<float>(gradient));
  }
}

template class Fp8Linear<e5m2>;
template class Fp8Linear<e4m3>;

void check_fp8(const deck::Config& c, deck::Findings& f) {
  if (c.precision.compute != ScalarType::fp8) {
    if (c.precision.fp8_scales == deck::Fp8Scales::blocks &&
        f.is_valid({"precision.compute", "precision.fp8_scales"})) {
      f.error({"precision.fp8_scales", "precision.compute"}, "fp8_scales = 'blocks' without FP8 operands of GEMMs",
              "compute = 'fp8'", "or fp8_scales = 'tensor'");
    }
    return;
  }
  deck::refuse_two_networks(c, f, "precision.compute", "compute = 'fp8'", "compute = 'bf16'");
  if (deck::attention_sizes(c.model).is_compressed && f.is_valid({"precision.compute"})) {
    f.error({"precision.compute"}, "there are no FP8 GEMMs of compressed queries, keys and values (MLA)",
            "compute = 'bf16'");
  }
  if (deck::appended_layers(c.model) > 0 && f.is_valid({"precision.compute"})) {
    f.error({"precision.compute"}, "there are no FP8 GEMMs of the projection in layers that predict later tokens",
            "compute = 'bf16'");
  }
  if (c.parallel.mlp_tile > 0 && f.is_valid({"precision.compute", "parallel.mlp_tile"})) {
    f.error({"parallel.mlp_tile", "precision.compute"},
            "FP8 codes have scales of whole micro-batches, which tiles of tokens do not", "mlp_tile = 0",
            "or compute = 'bf16'");
  }
  if (c.precision.reproducible != deck::Reproducible::layout) return;
  if (!f.is_valid({"precision.compute", "precision.reproducible"})) return;
  f.error({"precision.compute", "precision.reproducible"},
          "FP8 scales follow from the values on a rank, so that their bits depend on the grid",
          "compute = 'bf16', 'fp32' or 'fp64'", "or reproducible = 'run'");
}

}  // namespace nanotron::nn
