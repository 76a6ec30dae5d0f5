#include "nanotron/kernels/mlp/swiglu_fp8.hpp"

#include "kernels/fp8/codes.hpp"
#include "kernels/loop/maxima.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/mlp/gated.hpp"

namespace nanotron::kernels {

void swiglu_backward_maxima(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> dh, Vector<float> maxima) {
  const KernelRegion kernel(device, "swiglu_backward_maxima", reads(gate_up, dh), writes(maxima));
  const auto width = static_cast<index_t>(dh.extent(1));
  float* const to = maxima.data();
  for_each_row_of<bf16>(
      device, "swiglu_backward_maxima", static_cast<index_t>(dh.extent(0)), width,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const bf16 *const gate = gate_up.data() + i * 2 * width, *const gradient = dh.data() + i * width;
        const bf16* const up = gate + width;
        to[i] = row.template max_chunks<bf16>(width, 0.0f, [=](const index_t c, const auto n) {
          const auto x = load(gate + c, n), u = load(up + c, n), g = load(gradient + c, n);
          return max(n, [&](const int k) {
            const GateUp<float> d = swiglu_gradient(x[k], u[k], g[k]);
            const float a = abs_or_infinity(bf16(d.gate)), b = abs_or_infinity(bf16(d.up));
            return a < b ? b : a;
          });
        });
      });
}

// A tile of h gives one of dgate and one of dup.
void quantise_swiglu_backward(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> dh,
                              Vector<const float> maxima, const Fp8Matrix<e5m2>& y) {
  choose_scale<e5m2>(device, maxima, y.scale);
  const KernelRegion kernel(device, "quantise_swiglu_backward", reads(gate_up, dh), writes(y.rows, y.columns));
  const auto rows = static_cast<index_t>(dh.extent(0)), width = static_cast<index_t>(dh.extent(1));
  NANOTRON_REQUIRE(width % fp8_padding == 0 && static_cast<index_t>(gate_up.extent(1)) == 2 * width,
                   "quantise_swiglu_backward: {} columns of {}", width, gate_up.extent(1));
  const float* const scale = y.scale;
  const TileOfCodes<e5m2> to = tile_of_codes(y, rows, 2 * width);
  const TileGrid grid(to.padded_rows, width);
  for_each_tile(
      device, "quantise_swiglu_backward", grid, 2,
      KOKKOS_LAMBDA(const Row& row, std::uint8_t* const bytes, const index_t tile) {
        const index_t row0 = grid.first_row(tile), column0 = grid.first_column(tile), n = width;
        const float factor = 1.0f / *scale;
        const TileOfCodes<e5m2> of_gate = to.first_columns(n);
        row.for_each(tile_width * tile_width / fp8_word, [=](const index_t i) {
          const index_t r = row0 + i / (tile_width / fp8_word), c = column0 + i % (tile_width / fp8_word) * fp8_word;
          alignas(fp8_word) std::uint8_t gate_codes[fp8_word], up_codes[fp8_word];
          for (index_t j = 0; j < fp8_word; ++j) {
            GateUp<bf16> d{bf16(0.0f), bf16(0.0f)};
            if (r < to.rows && c + j < n) {
              const bf16* const gate = gate_up.data() + r * 2 * n + c + j;
              d = swiglu_gradient(gate[0], gate[n], dh.data()[r * n + c + j]);
            }
            gate_codes[j] = e5m2::code_of(static_cast<float>(d.gate) * factor);
            up_codes[j] = e5m2::code_of(static_cast<float>(d.up) * factor);
          }
          of_gate.put(bytes, row0, column0, r, c, gate_codes);
          to.put(bytes + tile_bytes, row0, n + column0, r, n + c, up_codes);
        });
        of_gate.transpose(row, bytes, row0, column0);
        to.transpose(row, bytes + tile_bytes, row0, n + column0);
      });
}

}  // namespace nanotron::kernels
