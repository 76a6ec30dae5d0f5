#include "nanotron/kernels/attention/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nanotron/base/elementary/circular.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
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
    return d * logarithm(of.original_length / (turns * 2.0 * std::numbers::pi)) / (2.0 * logarithm(theta));
  };
  const double fast = pair_of(of.beta_fast), slow = pair_of(of.beta_slow);
  all_kept_ = std::max(of.truncate ? std::floor(fast) : fast, 0.0);
  none_kept_ = std::min(of.truncate ? std::ceil(slow) : slow, d - 1.0);
  if (all_kept_ == none_kept_) none_kept_ += 0.001;
  const double stretched = of.factor > 1.0 ? 0.1 * logarithm(of.factor) + 1.0 : 1.0;
  magnitude_ = of.attention_factor > 0.0 ? of.attention_factor : stretched;
}

RotaryScaling::RotaryScaling(const LongRope& of) : factors_(of.factors) {
  const double stretched =
      of.factor > 1.0 ? std::sqrt(1.0 + logarithm(of.factor) / logarithm(of.original_length)) : 1.0;
  magnitude_ = of.attention_factor > 0.0 ? of.attention_factor : stretched;
}

double dynamic_theta(double theta, double factor, double original_length, double length, index_t r) {
  const auto width = static_cast<double>(r);
  const double longest = std::max(length, original_length);
  return theta * power(factor * longest / original_length - (factor - 1.0), width / (width - 2.0));
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

// Where the elements of a row are, and which are rotated.
struct Heads {
  index_t count, width, half;
  Heads(const char* label, index_t columns, index_t rotated, index_t pairs_of_head, const RotaryPairs& pairs)
      : width(pairs.head_dim > 0 ? pairs.head_dim : 2 * pairs_of_head), half(pairs_of_head) {
    NANOTRON_REQUIRE(half > 0 && width >= 2 * half && rotated % width == 0 && rotated <= columns,
                     "{}: {} of {} columns, {} pairs in heads of {}", label, rotated, columns, half, width);
    count = rotated / width;
  }
};

template <class T>
struct Angles {
  const master_t<T>*cosine, *sine;  // of the row's position
};

// Turn pairs i ... i + n - 1 of a head whose first element is `first`: elements i and i + half; or 2i and 2i + 1.
struct Halves {
  template <class T, class Value, int n>
  NANOTRON_FUNCTION static void turn(T* columns, index_t first, index_t i, index_t half, const Value& at,
                                     const Angles<T>& angles, master_t<T> sign, Width<n> width) {
    const index_t low = first + i, high = low + half;
    const auto a = at(columns, low, width), b = at(columns, high, width);
    const auto cos_i = load(angles.cosine + i, width), sin_i = load(angles.sine + i, width);
    store(columns + low, width, [&](const int k) { return a[k] * cos_i[k] - b[k] * (sign * sin_i[k]); });
    store(columns + high, width, [&](const int k) { return b[k] * cos_i[k] + a[k] * (sign * sin_i[k]); });
  }
};
struct Neighbours {
  template <class T, class Value, int n>
  NANOTRON_FUNCTION static void turn(T* columns, index_t first, index_t i, index_t, const Value& at,
                                     const Angles<T>& angles, master_t<T> sign, Width<n> width) {
    const index_t low = first + 2 * i, high = low + n;
    const auto left = at(columns, low, width), right = at(columns, high, width);
    const auto cos_i = load(angles.cosine + i, width), sin_i = load(angles.sine + i, width);
    const auto element = [&](const int j) { return j < n ? left[j] : right[j - n]; };
    const auto turned = [&](const int j) {
      const auto a = element(j / 2 * 2), b = element(j / 2 * 2 + 1), s = sign * sin_i[j / 2];
      return j % 2 == 0 ? a * cos_i[j / 2] - b * s : b * cos_i[j / 2] + a * s;
    };
    store(columns + low, width, [&](const int k) { return turned(k); });
    store(columns + high, width, [&](const int k) { return turned(n + k); });
  }
};

// Rotates the heads in the first `rotated` columns by sign * angle; one row of the policy per token.
template <class T, int sign, class Pairs, class Value>
void rotate(Device& device, const char* label, MatrixRef<T> x, const Heads& of_row, const Value& value,
            Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  using M = master_t<T>;
  const Heads heads = of_row;
  for_each_row_of<T>(
      device, label, x.rows, x.columns / 2, KOKKOS_LAMBDA(const Row& row, const index_t token) {
        const index_t position = positions.data()[token];
        const Angles<T> angles{cosine.data() + position * heads.half, sine.data() + position * heads.half};
        T* const columns = x.data + token * x.leading;
        const Value at = value;
        row.template for_each_chunk_of<T>(
            heads.count, heads.half, [=](const index_t head, const index_t i, const auto n) {
              Pairs::turn(columns, head * heads.width, i, heads.half, at, angles, M(sign), n);
            });
        if constexpr (!std::is_same_v<Value, Plain>) {
          const index_t turned = 2 * heads.half;
          if (turned < heads.width) {
            row.template for_each_chunk_of<T>(heads.count, heads.width - turned,
                                              [=](const index_t head, const index_t i, const auto n) {
                                                const index_t first = head * heads.width + turned + i;
                                                const auto unturned = at(columns, first, n);
                                                store(columns + first, n, [&](const int k) { return unturned[k]; });
                                              });
          }
        }
        const index_t first = heads.width * heads.count;
        row.template for_each_chunk<T>(x.columns - first, [=](const index_t i, const auto n) {
          const auto unturned = at(columns, first + i, n);
          store(columns + first + i, n, [&](const int k) { return unturned[k]; });
        });
      });
}

template <class T, int sign, class Value>
void rotate(Device& device, const char* label, MatrixRef<T> x, index_t rotated, const Value& value,
            Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine,
            const RotaryPairs& pairs) {
  const Heads heads(label, x.columns, rotated, static_cast<index_t>(cosine.extent(1)), pairs);
  if (pairs.interleaved) return rotate<T, sign, Neighbours>(device, label, x, heads, value, positions, cosine, sine);
  rotate<T, sign, Halves>(device, label, x, heads, value, positions, cosine, sine);
}

}  // namespace

