#pragma once

// A cache of oneDNN matmul primitives: one per shape and layout, created at first use. Later calls
// set pointers only. Works with oneDNN 2.x and 3.x.

#include <oneapi/dnnl/dnnl.hpp>

#include <memory>
#include <vector>

#include "kernels/gemm/gemm_backend.hpp"

namespace nanotron {

// One per Device. Owns the dnnl engine, the dnnl stream and the primitives.
struct GemmHandles {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};

  struct Matmul {
    kernels::detail::GemmProblem problem;
    dnnl::memory::data_type operands;  // of A and B
    dnnl::memory::data_type result;
    bool packed_b = false;
    dnnl::matmul primitive;
    dnnl::reorder pack_b;  // set when packed_b
    dnnl::memory a, b, plain_b, c, scratch;
    std::size_t packed_b_bytes = 0;
    std::size_t scratch_bytes = 0;
    std::vector<std::byte> own_scratch;  // where the GEMM workspace was too small
  };
  std::vector<std::unique_ptr<Matmul>> matmuls;

  // The primitive, from the cache or created. With packed_b, B is reordered into the layout oneDNN prefers.
  Matmul& find(const kernels::detail::GemmProblem& problem, dnnl::memory::data_type operands,
               dnnl::memory::data_type result, bool packed_b);

  // packed: a buffer of m.packed_b_bytes; scratch: one of m.scratch_bytes, or null for m.own_scratch.
  void run(Matmul& m, const void* a, const void* b, void* c, std::byte* packed, std::byte* scratch);
};

namespace kernels::detail {

GemmHandles& handles(Device& device);

}  // namespace kernels::detail
}  // namespace nanotron
