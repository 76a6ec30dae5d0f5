// ranks: 1
// A linear layer with FP8 operands is near the one in bf16, forward and backward, with tokens in one chunk or several;
// codes that backward makes again are those that forward kept.
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/linear/fp8_linear.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Fp8ScaleLayout, kernels::Fp8Scaling, kernels::fp8_padded;

constexpr index_t tokens = 197, in = 144, out = 208;

// Of one pass: y, dx and dW.
struct Pass {
  std::vector<bf16> y, dx;
  std::vector<float> dw;
};

template <class T>
double distance(const std::vector<T>& ours, const std::vector<T>& theirs) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto a = static_cast<double>(ours[i]), b = static_cast<double>(theirs[i]);
    difference += (a - b) * (a - b);
    size += b * b;
  }
  return std::sqrt(difference / size);
}

class Fp8Layer : public testing::Test {
 public:
  Fp8Layer()
      : gemm_memory_("GEMM workspace",
                     kernels::gemm_fp8_workspace_bytes(built_for, {256, 256, 256, kernels::Fp8Scaling::tiles})) {
    device_.set_gemm_workspace(Vector<std::byte>(gemm_memory_.data(), gemm_memory_.size()));
  }

  Pass run(const nn::Fp8Chunks& chunks, std::shared_ptr<const nn::LinearGemms<bf16>> fp8,
           const nn::OperandCodes& of_x) {
    Array<bf16> y(tokens * out), dx(tokens * in);
    Array<float> dw(out * in, 0.25);
    const nn::Linear<bf16> linear({.weight = w_.read(out, in), .gradient = dw.matrix(out, in)}, {}, std::move(fp8));
    const auto rows = [](const Matrix<bf16>& m, const Range& r) {
      const auto columns = static_cast<index_t>(m.extent(1));
      return Matrix<bf16>(m.data() + r.begin * columns, r.size(), columns);
    };
    for (index_t c = 0; c < chunks.size(); ++c) {
      linear.forward(of_x)(device_, rows(x_.matrix(tokens, in), chunks[c]), rows(y.matrix(tokens, out), chunks[c]), c);
    }
    for (index_t c = 0; c < chunks.size(); ++c) {
      linear.backward_input()(device_, rows(dy_.matrix(tokens, out), chunks[c]), rows(dx.matrix(tokens, in), chunks[c]),
                              c);
    }
    linear.backward_weight(device_, dy_.read(tokens, out), x_.read(tokens, in), {}, of_x);
    y.pull(), dx.pull(), dw.pull();
    return {y.host, dx.host, dw.host};
  }

  Timers timers_;
  Device device_{timers_};
  Kokkos::View<std::byte*, MemorySpace> gemm_memory_;
  Array<bf16> x_ = Array<bf16>::random(tokens * in, 1), w_ = Array<bf16>::random(out * in, 2, 0.02),
              dy_ = Array<bf16>::random(tokens * out, 3, 1e-5);
};

// Codes by columns of all chunks, and their scales.
struct Columns {
  Columns(const nn::Fp8Chunks& chunks, index_t width, Fp8Scaling scaling)
      : codes("codes", static_cast<std::size_t>(width * chunks.padded_tokens())),
        scales(chunks.scales(width, scaling)) {}
  nn::OperandCodes codes_of_input() const {
    return {.kept = Vector<std::byte>(codes.data(), codes.size()), .scales = scales.vector()};
  }
  nn::Fp8Columns<std::byte> view() const { return {Vector<std::byte>(codes.data(), codes.size()), scales.vector()}; }
  Kokkos::View<std::byte*, Kokkos::LayoutRight, MemorySpace> codes;
  Array<float> scales;
};

// The codes of a weight.
struct Weight {
  Weight(Device& device, const Array<bf16>& w, Fp8Scaling scaling)
      : by_rows("W", out * fp8_padded(in)),
        by_columns("W^T", in * fp8_padded(out)),
        scales(Fp8ScaleLayout(scaling, out, in).count),
        column_scales(Fp8ScaleLayout(scaling, in, out).count),
        codes{Matrix<e4m3>(by_rows.data(), out, fp8_padded(in)), Matrix<e4m3>(by_columns.data(), in, fp8_padded(out)),
              scales.data(), column_scales.data(), scaling} {
    const Array<float> maxima(out);
    if (scaling != Fp8Scaling::tensor) {
      kernels::quantise_parts(device, w.read(out, in), codes);
    } else {
      kernels::row_maxima<bf16>(device, w.read(out, in), maxima.vector());
      kernels::quantise<e4m3>(device, w.read(out, in), maxima.read(), codes);
    }
    device.fence();
  }
  Kokkos::View<e4m3*, MemorySpace> by_rows, by_columns;
  Array<float> scales, column_scales;
  kernels::Fp8Matrix<e4m3> codes;
};

template <class G>
void check(Fp8Layer& layer) {
  constexpr bool has_parts = std::is_same_v<G, e4m3>;
  constexpr Fp8Scaling scaling = has_parts ? Fp8Scaling::tiles : Fp8Scaling::tensor;
  const Pass wide = layer.run(nn::Fp8Chunks({{0, tokens}}), {}, {});
  for (const nn::Fp8Chunks& chunks :
       {nn::Fp8Chunks({{0, tokens}}), nn::Fp8Chunks({{0, 5}, {5, 5}, {5, 152}, {152, tokens}})}) {
    const Columns kept(chunks, in, scaling), again(chunks, in, scaling), gradient(chunks, out, scaling);
    const Kokkos::View<std::byte*, MemorySpace> rows("rows", tokens * 256);
    const Array<float> maxima(tokens), scale(Fp8ScaleLayout(scaling, tokens, 256).count);
    const Weight weight(layer.device_, layer.w_, has_parts ? Fp8Scaling::blocks : Fp8Scaling::tensor);
    nn::Fp8Workspace work{.chunks = &chunks,
                          .scaling = scaling,
                          .rows = Vector<std::byte>(rows.data(), rows.size()),
                          .input = again.view(),
                          .gradient = gradient.view(),
                          .maxima = maxima.vector(),
                          .scale = scale.vector()};
    const Pass first = layer.run(chunks, std::make_shared<nn::Fp8Linear<G>>(weight.codes, work), kept.codes_of_input());
    // Both operands have a relative rounding of up to 2^-4 in e4m3 and 2^-3 in e5m2, 0.4 of it in the mean.
    EXPECT_LT(distance(first.y, wide.y), 0.05);
    EXPECT_LT(distance(first.dx, wide.dx), has_parts ? 0.05 : 0.09);
    EXPECT_LT(distance(first.dw, wide.dw), has_parts ? 0.05 : 0.09);
    EXPECT_GT(distance(first.y, wide.y), 0.001) << "nothing was quantised";
    work.gradients = nn::Fp8Gradients::quantised_again;
    const Pass second = layer.run(chunks, std::make_shared<nn::Fp8Linear<G>>(weight.codes, work), {});
    const auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    EXPECT_TRUE(same(second.y, first.y) && same(second.dx, first.dx) && same(second.dw, first.dw));
  }
}

TEST_F(Fp8Layer, IsNearTheOneInBf16) { check<e5m2>(*this); }
TEST_F(Fp8Layer, WithScalesOfPartsIsNearTheOneInBf16) { check<e4m3>(*this); }

}  // namespace
}  // namespace nanotron::test
