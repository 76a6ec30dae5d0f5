#include "nanotron/nn/moe/fp8_experts.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm_fp8.hpp"
#include "nanotron/nn/checks.hpp"
#include "nn/linear/rows.hpp"
#include "nn/moe/expert_pieces.hpp"

namespace nanotron::nn {
namespace {

using kernels::fp8_block, kernels::fp8_group_tiles, kernels::fp8_padded, kernels::Fp8Matrix, kernels::Fp8ScaleLayout,
    kernels::Fp8Scaling;

constexpr index_t tiled_rows = 8;  // a GEMM with scales of tiles has a multiple of these, see kernels/gemm/gemm_fp8.hpp
constexpr std::size_t alignment = 256;
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// Parts of the workspace, one after another, until the next GEMM.
class Places {
 public:
  explicit Places(const Vector<std::byte>& all) : all_(all) {}
  template <class E>
  Matrix<E> matrix(index_t rows, index_t columns) {
    return Matrix<E>(reinterpret_cast<E*>(take(static_cast<std::size_t>(rows * columns) * sizeof(E))), rows, columns);
  }
  Vector<float> floats(index_t n) {
    return Vector<float>(reinterpret_cast<float*>(take(static_cast<std::size_t>(n) * sizeof(float))), n);
  }

 private:
  std::byte* take(std::size_t bytes) {
    std::byte* const at = all_.data() + used_;
    used_ += aligned(bytes);
    NANOTRON_REQUIRE(used_ <= all_.extent(0), "{} bytes of FP8 rows in {}", used_, all_.extent(0));
    return at;
  }
  Vector<std::byte> all_;
  std::size_t used_ = 0;
};

Fp8Scaling scaling_of_rows(Fp8Scaling of_weights) {
  return of_weights == Fp8Scaling::tensor ? Fp8Scaling::tensor : Fp8Scaling::tiles;
}

// As Places gives them. groups: 1 with a library.
std::size_t bytes_of_codes(index_t rows, index_t k, Fp8Scaling scaling, index_t groups) {
  const index_t scales = groups + Fp8ScaleLayout(scaling, rows, k).count;
  return aligned(static_cast<std::size_t>(rows * k)) + aligned(static_cast<std::size_t>(scales) * sizeof(float));
}

enum class Layout { rows, columns };

template <class E>
Fp8Matrix<E> take_codes(Places& places, Layout layout, index_t high, index_t k, Fp8Scaling scaling, index_t groups) {
  Fp8Matrix<E> codes{.scaling = scaling};
  (layout == Layout::rows ? codes.rows : codes.columns) = places.matrix<E>(high, k);
  codes.scale = codes.column_scales = places.floats(groups + Fp8ScaleLayout(scaling, high, k).count).data();
  return codes;
}

/// G: the type of gradients.
template <class G>
class OfLibrary final : public ExpertLinear<bf16> {
 public:
  OfLibrary(const Fp8Experts& weights, const std::vector<Matrix<float>>& gradients, const Vector<std::byte>& workspace)
      : weights_(weights), gradients_(gradients), workspace_(workspace) {}

  void forward(Device& device, const ExpertRows& rows, Matrix<bf16> x, Matrix<bf16> y) const override {
    for_each_piece(
        rows,
        [&](std::size_t e, const Range& piece) {
          multiply<e4m3>(device, rows_of(x, piece), weights_[static_cast<index_t>(e)].by_rows(), rows_of(y, piece));
        },
        is_whole());
  }
  void backward_input(Device& device, const ExpertRows& rows, Matrix<bf16> dy, Matrix<bf16> dx) const override {
    for_each_piece(
        rows,
        [&](std::size_t e, const Range& piece) {
          multiply<G>(device, rows_of(dy, piece), weights_[static_cast<index_t>(e)].by_columns(), rows_of(dx, piece));
        },
        is_whole());
  }
  void backward_weight(Device& device, const ExpertRows& rows, Matrix<bf16> dy, Matrix<bf16> x) const override {
    for_each_piece(
        rows,
        [&](std::size_t e, const Range& piece) {
          add_weight_gradient(device, rows_of(dy, piece), rows_of(x, piece), gradients_[e]);
        },
        is_whole());
  }

