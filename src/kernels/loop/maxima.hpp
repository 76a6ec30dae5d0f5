#pragma once

// The largest absolute value of a row, from which the scale of an FP8 operand follows. Private to kernels.

#include <limits>

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

/// |x|; infinity where x is not a number.
template <class T>
NANOTRON_FUNCTION float abs_or_infinity(T x) {
  const float value = static_cast<float>(x), size = value < 0.0f ? -value : value;
  return size == size ? size : infinity;
}

/// max of abs_or_infinity(x[i]), i < n.
template <class R, class T>
NANOTRON_FUNCTION float max_abs(const R& row, const T* x, index_t n) {
  return static_cast<float>(row.template max_chunks<T>(n, master_t<T>(0), [=](const index_t c, const auto width) {
    const auto value = load(x + c, width);
    return max(width, [&](const int k) { return static_cast<master_t<T>>(abs_or_infinity(value[k])); });
  }));
}

/// Where a kernel stores the maxima of the rows that it writes. data() null: not stored.
class RowMaxima {
 public:
  explicit RowMaxima(const Vector<float>& maxima) : data_(maxima.data()) {}
  template <class R, class T>
  NANOTRON_FUNCTION void store(const R& row, index_t i, const T* x, index_t n) const {
    if (data_ != nullptr) data_[i] = max_abs(row, x, n);
  }

 private:
  float* data_;
};

}  // namespace nanotron::kernels
