#pragma once

// oneDNN's matmul behind a cache: one primitive for a product and its layouts, made at its first
// use. Only pointers change afterwards. Works with oneDNN 2.x and 3.x.

#include <oneapi/dnnl/dnnl.hpp>

#include <memory>
#include <vector>

#include "kernels/gemm/gemm_backend.hpp"

namespace nanotron {

// Of one Device. Owns the engine, the stream and the primitives.
struct ProductHandles {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};

  struct Matmul {
    kernels::detail::Product product;
    dnnl::memory::data_type operands;  // of A and B
    dnnl::memory::data_type result;
    bool packed_b = false;
    dnnl::matmul primitive;
    dnnl::reorder pack_b;  // set when packed_b
    dnnl::memory a, b, plain_b, c, scratch;
    std::size_t packed_b_bytes = 0;
    std::size_t scratch_bytes = 0;
    std::vector<std::byte> own_scratch;  // when the product workspace was too small for it
  };
  std::vector<std::unique_ptr<Matmul>> matmuls;

  // The cached or newly made primitive. With packed_b, B is taken in the layout oneDNN likes best.
  Matmul& find(const kernels::detail::Product& product, dnnl::memory::data_type operands,
               dnnl::memory::data_type result, bool packed_b);

  // Runs it; packed is room for m.packed_b_bytes, scratch for m.scratch_bytes or null.
  void run(Matmul& m, const void* a, const void* b, void* c, std::byte* packed, std::byte* scratch);
};

namespace kernels::detail {

ProductHandles& handles(Device& device);

}  // namespace kernels::detail
}  // namespace nanotron
