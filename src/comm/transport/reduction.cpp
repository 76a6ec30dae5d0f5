#include "comm/transport/host_data.hpp"

#include <algorithm>

#include "nanotron/base/fp16.hpp"
#include "nanotron/base/independent_iterations.hpp"

namespace nanotron::comm {
namespace {

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    return a + b;
  }
};
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return a < b ? b : a;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return b < a ? b : a;
  }
};

// Two sources: the most common case. Iteration i touches only index i, so they are independent in place too.
template <class T, class A, class Op>
void reduce_two(const T* first, const T* second, std::size_t n, T* result, T* copy) {
  if (copy == nullptr) {
    NANOTRON_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < n; ++i) {
      result[i] = static_cast<T>(Op::template apply<A>(A(first[i]), A(second[i])));
    }
    return;
  }
  NANOTRON_INDEPENDENT_ITERATIONS
  for (std::size_t i = 0; i < n; ++i) {
    const T value = static_cast<T>(Op::template apply<A>(A(first[i]), A(second[i])));
    result[i] = value;
    copy[i] = value;
  }
}

template <class T, class A, class Op>
void reduce_many(std::span<const void* const> sources, std::size_t n, T* result, T* copy) {
  constexpr std::size_t block = 1024;
  A sum[block];
  for (std::size_t at = 0; at < n; at += block) {
    const std::size_t count = std::min(block, n - at);
    const T* first = static_cast<const T*>(sources[0]) + at;
    for (std::size_t i = 0; i < count; ++i) sum[i] = A(first[i]);
    for (const void* source : sources.subspan(1)) {
      const T* next = static_cast<const T*>(source) + at;
      for (std::size_t i = 0; i < count; ++i) sum[i] = Op::template apply<A>(sum[i], A(next[i]));
    }
    for (std::size_t i = 0; i < count; ++i) result[at + i] = static_cast<T>(sum[i]);
    if (copy != nullptr) std::copy_n(result + at, count, copy + at);
  }
}

template <class T, class A, class Op>
void reduce(std::span<const void* const> sources, std::size_t n, void* result, void* copy) {
  T* out = static_cast<T*>(result);
  T* also = static_cast<T*>(copy);
  if (sources.size() == 2) {
    reduce_two<T, A, Op>(static_cast<const T*>(sources[0]), static_cast<const T*>(sources[1]), n, out, also);
  } else {
    reduce_many<T, A, Op>(sources, n, out, also);
  }
}

template <class T, class A>
void reduce_typed(ReduceOp op, std::span<const void* const> sources, std::size_t n, void* result, void* copy) {
  switch (op) {
    case ReduceOp::sum:
      return reduce<T, A, Sum>(sources, n, result, copy);
    case ReduceOp::max:
      return reduce<T, A, Max>(sources, n, result, copy);
    case ReduceOp::min:
      return reduce<T, A, Min>(sources, n, result, copy);
  }
}

}  // namespace

void reduce_elements(DataType type, ReduceOp op, std::span<const void* const> sources, std::size_t n, void* result,
                     void* copy) {
  switch (type) {
    case DataType::fp64:
      return reduce_typed<double, double>(op, sources, n, result, copy);
    case DataType::fp32:
      return reduce_typed<float, float>(op, sources, n, result, copy);
    case DataType::bf16:
      return reduce_typed<bf16, float>(op, sources, n, result, copy);
    case DataType::fp16:
      return reduce_typed<fp16, float>(op, sources, n, result, copy);
    case DataType::int64:
      return reduce_typed<std::int64_t, std::int64_t>(op, sources, n, result, copy);
    case DataType::uint64:
      return reduce_typed<std::uint64_t, std::uint64_t>(op, sources, n, result, copy);
  }
}

}  // namespace nanotron::comm