  void prepare(Device& device, Matrix<bf16> x, Matrix<bf16> y) const override {
    for (index_t n = 1; n <= static_cast<index_t>(x.extent(0)); n *= 2) {
      multiply<e4m3>(device, first(x, n), weights_[0].by_rows(), first(y, n));
      multiply<G>(device, first(y, n), weights_[0].by_columns(), first(x, n));
      add_weight_gradient(device, first(y, n), first(x, n), gradients_[0]);
    }
  }

 private:
  bool has_tiles() const { return weights_.scaling != Fp8Scaling::tensor; }
  auto is_whole() const {
    return [least = has_tiles() ? tiled_rows : index_t{1}](index_t left) { return left < least; };
  }

  template <class E>
  Fp8Matrix<E> quantised(Device& device, Places& places, Layout layout, const Matrix<const bf16>& x) const {
    const auto rows = static_cast<index_t>(x.extent(0)), width = static_cast<index_t>(x.extent(1));
    const bool by_rows = layout == Layout::rows;
    const Fp8Scaling scaling = scaling_of_rows(weights_.scaling);
    const auto codes =
        take_codes<E>(places, layout, by_rows ? rows : width, fp8_padded(by_rows ? width : rows), scaling, 1);
    if constexpr (std::is_same_v<E, e4m3>) {
      if (scaling != Fp8Scaling::tensor) return kernels::quantise_parts(device, x, codes), codes;
    }
    const Vector<float> maxima = places.floats(rows);
    kernels::row_maxima<bf16>(device, x, maxima);
    kernels::quantise<E>(device, x, maxima, codes);
    return codes;
  }

  template <class E>
  void multiply(Device& device, const Matrix<const bf16>& x, const kernels::Fp8Operand<e4m3>& weight,
                const Matrix<bf16>& y) const {
    Places places(workspace_);
    const auto rows = static_cast<index_t>(x.extent(0));
    if (!has_tiles() || rows % tiled_rows == 0) return multiply<E>(device, places, x, weight, y);
    const auto wide_x = places.matrix<bf16>(tiled_rows, static_cast<index_t>(x.extent(1))),
               wide_y = places.matrix<bf16>(tiled_rows, static_cast<index_t>(y.extent(1)));
    kernels::fill<bf16>(device, flat(wide_x), 0.0);
    kernels::copy<bf16>(device, flat(x), flat(first(wide_x, rows)));
    multiply<E>(device, places, wide_x, weight, wide_y);
    kernels::copy<bf16>(device, flat(Matrix<const bf16>(first(wide_y, rows))), flat(y));
  }
  template <class E>
  void multiply(Device& device, Places& places, const Matrix<const bf16>& x, const kernels::Fp8Operand<e4m3>& weight,
                const Matrix<bf16>& y) const {
    const auto codes = quantised<E>(device, places, Layout::rows, x);
    kernels::gemm_fp8<E, bf16>(device, codes.by_rows(), weight, 0.0, MatrixRef<bf16>(y));
  }
  void add_weight_gradient(Device& device, const Matrix<const bf16>& dy, const Matrix<const bf16>& x,
                           const Matrix<float>& gradient) const {
    Places places(workspace_);
    const auto of_dy = quantised<G>(device, places, Layout::columns, dy);
    const auto of_x = quantised<e4m3>(device, places, Layout::columns, x);
    kernels::gemm_fp8<G, float>(device, of_dy.by_columns(), of_x.by_columns(), 1.0, MatrixRef<float>(gradient));
  }

  Fp8Experts weights_;
  std::vector<Matrix<float>> gradients_;
  Vector<std::byte> workspace_;
};

template <class G>
class Grouped final : public ExpertLinear<bf16> {
 public:
  Grouped(const Fp8Experts& weights, const std::vector<Matrix<float>>& gradients, const Vector<std::byte>& workspace)
      : weights_(weights), gradients_(kernels::together(gradients)), workspace_(workspace) {}

