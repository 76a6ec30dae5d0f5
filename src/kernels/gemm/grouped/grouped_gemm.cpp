#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"

#include "grouped_tiles.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels {
namespace {

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// The products with as many rows for each expert: what a plan can know.
Work work_of(const Matrix<const bf16>& x, index_t out, index_t in, index_t experts, double weight_bytes) {
  const auto rows = static_cast<index_t>(x.extent(0));
  const double sums = 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
  const double moved = 2.0 * static_cast<double>(rows) * static_cast<double>(out + in);
  return {.read = moved + weight_bytes,
          .written = 0.0,
          .flops = sums,
          .type = ScalarType::bf16,
          .gemm = {rows / experts, out, in, experts}};
}

template <class T>
double bytes_of_all(const ExpertMatrices<T>& m) {
  return static_cast<double>(m.experts * m.rows * m.columns) * sizeof(T);
}

template <class A, class B, class W>
void require_shapes(const Matrix<A>& of_out, const Matrix<B>& of_in, const ExpertMatrices<W>& w,
                    const Vector<const std::int64_t>& begin) {
  NANOTRON_REQUIRE(of_out.extent(0) == of_in.extent(0) && static_cast<index_t>(of_out.extent(1)) == w.rows &&
                       static_cast<index_t>(of_in.extent(1)) == w.columns &&
                       static_cast<index_t>(begin.extent(0)) == w.experts + 1 && w.rows % 8 == 0 && w.columns % 8 == 0,
                   "a grouped GEMM of ({}, {}) and ({}, {}) with {} experts of ({}, {}), {} offsets", of_out.extent(0),
                   of_out.extent(1), of_in.extent(0), of_in.extent(1), w.experts, w.rows, w.columns, begin.extent(0));
  NANOTRON_REQUIRE(is_aligned(of_out.data()) && is_aligned(of_in.data()), "operands of a grouped GEMM at {} and {}",
                   static_cast<const void*>(of_out.data()), static_cast<const void*>(of_in.data()));
}

template <class Kernel>
void launch(const Device& device, const char* label, index_t blocks, const Kernel& kernel) {
  if (device.is_planning()) return device.launch_planned();
  mma::launch_blocks(device, label, blocks, kernel);
}

mma::GroupTiles tiles_of(const Vector<const std::int64_t>& begin, index_t rows, index_t experts, index_t columns) {
  return {begin.data(), experts, mma::GroupTiles::max_row_tiles(rows, experts), mma::tiles_of(columns)};
}

}  // namespace

bool can_group(const ExpertMatrices<const bf16>& w) {
  return w.rows % 8 == 0 && w.columns % 8 == 0 && w.stride % 8 == 0 && is_aligned(w.first);
}

void grouped_forward(Device& device, Matrix<const bf16> x, const ExpertMatrices<const bf16>& w,
                     Vector<const std::int64_t> begin, Matrix<bf16> y) {
  const KernelRegion kernel(device, "gemm_grouped", work_of(x, w.rows, w.columns, w.experts, bytes_of_all(w)));
  require_shapes(y, x, w, begin);
  const mma::GroupTiles tiles = tiles_of(begin, static_cast<index_t>(x.extent(0)), w.experts, w.rows);
  launch(device, "gemm_grouped_forward", tiles.blocks(), mma::GroupedForward{tiles, x, w, y});
}

void grouped_backward_input(Device& device, Matrix<const bf16> dy, const ExpertMatrices<const bf16>& w,
                            Vector<const std::int64_t> begin, Matrix<bf16> dx) {
  const KernelRegion kernel(device, "gemm_grouped", work_of(dy, w.rows, w.columns, w.experts, bytes_of_all(w)));
  require_shapes(dy, dx, w, begin);
  const mma::GroupTiles tiles = tiles_of(begin, static_cast<index_t>(dy.extent(0)), w.experts, w.columns);
  launch(device, "gemm_grouped_backward_input", tiles.blocks(), mma::GroupedBackwardInput{tiles, dy, w, dx});
}

void grouped_backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x,
                             Vector<const std::int64_t> begin, const ExpertMatrices<float>& dw) {
  const KernelRegion kernel(device, "gemm_grouped",
                            work_of(x, dw.rows, dw.columns, dw.experts, 2.0 * bytes_of_all(dw)));
  require_shapes(dy, x, dw, begin);
  const mma::GroupedBackwardWeight grouped{begin.data(), dy, x, dw};
  launch(device, "gemm_grouped_backward_weight", grouped.blocks(), grouped);
}

}  // namespace nanotron::kernels
