#include "nanotron/kernels/attention/attention_mma.hpp"

#include <cmath>

#include "kernels/attention/mma/key_gradient.hpp"
#include "kernels/attention/mma/query_gradient.hpp"

namespace nanotron::kernels::mma {
namespace {

// f(width) with the width of tiles for heads of head_dim elements.
template <class F>
void with_width(index_t head_dim, const F& f) {
  if (head_dim <= 64) {
    f(std::integral_constant<int, 64>{});
  } else {
    NANOTRON_REQUIRE(head_dim <= max_head_dim, "attention: head_dim {}", head_dim);
    f(std::integral_constant<int, max_head_dim>{});
  }
}

float scale_of(const AttentionShape& s) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim))); }

}  // namespace

void attention_forward(Device& device, const AttentionShape& s, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                       MatrixRef<const bf16> v, MatrixRef<bf16> out, Vector<float> lse) {
  with_width(s.head_dim, [&](auto width) {
    using Kernel = Forward<decltype(width)::value>;
    const Kernel kernel{{s}, q, k, v, out, lse.data(), scale_of(s)};
    launch_blocks(device, "attention_forward_mma", Kernel::blocks(s), kernel);
  });
}

void attention_backward(Device& device, const AttentionShape& s, const blocked::BackwardTensors<bf16>& t,
                        Vector<std::byte> workspace) {
  const BackwardInputs in{{s},        t.q, t.k, t.v, t.dout, t.lse.data(), reinterpret_cast<float*>(workspace.data()),
                          scale_of(s)};
  with_width(s.head_dim, [&](auto width) {
    using OfQueries = QueryGradient<decltype(width)::value>;
    using OfKeys = KeyGradient<decltype(width)::value>;
    launch_blocks(device, "attention_dq_mma", OfQueries::blocks(s), OfQueries{in, t.out, t.dq});
    launch_blocks(device, "attention_dkv_mma", OfKeys::blocks(s), OfKeys{in, t.dk, t.dv});
  });
}

std::size_t attention_workspace_bytes(const AttentionShape& s) {
  return sizeof(float) * static_cast<std::size_t>(s.batch * s.query_heads * s.query_length);
}

}  // namespace nanotron::kernels::mma
