#include "nanotron/kernels/attention/latent.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::kernels {
namespace {

// Pair i of r elements.
struct Pairs {
  index_t half, step, distance;  // element i step and the one `distance` after it
  explicit Pairs(const LatentHeads& h)
      : half(h.rope / 2), step(h.interleaved ? 2 : 1), distance(h.interleaved ? 1 : h.rope / 2) {}
};

// R of one token, or its inverse.
template <class M>
struct Turn {
  const M *cosine, *sine;  // of the token's position; null: nothing is rotated
  M sign;

  template <class F>
  NANOTRON_FUNCTION void operator()(index_t i, M a, M b, const F& f) const {
    if (cosine == nullptr) return f(a, b);
    const M c = cosine[i], s = sign * sine[i];
    f(a * c - b * s, b * c + a * s);
  }
};

template <class T>
struct Turns {
  using M = master_t<T>;
  const std::int32_t* positions;
  const M *cosine, *sine;
  index_t half;
  Turns(const LatentHeads& h, const LatentRotation<T>& r)
      : positions(r.positions.data()),
        cosine(r.cosine.extent(0) > 0 ? r.cosine.data() : nullptr),
        sine(r.sine.data()),
        half(h.rope / 2) {
    NANOTRON_REQUIRE(r.cosine.extent(0) == 0 || static_cast<index_t>(r.cosine.extent(1)) == half,
                     "tables of {} pairs for {} elements", r.cosine.extent(1), h.rope);
  }
  NANOTRON_FUNCTION Turn<M> at(index_t token, M sign) const {
    if (cosine == nullptr) return {nullptr, nullptr, sign};
    return {cosine + positions[token] * half, sine + positions[token] * half, sign};
  }
};

// to <- turned `from`, of r elements.
template <class T>
NANOTRON_FUNCTION void turn_row(const Row& row, const Pairs& pairs, const Turn<master_t<T>>& turn, const T* from,
                                T* to) {
  using M = master_t<T>;
  row.for_each(pairs.half, [=](const index_t i) {
    const index_t low = i * pairs.step, high = low + pairs.distance;
    turn(i, static_cast<M>(from[low]), static_cast<M>(from[high]), [=](const M a, const M b) {
      to[low] = static_cast<T>(a);
      to[high] = static_cast<T>(b);
    });
  });
}

template <class T>
NANOTRON_FUNCTION void copy_row(const Row& row, index_t n, const T* from, T* to) {
  row.for_each(n, [=](const index_t c) { to[c] = from[c]; });
}

void check(const char* what, bool fits) { NANOTRON_REQUIRE(fits, "{}: the matrices do not fit the heads", what); }

}  // namespace

template <class T>
void latent_forward(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation,
                    MatrixRef<const T> query, MatrixRef<const T> key_value, MatrixRef<const T> rope, MatrixRef<T> q,
                    MatrixRef<T> k, MatrixRef<T> v) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "latent_forward", reads(query, key_value, rope), writes(q, k, v));
  const index_t n = heads.nope, w = heads.value, d = heads.width(), count = heads.heads;
  check("latent_forward", q.columns == count * d && k.columns == count * d && v.columns == count * d && w <= d &&
                              query.columns == count * d && key_value.columns == count * (n + w) &&
                              rope.columns == heads.rope);
  const Pairs pairs(heads);
  const Turns<T> turns(heads, rotation);
  for_each_row_of<T>(
      device, "latent_forward", q.rows * count, d, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t token = at / count, head = at % count;
        const Turn<M> turn = turns.at(token, M(1));
        const T* const from_query = query.data + token * query.leading + head * d;
        const T* const from_kv = key_value.data + token * key_value.leading + head * (n + w);
        T* const to_q = q.data + token * q.leading + head * d;
        T* const to_k = k.data + token * k.leading + head * d;
        T* const to_v = v.data + token * v.leading + head * d;
        copy_row(row, n, from_query, to_q);
        turn_row(row, pairs, turn, from_query + n, to_q + n);
        copy_row(row, n, from_kv, to_k);
        turn_row(row, pairs, turn, rope.data + token * rope.leading, to_k + n);
        copy_row(row, w, from_kv + n, to_v);
        row.for_each(d - w, [=](const index_t c) { to_v[w + c] = static_cast<T>(M(0)); });
      });
}

