#include "kernels/attention/cuda/attention_cudnn.hpp"

#include "kernels/attention/cuda/cudnn_documents.hpp"
#include "kernels/attention/cuda/cudnn_graphs.hpp"
#include "nanotron/base/error.hpp"

#ifdef NANOTRON_WITH_CUDNN

#include <fmt/format.h>

#include <optional>
#include <unordered_map>

namespace nanotron {
namespace kernels::cudnn {
namespace {

using Problem = AttentionProblem;

// The offset of the free workspace after cuDNN's own.
std::size_t behind(const AttentionPlans::Plan& plan) { return (plan.workspace + 255) / 256 * 256; }

// lse of some heads, one after the other: the caller's, or packed in the workspace.
class Statistics {
 public:
  Statistics(const AttentionShape& s, float* output) : Statistics(s, output, false) {}
  Statistics(const AttentionShape& s, const float* input) : Statistics(s, const_cast<float*>(input), true) {}

  /// Of `part`, after cuDNN's own.
  std::size_t workspace(const AttentionPlans::Plan& plan, const AttentionShape& part) const {
    return is_packed_ ? plan.workspace : behind(plan) + bytes_of(part.batch * part.query_heads);
  }
  /// f(statistics) of `heads` heads from `first` on.
  template <class F>
  void with(Device& device, index_t first, index_t heads, std::byte* packed, const F& f) const {
    float* const rows = lse_ + first * stride_;
    if (is_packed_) return f(rows);
    const std::size_t width = bytes_of(1), pitch = static_cast<std::size_t>(stride_) * sizeof(float);
    const auto copy = [&](void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch) {
      NANOTRON_CHECK_GPU(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, static_cast<std::size_t>(heads),
                                           cudaMemcpyDeviceToDevice, device.exec().cuda_stream()));
    };
    if (is_input_) copy(packed, width, rows, pitch);
    f(reinterpret_cast<float*>(packed));
    if (!is_input_) copy(rows, pitch, packed, width);
  }

 private:
  std::size_t bytes_of(index_t heads) const { return static_cast<std::size_t>(heads * length_) * sizeof(float); }
  Statistics(const AttentionShape& s, float* lse, bool is_input)
      : lse_(lse),
        length_(s.query_length),
        stride_(s.query_row_stride()),
        is_input_(is_input),
        is_packed_(length_ == stride_ && reinterpret_cast<std::uintptr_t>(lse) % 16 == 0) {}

