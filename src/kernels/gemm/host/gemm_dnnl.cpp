#include "kernels/gemm/gemm_dnnl.hpp"

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

using Dims = dnnl::memory::dims;

#if DNNL_VERSION_MAJOR >= 3
dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                      const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                                      const dnnl::primitive_attr& attributes) {
  return {engine, a, b, c, attributes};
}
void append_factor(dnnl::post_ops& ops, float factor) {
  ops.append_eltwise(dnnl::algorithm::eltwise_linear, factor, 0.0f);
}
#else
dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                      const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                                      const dnnl::primitive_attr& attributes) {
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
}
void append_factor(dnnl::post_ops& ops, float factor) {
  ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, factor, 0.0f);
}
#endif

void execute(const dnnl::primitive& primitive, const dnnl::stream& stream,
             std::initializer_list<dnnl_exec_arg_t> arguments) {
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(arguments.size()), arguments.begin());
  NANOTRON_REQUIRE(status == dnnl_success, "oneDNN could not run a GEMM: status {}", static_cast<int>(status));
}

std::unique_ptr<GemmHandles::Matmul> make(const GemmHandles& handles, const kernels::detail::GemmProblem& p,
                                          dnnl::memory::data_type operands, dnnl::memory::data_type result,
                                          bool packed_b) {
  using kernels::Op;
  auto made = std::make_unique<GemmHandles::Matmul>();
  made->problem = p;
  made->operands = operands;
  made->result = result;
  made->packed_b = packed_b;
  const Dims strides_a = p.op_a == Op::none ? Dims{p.leading_a, 1} : Dims{1, p.leading_a};
  const Dims strides_b = p.op_b == Op::none ? Dims{p.leading_b, 1} : Dims{1, p.leading_b};
  const dnnl::memory::desc a({p.m, p.k}, operands, strides_a);
  const dnnl::memory::desc b({p.k, p.n}, operands, strides_b);
  const dnnl::memory::desc any_b({p.k, p.n}, operands, dnnl::memory::format_tag::any);
  const dnnl::memory::desc c({p.m, p.n}, result, Dims{p.leading_c, 1});

  dnnl::post_ops ops;
  if (p.alpha != 1.0) append_factor(ops, static_cast<float>(p.alpha));
  if (p.beta != 0.0) ops.append_sum(static_cast<float>(p.beta));
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(ops);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto description = describe(handles.engine, a, packed_b ? any_b : b, c, attributes);
  made->primitive = dnnl::matmul(description);
  made->a = dnnl::memory(a, handles.engine, nullptr);
  made->c = dnnl::memory(c, handles.engine, nullptr);
  made->plain_b = dnnl::memory(b, handles.engine, nullptr);
  made->b = dnnl::memory(description.weights_desc(), handles.engine, nullptr);
  made->scratch = dnnl::memory(description.scratchpad_desc(), handles.engine, nullptr);
  made->scratch_bytes = description.scratchpad_desc().get_size();
  if (packed_b) {
    made->pack_b = dnnl::reorder(made->plain_b, made->b);
    made->packed_b_bytes = description.weights_desc().get_size();
  }
  return made;
}

}  // namespace

GemmHandles::Matmul& GemmHandles::find(const kernels::detail::GemmProblem& problem, dnnl::memory::data_type operands,
                                       dnnl::memory::data_type result, bool packed_b) {
  for (const auto& m : matmuls) {
    if (m->problem == problem && m->operands == operands && m->result == result && m->packed_b == packed_b) {
      return *m;
    }
  }
  matmuls.push_back(make(*this, problem, operands, result, packed_b));
  return *matmuls.back();
}

void GemmHandles::run(Matmul& m, const void* a, const void* b, void* c, std::byte* packed, std::byte* scratch) {
  if (m.packed_b) {
    m.plain_b.set_data_handle(const_cast<void*>(b));
    m.b.set_data_handle(packed);
    execute(m.pack_b, stream, {{DNNL_ARG_FROM, m.plain_b.get()}, {DNNL_ARG_TO, m.b.get()}});
  } else {
    m.b.set_data_handle(const_cast<void*>(b));
  }
  if (scratch == nullptr && m.scratch_bytes > 0) {
    m.own_scratch.resize(m.scratch_bytes);
    scratch = m.own_scratch.data();
  }
  m.a.set_data_handle(const_cast<void*>(a));
  m.c.set_data_handle(c);
  m.scratch.set_data_handle(scratch);
  execute(m.primitive, stream,
          {{DNNL_ARG_SRC, m.a.get()},
           {DNNL_ARG_WEIGHTS, m.b.get()},
           {DNNL_ARG_DST, m.c.get()},
           {DNNL_ARG_SCRATCHPAD, m.scratch.get()}});
  stream.wait();
}

namespace kernels::detail {

GemmHandles& handles(Device& device) {
  auto& gemms = device.gemm_handles();
  if (gemms == nullptr) gemms = std::make_shared<GemmHandles>();
  return *gemms;
}

}  // namespace kernels::detail
}  // namespace nanotron