  void forward(Device& device, const ExpertRows& rows, Matrix<bf16> x, Matrix<bf16> y) const override {
    multiply<e4m3>(device, rows, x, weights_.by_rows(), y);
  }
  void backward_input(Device& device, const ExpertRows& rows, Matrix<bf16> dy, Matrix<bf16> dx) const override {
    multiply<G>(device, rows, dy, weights_.by_columns(), dx);
  }
  void backward_weight(Device& device, const ExpertRows& rows, Matrix<bf16> dy, Matrix<bf16> x) const override {
    Places places(workspace_);
    const auto of_dy = quantised<G>(device, places, Layout::columns, rows, dy);
    const auto of_x = quantised<e4m3>(device, places, Layout::columns, rows, x);
    kernels::grouped_backward_weight_fp8<G>(device, of_dy.by_columns(), of_x.by_columns(), rows.received_rows,
                                            rows.offsets, gradients_);
  }
  void prepare(Device&, Matrix<bf16>, Matrix<bf16>) const override {}

 private:
  template <class E>
  Fp8Matrix<E> quantised(Device& device, Places& places, Layout layout, const ExpertRows& plan,
                         const Matrix<const bf16>& x) const {
    const index_t rows = plan.received_rows, width = static_cast<index_t>(x.extent(1));
    const bool by_rows = layout == Layout::rows;
    const index_t k = by_rows ? fp8_padded(width) : fp8_group_tiles(rows, weights_.experts) * fp8_block;
    const auto codes =
        take_codes<E>(places, layout, by_rows ? rows : width, k, scaling_of_rows(weights_.scaling), weights_.experts);
    kernels::quantise_groups<E>(device, first(x, rows), plan.offsets, places.floats(rows), codes);
    return codes;
  }
  template <class E>
  void multiply(Device& device, const ExpertRows& rows, const Matrix<const bf16>& x,
                const kernels::Fp8GroupWeights& weights, const Matrix<bf16>& y) const {
    Places places(workspace_);
    const auto codes = quantised<E>(device, places, Layout::rows, rows, x);
    kernels::grouped_rows_fp8<E>(device, codes.by_rows(), weights, rows.offsets, first(y, rows.received_rows));
  }

  Fp8Experts weights_;
  kernels::GroupMatrices<float> gradients_;
  Vector<std::byte> workspace_;
};

class Codes final : public ExpertCodes<bf16> {
 public:
  explicit Codes(const Fp8Experts& weights) : weights_(weights) {}

  std::unique_ptr<const ExpertLinear<bf16>> linear(deck::ExpertGemms gemms, const std::vector<Matrix<float>>& gradients,
                                                   Vector<std::byte> workspace) const override {
    if (weights_.scaling == Fp8Scaling::tensor) return made<e5m2>(gemms, gradients, workspace);
    return made<e4m3>(gemms, gradients, workspace);
  }

 private:
  template <class G>
  std::unique_ptr<const ExpertLinear<bf16>> made(deck::ExpertGemms gemms, const std::vector<Matrix<float>>& gradients,
                                                 const Vector<std::byte>& workspace) const {
    if (gemms == deck::ExpertGemms::grouped) return std::make_unique<Grouped<G>>(weights_, gradients, workspace);
    return std::make_unique<OfLibrary<G>>(weights_, gradients, workspace);
  }