  float* lse_;
  index_t length_, stride_;
  bool is_input_, is_packed_;
};

AttentionPlans& plans_of(Device& device) {
  auto& plans = device.attention_plans();
  if (plans == nullptr) plans = std::make_shared<AttentionPlans>();
  return *plans;
}

// The largest part of `problem` for which cuDNN has a plan that `fits`.
template <class Fits>
std::optional<Problem> part_that_fits(AttentionPlans& plans, Problem problem, const Fits& fits) {
  if (!plans.is_there()) return std::nullopt;
  const AttentionShape whole = problem.shape;
  const auto part = fused::largest_part(whole, [&](const AttentionShape& s) {
    problem.shape = s;
    if (problem.documents > 0 && problem.is_backward()) {
      problem.dq = s.query_heads * s.head_dim, problem.dkv = s.key_heads * s.head_dim;
    }
    const AttentionPlans::Plan& plan = plans.of(problem);
    return plan.graph != nullptr && fits(plan, problem);
  });
  return part ? std::optional(problem) : std::nullopt;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

// pointers(first sequence, first key head) for each part of the whole, but lse.
template <class F>
bool run(Device& device, const Problem& whole, const Statistics& statistics, Vector<std::byte> workspace,
         const F& pointers) {
  AttentionPlans& plans = plans_of(device);
  const auto part = part_that_fits(plans, whole, [&](const AttentionPlans::Plan& plan, const Problem& problem) {
    return statistics.workspace(plan, problem.shape) <= workspace.extent(0);
  });
  if (!part) return false;
  const AttentionPlans::Plan& plan = plans.of(*part);
  const AttentionShape &all = whole.shape, &some = part->shape;
  std::byte* const packed = workspace.data() + behind(plan);
  for (index_t sequence = 0; sequence < all.batch; sequence += some.batch) {
    for (index_t head = 0; head < all.key_heads; head += some.key_heads) {
      const index_t first = sequence * all.query_heads + head * (all.query_heads / all.key_heads);
      statistics.with(device, first, some.batch * some.query_heads, packed, [&](float* lse) {
        Pointers of_part = pointers(sequence, head);
        of_part.emplace(lse_id, lse);
        plans.execute(device, plan, std::move(of_part), workspace.data());
      });
    }
  }
  return true;
}

template <class M>
void* at(const MatrixRef<M>& x, index_t row, index_t column) {
  return const_cast<std::remove_const_t<M>*>(x.data + row * x.leading + column);
}

// Where sequences and key heads begin in the matrices.
struct Offsets {
  const AttentionShape& s;
  index_t group = s.query_heads / s.key_heads;

  template <class M>
  void* query(const MatrixRef<M>& x, index_t sequence, index_t head) const {
    return at(x, sequence * s.query_row_stride(), head * group * s.head_dim);
  }
  template <class M>
  void* key(const MatrixRef<M>& x, index_t sequence, index_t head) const {
    return at(x, sequence * s.key_row_stride(), head * s.head_dim);
  }
};

// What a part with documents has in the workspace after cuDNN's own.
struct DocumentBuffers {
  DocumentBuffers(const Problem& part, std::byte* begin) : table{.max_documents = part.documents} {
    const AttentionShape& s = part.shape;
    const index_t queries = s.batch * s.query_length * s.query_heads, keys = s.batch * s.key_length * s.key_heads;
    table.pitch = fused::offsets_pitch(part.documents);
    const index_t widths[] = {part.q,    part.k,        part.v,  part.out,
                              part.dout, s.query_heads, part.dq, part.dkv};  // in the order of Ragged
    std::ranges::copy(widths, table.row_stride);
    std::byte* at = begin;
    const auto take = [&]<class E>(E*& buffer, index_t elements) {
      buffer = reinterpret_cast<E*>(at);
      at += (static_cast<std::size_t>(elements) * sizeof(E) + 255) / 256 * 256;
    };
    take(table.offsets, fused::ragged_tensors * table.pitch);
    take(table.query_lengths, part.documents);
    take(table.key_lengths, part.documents);
    take(statistics, queries);
    if (part.is_backward()) take(dq, queries * s.head_dim), take(dk, keys * s.head_dim), take(dv, keys * s.head_dim);
    bytes = static_cast<std::size_t>(at - begin);
  }

  DocumentTable table;
  float* statistics = nullptr;
  bf16 *dq = nullptr, *dk = nullptr, *dv = nullptr;
  std::size_t bytes;
};

// Documents in some key heads and their query heads at a time. call(part, first key head, buffers, execute): execute
// runs cuDNN with these pointers, the table's and the statistics'.
template <class F>
bool run_documents(Device& device, const Problem& whole, Vector<std::byte> workspace, const F& call) {
  AttentionPlans& plans = plans_of(device);
  const auto part = part_that_fits(plans, whole, [&](const AttentionPlans::Plan& plan, const Problem& problem) {
    return behind(plan) + DocumentBuffers(problem, nullptr).bytes <= workspace.extent(0);
  });
  if (!part) return false;
  const AttentionPlans::Plan& plan = plans.of(*part);
  const DocumentBuffers buffers(*part, workspace.data() + behind(plan));
  write_documents(device, part->shape, buffers.table);
  const auto run_part = [&](std::initializer_list<std::tuple<AttentionTensor, Ragged, void*>> tensors) {
    Pointers pointers{{query_lengths_id, buffers.table.query_lengths}, {key_lengths_id, buffers.table.key_lengths}};
    for (const auto& [id, offsets, data] : tensors) {
      pointers.emplace(id, data);
      pointers.emplace(offsets_id(id), buffers.table.of(offsets));
    }
    plans.execute(device, plan, std::move(pointers), workspace.data());
  };
  for (index_t head = 0; head < whole.shape.key_heads; head += part->shape.key_heads) {
    call(part->shape, head, buffers, run_part);
  }
  return true;
}

// The columns of some heads.
template <class M>
MatrixRef<M> heads_of(const MatrixRef<M>& x, const AttentionShape& s, index_t first, index_t heads) {
  return x.column_block(first * s.head_dim, heads * s.head_dim);
}
template <class M>
void* data_of(const MatrixRef<M>& x) {
  return at(x, 0, 0);
}

bool forward_of_documents(Device& device, const Problem& problem, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                          MatrixRef<const bf16> v, MatrixRef<bf16> out, float* lse, Vector<std::byte> workspace) {
  const AttentionShape& all = problem.shape;
  const auto part = [&](const AttentionShape& s, index_t head, const DocumentBuffers& buffers, const auto& run_part) {
    const index_t first = head * (all.query_heads / all.key_heads);
    const auto q_of = heads_of(q, s, first, s.query_heads);
    const auto k_of = heads_of(k, s, head, s.key_heads), v_of = heads_of(v, s, head, s.key_heads);
    const auto out_of = heads_of(out, s, first, s.query_heads);
    run_part({{q_id, Ragged::q, data_of(q_of)},
              {k_id, Ragged::k, data_of(k_of)},
              {v_id, Ragged::v, data_of(v_of)},
              {out_id, Ragged::out, data_of(out_of)},
              {lse_id, Ragged::statistics, buffers.statistics}});
    finish_forward(device, s, q_of, k_of, v_of, out_of,
                   {lse + first * all.query_row_stride(), all.query_heads, buffers.statistics});
  };
  return run_documents(device, problem, workspace, part);
}

bool backward_of_documents(Device& device, const Problem& problem, const blocked::BackwardTensors<bf16>& t,
                           Vector<std::byte> workspace) {
  const AttentionShape& all = problem.shape;
  const auto part = [&](const AttentionShape& s, index_t head, const DocumentBuffers& buffers, const auto& run_part) {
    const index_t first = head * (all.query_heads / all.key_heads);
    const auto queries = [&](const auto& x) { return heads_of(x, s, first, s.query_heads); };
    const auto keys = [&](const auto& x) { return heads_of(x, s, head, s.key_heads); };
    pack_statistics(
        device, s,
        {const_cast<float*>(t.lse.data()) + first * all.query_row_stride(), all.query_heads, buffers.statistics});
    run_part({{q_id, Ragged::q, data_of(queries(t.q))},
              {k_id, Ragged::k, data_of(keys(t.k))},
              {v_id, Ragged::v, data_of(keys(t.v))},
              {out_id, Ragged::out, data_of(queries(t.out))},
              {dout_id, Ragged::dout, data_of(queries(t.dout))},
              {lse_id, Ragged::statistics, buffers.statistics},
              {dq_id, Ragged::dq, buffers.dq},
              {dk_id, Ragged::dkv, buffers.dk},
              {dv_id, Ragged::dkv, buffers.dv}});
    finish_backward(device, s, queries(t.dout),
                    {queries(t.dq), keys(t.dk), keys(t.dv), buffers.dq, buffers.dk, buffers.dv});
  };
  return run_documents(device, problem, workspace, part);
}

}  // namespace

bool attention_forward(Device& device, const AttentionShape& s, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                       MatrixRef<const bf16> v, MatrixRef<bf16> out, Vector<float> lse, Vector<std::byte> workspace) {
  if (!fused::by_cudnn(device, s, {q, k, v, out})) return false;
  const fused::Mask mask = fused::mask_of(s).value();
  const Problem problem{.shape = s,
                        .mask = mask,
                        .documents = fused::documents_of_graph(s, mask),
                        .q = q.leading,
                        .k = k.leading,
                        .v = v.leading,
                        .out = out.leading};
  if (problem.documents > 0) return forward_of_documents(device, problem, q, k, v, out, lse.data(), workspace);
  const Offsets from{s};
  return run(device, problem, Statistics(s, lse.data()), workspace, [&](index_t b, index_t h) {
    return Pointers{{q_id, from.query(q, b, h)},
                    {k_id, from.key(k, b, h)},
                    {v_id, from.key(v, b, h)},
                    {out_id, from.query(out, b, h)}};
  });
}

bool attention_backward(Device& device, const AttentionShape& s, const blocked::BackwardTensors<bf16>& t,
                        Vector<std::byte> workspace) {
  if (t.dk.leading != t.dv.leading || !fused::has_backward(s) ||
      !fused::by_cudnn(device, s, {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv})) {
    return false;
  }
  const fused::Mask mask = fused::mask_of(s).value();
  const Problem problem{.shape = s,
                        .mask = mask,
                        .documents = fused::documents_of_graph(s, mask),
                        .q = t.q.leading,
                        .k = t.k.leading,
                        .v = t.v.leading,
                        .out = t.out.leading,
                        .dout = t.dout.leading,
                        .dq = t.dq.leading,
                        .dkv = t.dk.leading};
  if (problem.documents > 0) return backward_of_documents(device, problem, t, workspace);
  const Offsets from{s};
  return run(device, problem, Statistics(s, t.lse.data()), workspace, [&](index_t b, index_t h) {
    return Pointers{{q_id, from.query(t.q, b, h)},   {k_id, from.key(t.k, b, h)},
                    {v_id, from.key(t.v, b, h)},     {out_id, from.query(t.out, b, h)},
                    {dq_id, from.query(t.dq, b, h)}, {dk_id, from.key(t.dk, b, h)},
                    {dv_id, from.key(t.dv, b, h)},   {dout_id, from.query(t.dout, b, h)}};
  });
}

bool is_there(Device& device) { return plans_of(device).is_there(); }

std::string why_missing(Device&) {
  return AttentionPlans::has_library() ? "cuDNN cannot be initialized on this device" : "libcudnn.so.9 was not found";
}

std::string version() {
  const std::size_t version = AttentionPlans::version();  // 92801: 9.28.1
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace kernels::cudnn
}  // namespace nanotron

#else

namespace nanotron::kernels::cudnn {

bool attention_forward(Device&, const AttentionShape&, MatrixRef<const bf16>, MatrixRef<const bf16>,
                       MatrixRef<const bf16>, MatrixRef<bf16>, Vector<float>, Vector<std::byte>) {
  return false;
}

bool attention_backward(Device&, const AttentionShape&, const blocked::BackwardTensors<bf16>&, Vector<std::byte>) {
  return false;
}

bool is_there(Device&) { return false; }
std::string why_missing(Device&) { return "this program was built without cuDNN"; }
std::string version() { return ""; }

}  // namespace nanotron::kernels::cudnn

#endif
