#include "nanotron/kernels/attention/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

RotaryScaling::RotaryScaling(const Llama3& of)
    : factor_(of.factor),
      none_kept_(2.0 * std::numbers::pi * of.low_freq_factor / of.original_length),
      all_kept_(2.0 * std::numbers::pi * of.high_freq_factor / of.original_length) {}

// pair_of(turns): i of theta^(-2i/d) L = 2 pi turns.
RotaryScaling::RotaryScaling(const Yarn& of, double theta, index_t head_dim) : factor_(of.factor), by_pair_(true) {
  const auto d = static_cast<double>(head_dim);
  const auto pair_of = [&](double turns) {
    return d * std::log(of.original_length / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  };
  all_kept_ = std::max(std::floor(pair_of(of.beta_fast)), 0.0);
  none_kept_ = std::min(std::ceil(pair_of(of.beta_slow)), d - 1.0);
  if (all_kept_ == none_kept_) none_kept_ += 0.001;
  const double stretched = of.factor > 1.0 ? 0.1 * std::log(of.factor) + 1.0 : 1.0;
  magnitude_ = of.attention_factor > 0.0 ? of.attention_factor : stretched;
}

namespace {

// Columns of a row from c on as they are, or with their bias.
struct Plain {
  template <class T, int n>
  NANOTRON_FUNCTION auto operator()(const T* row, index_t c, Width<n> width) const {
    return load(row + c, width);
  }
};
template <class M>
struct Biased {
  const M* bias;
  template <class T, int n>
  NANOTRON_FUNCTION auto operator()(const T* row, index_t c, Width<n> width) const {
    const auto value = load(row + c, width), b = load(bias + c, width);
    return chunk(width, [&](const int k) { return value[k] + b[k]; });
  }
};

// Rotates the heads in the first `rotated` columns by sign * angle; one row of the policy per token.
template <class T, int sign, class Value>
void rotate(Device& device, const char* label, MatrixRef<T> x, index_t rotated, const Value& value,
            Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  using M = master_t<T>;
  const index_t half = static_cast<index_t>(cosine.extent(1));
  NANOTRON_REQUIRE(half > 0 && rotated % (2 * half) == 0 && rotated <= x.columns, "{}: {} of {} columns, heads of {}",
                   label, rotated, x.columns, 2 * half);
  const index_t heads = rotated / (2 * half);
  for_each_row_of<T>(
      device, label, x.rows, x.columns / 2, KOKKOS_LAMBDA(const Row& row, const index_t token) {
        const index_t position = positions.data()[token];
        const M* const c = cosine.data() + position * half;
        const M* const s = sine.data() + position * half;
        T* const columns = x.data + token * x.leading;
        const Value at = value;
        row.template for_each_chunk_of<T>(heads, half, [=](const index_t head, const index_t i, const auto n) {
          const index_t low = head * 2 * half + i, high = low + half;
          const auto a = at(columns, low, n), b = at(columns, high, n);
          const auto cos_i = load(c + i, n), sin_i = load(s + i, n);
          store(columns + low, n, [&](const int k) { return a[k] * cos_i[k] - b[k] * (M(sign) * sin_i[k]); });
          store(columns + high, n, [&](const int k) { return b[k] * cos_i[k] + a[k] * (M(sign) * sin_i[k]); });
        });
        const index_t first = 2 * half * heads;
        row.template for_each_chunk<T>(x.columns - first, [=](const index_t i, const auto n) {
          const auto unturned = at(columns, first + i, n);
          store(columns + first + i, n, [&](const int k) { return unturned[k]; });
        });
      });
}

}  // namespace

template <class M>
void rotary_tables(Device& device, double theta, Matrix<M> cosine, Matrix<M> sine, const RotaryScaling& scaling) {
  const KernelRegion kernel(device, "rotary_tables", reads(), writes(cosine, sine));
  const index_t half = static_cast<index_t>(cosine.extent(1));
  M* const c = cosine.data();
  M* const s = sine.data();
  const RotaryScaling scaled = scaling;
  const double magnitude = scaling.magnitude();
  for_each_element(
      device, "rotary_tables", static_cast<index_t>(cosine.extent(0)) * half, KOKKOS_LAMBDA(const index_t i) {
        const double exponent = -static_cast<double>(i % half) / static_cast<double>(half);
        const double angle = static_cast<double>(i / half) * scaled(std::pow(theta, exponent), i % half);
        c[i] = static_cast<M>(magnitude * std::cos(angle));
        s[i] = static_cast<M>(magnitude * std::sin(angle));
      });
}

template <class T>
void rotary_forward(Device& device, MatrixRef<T> x, Vector<const std::int32_t> positions,
                    Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  const KernelRegion kernel(device, "rotary_forward", reads(x, positions), writes(x));
  rotate<T, 1>(device, "rotary_forward", x, x.columns, Plain{}, positions, cosine, sine);
}

template <class T>
void bias_rotary_forward(Device& device, MatrixRef<T> x, index_t rotated, Vector<const master_t<T>> bias,
                         Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine,
                         Matrix<const master_t<T>> sine) {
  const KernelRegion kernel(device, "bias_rotary_forward", reads(x, bias, positions), writes(x));
  NANOTRON_REQUIRE(static_cast<index_t>(bias.extent(0)) == x.columns, "bias_rotary_forward: {} columns, a bias of {}",
                   x.columns, bias.extent(0));
  rotate<T, 1>(device, "bias_rotary_forward", x, rotated, Biased<master_t<T>>{bias.data()}, positions, cosine, sine);
}

template <class T>
void rotary_backward(Device& device, MatrixRef<T> dx, Vector<const std::int32_t> positions,
                     Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  const KernelRegion kernel(device, "rotary_backward", reads(dx, positions), writes(dx));
  rotate<T, -1>(device, "rotary_backward", dx, dx.columns, Plain{}, positions, cosine, sine);
}

#define NANOTRON_INSTANTIATE(M) \
  template void rotary_tables<M>(Device&, double, Matrix<M>, Matrix<M>, const RotaryScaling&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                                  \
  template void rotary_forward<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>, Matrix<const master_t<T>>,  \
                                  Matrix<const master_t<T>>);                                                    \
  template void bias_rotary_forward<T>(Device&, MatrixRef<T>, index_t, Vector<const master_t<T>>,                \
                                       Vector<const std::int32_t>, Matrix<const master_t<T>>,                    \
                                       Matrix<const master_t<T>>);                                               \
  template void rotary_backward<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>, Matrix<const master_t<T>>, \
                                   Matrix<const master_t<T>>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