  Fp8Experts weights_;
};

}  // namespace

Fp8Matrix<e4m3> Fp8Experts::operator[](index_t e) const {
  const index_t wide = static_cast<index_t>(rows.extent(1)), high = static_cast<index_t>(columns.extent(1));
  Fp8Matrix<e4m3> codes{.rows = Matrix<e4m3>(rows.data() + e * out() * wide, out(), wide),
                        .columns = Matrix<e4m3>(columns.data() + e * in() * high, in(), high),
                        .scaling = scaling};
  codes.scale = scales.data() + e * Fp8ScaleLayout(scaling, out(), in()).count;
  if (scaling != Fp8Scaling::tensor)
    codes.column_scales = column_scales.data() + e * Fp8ScaleLayout(scaling, in(), out()).count;
  return codes;
}

Fp8Experts take_fp8_experts(Arena& arena, index_t experts, index_t out, index_t in, Fp8Scaling scaling) {
  constexpr auto kind = MemoryKind::parameters;
  const index_t across = scaling == Fp8Scaling::tensor ? 0 : Fp8ScaleLayout(scaling, in, out).count;
  return {.rows = arena.take<e4m3>(kind, experts * out, fp8_padded(in)),
          .columns = arena.take<e4m3>(kind, experts * in, fp8_padded(out)),
          .scales = arena.take<float>(kind, experts * Fp8ScaleLayout(scaling, out, in).count),
          .column_scales = arena.take<float>(kind, experts * across),
          .experts = experts,
          .scaling = scaling};
}

std::shared_ptr<const ExpertCodes<bf16>> make_fp8_experts(const Fp8Experts& weights) {
  return std::make_shared<Codes>(weights);
}

ExpertCodeBytes fp8_expert_bytes(const MoeSizes& s, int ep_size, Fp8Scaling of_weights, Processor processor) {
  const Fp8Scaling scaling = scaling_of_rows(of_weights);
  const bool is_grouped = s.gemms == deck::ExpertGemms::grouped;
  const index_t groups = is_grouped ? s.experts / ep_size : 1;
  const index_t padded = is_grouped ? fp8_group_tiles(s.rows, groups) * fp8_block : fp8_padded(s.rows);
  const std::size_t maxima = aligned(static_cast<std::size_t>(s.rows) * sizeof(float));
  ExpertCodeBytes bytes;
  const bool is_widened = !is_grouped && scaling != Fp8Scaling::tensor;
  for (const auto& [out, in] : {std::pair{2 * s.width, s.hidden}, std::pair{s.hidden, s.width}}) {
    const std::size_t widened = is_widened ? 2 * aligned(tiled_rows * std::max(out, in) * sizeof(bf16)) : 0;
    const index_t most = is_widened ? std::max(s.rows, tiled_rows) : s.rows;
    const std::size_t rows = bytes_of_codes(most, fp8_padded(std::max(out, in)), scaling, groups) + maxima + widened;
    const std::size_t columns =
        bytes_of_codes(out, padded, scaling, groups) + bytes_of_codes(in, padded, scaling, groups) + 2 * maxima;
    bytes.rows = std::max({bytes.rows, static_cast<index_t>(rows), static_cast<index_t>(columns)});
    if (is_grouped) continue;
    const auto of_gemm = [&](index_t m, index_t n, index_t k, index_t step) {
      return kernels::gemm_fp8_workspace_bytes(processor, {m, n, k, scaling, step});
    };
    bytes.gemm = std::max({bytes.gemm, of_gemm(most, out, in, tiled_rows), of_gemm(most, in, out, tiled_rows),
                           of_gemm(out, in, most, out)});
  }
  return bytes;
}

void check_fp8_experts(const deck::Config& c, deck::Findings& f) {
  if (!c.precision.fp8_experts || !f.is_valid({"precision.fp8_experts"})) return;
  if (c.precision.compute != ScalarType::fp8 && f.is_valid({"precision.compute"})) {
    f.error({"precision.fp8_experts", "precision.compute"}, "fp8_experts = .true. without FP8 operands of GEMMs",
            "compute = 'fp8'", "or fp8_experts = .false.");
  }
  if (c.model.moe.num_experts == 0 && f.is_valid({"moe.num_experts"})) {
    f.error({"precision.fp8_experts", "moe.num_experts"}, "fp8_experts = .true., but the model has no experts",
            "fp8_experts = .false.");
  }
}

}  // namespace nanotron::nn
