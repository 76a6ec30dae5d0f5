#include "nanotron/kernels/dropout/random_mask.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/kernel_region.hpp"

namespace nanotron::kernels {
namespace {

NANOTRON_FUNCTION MaskRow row_of_token(const RandomMask& mask, const TokenRows& tokens, index_t r) {
  const index_t token = tokens.first + r, length = tokens.shard.length();
  return mask.row(token / length, tokens.shard.position_of(token % length));
}

template <class T>
void check(const char* name, const MatrixRef<const T>& x, const MatrixRef<T>& y) {
  NANOTRON_REQUIRE(x.rows == y.rows && x.columns == y.columns, "{}: {} x {} to {} x {}", name, x.rows, x.columns,
                   y.rows, y.columns);
}

}  // namespace

template <class T>
void add_masked(Device& device, const RandomMask& mask, const TokenRows& tokens, double factor, MatrixRef<const T> x,
                MatrixRef<const T> z, MatrixRef<T> y) {
  const KernelRegion kernel(device, "add_masked", reads(x, z), writes(y));
  check("add_masked", x, y);
  check("add_masked", z, y);
  const auto m = static_cast<master_t<T>>(factor * mask.factor());
  const RandomMask of_rows = mask;
  const TokenRows of_tokens = tokens;
  for_each_row_of<T>(
      device, "add_masked", y.rows, y.columns, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const MaskRow kept = row_of_token(of_rows, of_tokens, r);
        const T *const from = x.data + r * x.leading, *const base = z.data + r * z.leading;
        T* const to = y.data + r * y.leading;
        row.template for_each_chunk<T>(y.columns, [=](const index_t c, const auto n) {
          const auto a = load(from + c, n), b = load(base + c, n);
          store(to + c, n, [&](const int k) { return of_rows.keeps(kept, c + k) ? m * a[k] + b[k] : b[k]; });
        });
      });
}

template <class T>
void scale_masked(Device& device, const RandomMask& mask, const TokenRows& tokens, double factor, MatrixRef<const T> x,
                  MatrixRef<T> y) {
  const KernelRegion kernel(device, "scale_masked", reads(x), writes(y));
  check("scale_masked", x, y);
  const auto m = static_cast<master_t<T>>(factor * mask.factor());
  const RandomMask of_rows = mask;
  const TokenRows of_tokens = tokens;
  for_each_row_of<T>(
      device, "scale_masked", y.rows, y.columns, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const MaskRow kept = row_of_token(of_rows, of_tokens, r);
        const T* const from = x.data + r * x.leading;
        T* const to = y.data + r * y.leading;
        row.template for_each_chunk<T>(y.columns, [=](const index_t c, const auto n) {
          const auto a = load(from + c, n);
          store(to + c, n, [&](const int k) { return of_rows.keeps(kept, c + k) ? m * a[k] : master_t<T>(0); });
        });
      });
}

#define NANOTRON_INSTANTIATE(T)                                                                         \
  template void add_masked<T>(Device&, const RandomMask&, const TokenRows&, double, MatrixRef<const T>, \
                              MatrixRef<const T>, MatrixRef<T>);                                        \
  template void scale_masked<T>(Device&, const RandomMask&, const TokenRows&, double, MatrixRef<const T>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
