#include "nanotron/kernels/vocab/embedding.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::kernels {

template <class T>
void embedding_forward(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> table,
                       Matrix<T> out, double multiplier) {
  const KernelRegion kernel(device, "embedding_forward", reads(tokens, out), writes(out));
  const index_t hidden = static_cast<index_t>(out.extent(1));
  const index_t begin = vocabulary.begin;
  const index_t end = vocabulary.end;
  const bool is_scaled = multiplier != 1.0;
  const auto factor = static_cast<master_t<T>>(multiplier);
  for_each_row_of<T>(
      device, "embedding_forward", static_cast<index_t>(tokens.extent(0)), hidden,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const index_t id = tokens.data()[i];
        T* const target = out.data() + i * hidden;
        if (id < begin || id >= end) {
          row.for_each(hidden, [=](const index_t c) { target[c] = T(0.0f); });
          return;
        }
        const T* const source = table.data() + (id - begin) * hidden;
        if (is_scaled) {
          row.template for_each_chunk<T>(hidden, [=](const index_t c, const auto n) {
            const auto value = load(source + c, n);
            store(target + c, n, [&](const int k) { return factor * value[k]; });
          });
          return;
        }
        row.template for_each_chunk<T>(hidden, [=](const index_t c, const auto n) { copy(target + c, source + c, n); });
      });
}

template <class T>
void embedding_add(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> table,
                   Matrix<T> out) {
  const KernelRegion kernel(device, "embedding_add", reads(tokens, out, out), writes(out));
  using M = master_t<T>;
  const index_t hidden = static_cast<index_t>(out.extent(1)), begin = vocabulary.begin, end = vocabulary.end;
  for_each_row(
      device, "embedding_add", static_cast<index_t>(tokens.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const index_t id = tokens.data()[i];
        if (id < begin || id >= end) return;
        const T* const source = table.data() + (id - begin) * hidden;
        T* const target = out.data() + i * hidden;
        row.for_each(hidden, [=](const index_t c) {
          target[c] = static_cast<T>(static_cast<M>(target[c]) + static_cast<M>(source[c]));
        });
      });
}

namespace {

template <class T>
void add_in_order_on_host(Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> dout,
                          Matrix<master_t<T>> dtable, master_t<T> factor) {
  const index_t hidden = static_cast<index_t>(dout.extent(1));
  for (index_t i = 0; i < static_cast<index_t>(tokens.extent(0)); ++i) {
    const index_t id = tokens.data()[i];
    if (!vocabulary.contains(id)) continue;
    const T* const source = dout.data() + i * hidden;
    master_t<T>* const target = dtable.data() + (id - vocabulary.begin) * hidden;
    HostRow{}.for_each(hidden, [=](const index_t c) { target[c] += factor * static_cast<master_t<T>>(source[c]); });
  }
}

constexpr index_t stretch = 256;  // tokens that a team compares at once

// The team of an id's first occurrence adds the rows of all its occurrences, in order: no atomics, no sort.
template <class T>
void add_by_first_occurrence(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> dout,
                             Matrix<master_t<T>> dtable, master_t<T> factor) {
  using M = master_t<T>;
  const index_t hidden = static_cast<index_t>(dout.extent(1));
  const index_t count = static_cast<index_t>(tokens.extent(0));
  const index_t begin = vocabulary.begin;
  const index_t end = vocabulary.end;
  for_each_row_of<T>(
      device, "embedding_backward", count, hidden, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const std::int32_t* const ids = tokens.data();
        const std::int32_t id = ids[i];
        if (id < begin || id >= end) return;
        const int earlier = row.template sum<int>(i, [=](const index_t j) { return ids[j] == id ? 1 : 0; });
        if (earlier > 0) return;
        M* const target = dtable.data() + (id - begin) * hidden;
        const T* const source = dout.data();
        for (index_t first = i; first < count; first += stretch) {
          const index_t n = count - first < stretch ? count - first : stretch, columns = hidden;
          if (row.template sum<int>(n, [=](const index_t j) { return ids[first + j] == id ? 1 : 0; }) == 0) continue;
          row.template for_each_chunk<T>(columns, [=](const index_t c, const auto width) {
            auto sum = load(target + c, width);
            for (index_t j = first; j < first + n; ++j) {
              if (ids[j] != id) continue;
              const auto x = load(source + j * columns + c, width);
              sum = chunk(width, [&](const int k) { return sum[k] + factor * x[k]; });
            }
            store(target + c, width, [&](const int k) { return sum[k]; });
          });
        }
      });
}