template <class M>
void rotary_tables(Device& device, double theta, Matrix<M> cosine, Matrix<M> sine, const RotaryScaling& scaling) {
  const KernelRegion kernel(device, "rotary_tables", reads(), writes(cosine, sine));
  const index_t half = static_cast<index_t>(cosine.extent(1));
  const double magnitude = scaling.magnitude();
  for (index_t pair = 0; pair < half; ++pair) {
    const double frequency = scaling(power(theta, -static_cast<double>(pair) / static_cast<double>(half)), pair);
    M *const c = cosine.data() + pair, *const s = sine.data() + pair;
    for_each_element(
        device, "rotary_tables", static_cast<index_t>(cosine.extent(0)), KOKKOS_LAMBDA(const index_t position) {
          const double angle = static_cast<double>(position) * frequency;
          c[position * half] = static_cast<M>(magnitude * Circular::of(angle).cosine);
          s[position * half] = static_cast<M>(magnitude * Circular::of(angle).sine);
        });
  }
}

template <class T>
void rotary_forward(Device& device, MatrixRef<T> x, Vector<const std::int32_t> positions,
                    Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine, const RotaryPairs& pairs) {
  const KernelRegion kernel(device, "rotary_forward", reads(x, positions), writes(x));
  rotate<T, 1>(device, "rotary_forward", x, x.columns, Plain{}, positions, cosine, sine, pairs);
}

template <class T>
void bias_rotary_forward(Device& device, MatrixRef<T> x, index_t rotated, Vector<const master_t<T>> bias,
                         Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine,
                         Matrix<const master_t<T>> sine, const RotaryPairs& pairs) {
  const KernelRegion kernel(device, "bias_rotary_forward", reads(x, bias, positions), writes(x));
  NANOTRON_REQUIRE(static_cast<index_t>(bias.extent(0)) == x.columns, "bias_rotary_forward: {} columns, a bias of {}",
                   x.columns, bias.extent(0));
  rotate<T, 1>(device, "bias_rotary_forward", x, rotated, Biased<master_t<T>>{bias.data()}, positions, cosine, sine,
               pairs);
}

template <class T>
void rotary_backward(Device& device, MatrixRef<T> dx, Vector<const std::int32_t> positions,
                     Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine, const RotaryPairs& pairs) {
  const KernelRegion kernel(device, "rotary_backward", reads(dx, positions), writes(dx));
  rotate<T, -1>(device, "rotary_backward", dx, dx.columns, Plain{}, positions, cosine, sine, pairs);
}

#define NANOTRON_INSTANTIATE(M) \
  template void rotary_tables<M>(Device&, double, Matrix<M>, Matrix<M>, const RotaryScaling&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                                  \
  template void rotary_forward<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>, Matrix<const master_t<T>>,  \
                                  Matrix<const master_t<T>>, const RotaryPairs&);                                \
  template void bias_rotary_forward<T>(Device&, MatrixRef<T>, index_t, Vector<const master_t<T>>,                \
                                       Vector<const std::int32_t>, Matrix<const master_t<T>>,                    \
                                       Matrix<const master_t<T>>, const RotaryPairs&);                           \
  template void rotary_backward<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>, Matrix<const master_t<T>>, \
                                   Matrix<const master_t<T>>, const RotaryPairs&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