template <class T>
void latent_backward(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation, MatrixRef<const T> dq,
                     MatrixRef<const T> dk, MatrixRef<const T> dv, MatrixRef<T> dquery, MatrixRef<T> dkey_value) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "latent_backward", reads(dq, dk, dv), writes(dquery, dkey_value));
  const index_t n = heads.nope, w = heads.value, d = heads.width(), count = heads.heads;
  check("latent_backward", dq.columns == count * d && dk.columns == count * d && dv.columns == count * d &&
                               dquery.columns == count * d && dkey_value.columns == count * (n + w));
  const Pairs pairs(heads);
  const Turns<T> turns(heads, rotation);
  for_each_row_of<T>(
      device, "latent_backward", dq.rows * count, d, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t token = at / count, head = at % count;
        const T* const from_q = dq.data + token * dq.leading + head * d;
        T* const to_query = dquery.data + token * dquery.leading + head * d;
        T* const to_kv = dkey_value.data + token * dkey_value.leading + head * (n + w);
        copy_row(row, n, from_q, to_query);
        turn_row(row, pairs, turns.at(token, M(-1)), from_q + n, to_query + n);
        copy_row(row, n, dk.data + token * dk.leading + head * d, to_kv);
        copy_row(row, w, dv.data + token * dv.leading + head * d, to_kv + n);
      });
}

template <class T>
void latent_rope_backward(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation,
                          MatrixRef<const T> dk, MatrixRef<T> drope, index_t segments) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "latent_rope_backward", reads(dk), writes(drope));
  const index_t n = heads.nope, d = heads.width(), each = heads.heads / segments;
  check("latent_rope_backward",
        dk.columns == heads.heads * d && drope.columns == heads.rope && each * segments == heads.heads);
  const Pairs pairs(heads);
  const Turns<T> turns(heads, rotation);
  for_each_row_of<T>(
      device, "latent_rope_backward", dk.rows, heads.rope, KOKKOS_LAMBDA(const Row& row, const index_t token) {
        const Turn<M> back = turns.at(token, M(-1));
        const T* const from = dk.data + token * dk.leading + n;
        T* const to = drope.data + token * drope.leading;
        row.for_each(pairs.half, [=](const index_t i) {
          const index_t low = i * pairs.step, high = low + pairs.distance;
          M a_of[TreeStack::depth], b_of[TreeStack::depth];
          const auto rounded = [](const M x) { return static_cast<M>(static_cast<T>(x)); };
          const auto add = [&](const int into, const int other) {
            a_of[into] = rounded(a_of[into] + a_of[other]);
            b_of[into] = rounded(b_of[into] + b_of[other]);
          };
          TreeStack tree;
          for (index_t s = 0; s < segments; ++s) {
            M a = 0, b = 0;
            for (index_t h = s * each; h < (s + 1) * each; ++h) {
              a += static_cast<M>(from[h * d + low]);
              b += static_cast<M>(from[h * d + high]);
            }
            back(i, a, b, [&](const M x, const M y) {
              a_of[tree.top()] = rounded(x);
              b_of[tree.top()] = rounded(y);
            });
            tree.push(add);
          }
          tree.finish(add);
          to[low] = static_cast<T>(a_of[0]);
          to[high] = static_cast<T>(b_of[0]);
        });
      });
}

template <class T>
void latent_rotate(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation, index_t count,
                   MatrixRef<const T> x, index_t x_stride, MatrixRef<T> y, index_t y_stride) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "latent_rotate", reads(x), writes(y));
  check("latent_rotate", (count - 1) * x_stride + heads.rope <= x.columns && x.rows == y.rows &&
                             (count - 1) * y_stride + heads.rope <= y.columns);
  const Pairs pairs(heads);
  const Turns<T> turns(heads, rotation);
  for_each_row_of<T>(
      device, "latent_rotate", x.rows * count, heads.rope, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t token = at / count, head = at % count;
        turn_row(row, pairs, turns.at(token, M(1)), x.data + token * x.leading + head * x_stride,
                 y.data + token * y.leading + head * y_stride);
      });
}

#define NANOTRON_INSTANTIATE(T)                                                                                      \
  template void latent_forward<T>(Device&, const LatentHeads&, const LatentRotation<T>&, MatrixRef<const T>,         \
                                  MatrixRef<const T>, MatrixRef<const T>, MatrixRef<T>, MatrixRef<T>, MatrixRef<T>); \
  template void latent_backward<T>(Device&, const LatentHeads&, const LatentRotation<T>&, MatrixRef<const T>,        \
                                   MatrixRef<const T>, MatrixRef<const T>, MatrixRef<T>, MatrixRef<T>);              \
  template void latent_rope_backward<T>(Device&, const LatentHeads&, const LatentRotation<T>&, MatrixRef<const T>,   \
                                        MatrixRef<T>, index_t);                                                      \
  template void latent_rotate<T>(Device&, const LatentHeads&, const LatentRotation<T>&, index_t, MatrixRef<const T>, \
                                 index_t, MatrixRef<T>, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