// Columns per thread.
constexpr index_t sum_width = on_host ? 64 : 1;

// target += the rows of id = ids[first], whose first occurrence is `first`: one sum per segment, then the tree.
template <class T, class M>
NANOTRON_FUNCTION void add_segments(const std::int32_t* ids, index_t first, index_t count, index_t segments,
                                    const T* dout, index_t hidden, index_t column, index_t width, M factor, M* target) {
  M stack[TreeStack::depth][sum_width] = {};
  const auto add = [&](int into, int from) {
    for (index_t c = 0; c < width; ++c) stack[into][c] += stack[from][c];
  };
  const std::int32_t id = ids[first];
  const index_t each = count / segments, longer = count % segments;  // as shard_range
  TreeStack tree;
  for (index_t s = 0; s < segments; ++s) {
    M* const sum = stack[tree.top()];
    for (index_t c = 0; c < width; ++c) sum[c] = 0;
    const index_t begin = s * each + (s < longer ? s : longer), end = begin + each + (s < longer ? 1 : 0);
    for (index_t j = begin < first ? first : begin; j < end; ++j) {
      if (ids[j] != id) continue;
      for (index_t c = 0; c < width; ++c) sum[c] += factor * static_cast<M>(dout[j * hidden + column + c]);
    }
    tree.push(add);
  }
  tree.finish(add);
  for (index_t c = 0; c < width; ++c) target[column + c] += stack[0][c];
}

template <class T>
void add_by_segments(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> dout,
                     Matrix<master_t<T>> dtable, index_t segments, master_t<T> factor) {
  const index_t hidden = static_cast<index_t>(dout.extent(1)), count = static_cast<index_t>(tokens.extent(0));
  const index_t begin = vocabulary.begin, end = vocabulary.end;
  for_each_row(
      device, "embedding_backward", count, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const std::int32_t* const ids = tokens.data();
        const std::int32_t id = ids[i];
        if (id < begin || id >= end) return;
        const int earlier = row.template sum<int>(i, [=](const index_t j) { return ids[j] == id ? 1 : 0; });
        if (earlier > 0) return;
        master_t<T>* const target = dtable.data() + (id - begin) * hidden;
        row.for_each((hidden + sum_width - 1) / sum_width, [=](const index_t block) {
          const index_t column = block * sum_width, left = hidden - column;
          add_segments(ids, i, count, segments, dout.data(), hidden, column, left < sum_width ? left : sum_width,
                       factor, target);
        });
      });
}

}  // namespace

template <class T>
void embedding_backward(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> dout,
                        Matrix<master_t<T>> dtable, index_t segments, double multiplier) {
  const auto factor = static_cast<master_t<T>>(multiplier);
  const KernelRegion kernel(device, "embedding_backward", reads(tokens, dout, dout), writes(dout));
  if (segments > 1) return add_by_segments<T>(device, tokens, vocabulary, dout, dtable, segments, factor);
  if (on_host && !device.is_planning()) {
    device.fence();
    add_in_order_on_host<T>(tokens, vocabulary, dout, dtable, factor);
  } else {
    add_by_first_occurrence<T>(device, tokens, vocabulary, dout, dtable, factor);
  }
}

#define NANOTRON_INSTANTIATE(T)                                                                                       \
  template void embedding_forward<T>(Device&, Vector<const std::int32_t>, Range, Matrix<const T>, Matrix<T>, double); \
  template void embedding_add<T>(Device&, Vector<const std::int32_t>, Range, Matrix<const T>, Matrix<T>);             \
  template void embedding_backward<T>(Device&, Vector<const std::int32_t>, Range, Matrix<const T>,                    \
                                      Matrix<master_t<T>>, index_t, double);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
