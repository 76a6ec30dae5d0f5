#include "kernels/attention/cuda/attention_cudnn.hpp"

#include "kernels/attention/attention_fused.hpp"
#include "nanotron/base/error.hpp"

#ifdef NANOTRON_WITH_CUDNN

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

namespace nanotron {
namespace {

namespace fe = cudnn_frontend;

// One call of cuDNN: some sequences of the shape, some key heads with their query heads.
struct Problem {
  kernels::AttentionShape shape;
  kernels::fused::Mask mask;
  index_t q, k, v, out;               // leading dimensions
  index_t dout = 0, dq = 0, dkv = 0;  // 0 in forward

  bool is_backward() const { return dout > 0; }
  using Key = std::array<index_t, 18>;
  Key key() const {
    const kernels::AttentionShape& s = shape;
    return {s.batch,
            s.query_heads,
            s.key_heads,
            s.query_length,
            s.key_length,
            s.head_dim,
            s.query_row_stride(),
            s.key_row_stride(),
            s.window,
            static_cast<index_t>(mask),
            static_cast<index_t>(s.backward),
            q,
            k,
            v,
            out,
            dout,
            dq,
            dkv};
  }
};

enum TensorId : std::int64_t { q_id = 1, k_id, v_id, out_id, lse_id, dout_id, dq_id, dk_id, dv_id };

class GraphBuilder {
 public:
  GraphBuilder(const Problem& problem, fe::graph::Graph& graph) : p_(problem), s_(problem.shape), graph_(graph) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void forward() {
    auto options = fe::graph::SDPA_attributes().set_name("attention_forward").set_generate_stats(true);
    set_mask(options);
    auto [out, lse] =
        graph_.sdpa(queries(input(), q_id, p_.q), keys(input(), k_id, p_.k), keys(input(), v_id, p_.v), options);
    queries(out, out_id, p_.out)->set_output(true);
    statistics(lse)->set_output(true);
  }

  void backward() {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_deterministic_algorithm(s_.backward == kernels::BackwardAlgorithm::deterministic);
    set_mask(options);
    const Tensor q = queries(input(), q_id, p_.q), k = keys(input(), k_id, p_.k), v = keys(input(), v_id, p_.v);
    const Tensor out = queries(input(), out_id, p_.out), dout = queries(input(), dout_id, p_.dout);
    auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, out, dout, statistics(input()), options);
    queries(dq, dq_id, p_.dq)->set_output(true);
    keys(dk, dk_id, p_.dkv)->set_output(true);
    keys(dv, dv_id, p_.dkv)->set_output(true);
  }

 private:
  using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  template <class Options>
  void set_mask(Options& options) const {
    options.set_attn_scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(s_.head_dim))));
    if (p_.mask == kernels::fused::Mask::none) return;
    options.set_causal_mask(true);
    if (s_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s_.window));
  }
  Tensor input() { return graph_.tensor(fe::graph::Tensor_attributes()); }
  // (sequences, heads, rows, columns) of a matrix (sequences * rows, heads * head_dim).
  Tensor queries(const Tensor& t, TensorId id, index_t leading) const {
    t->set_uid(id).set_dim({s_.batch, s_.query_heads, s_.query_length, s_.head_dim});
    t->set_stride({s_.query_row_stride() * leading, s_.head_dim, leading, 1});
    return t;
  }
  Tensor keys(const Tensor& t, TensorId id, index_t leading) const {
    t->set_uid(id).set_dim({s_.batch, s_.key_heads, s_.key_length, s_.head_dim});
    t->set_stride({s_.key_row_stride() * leading, s_.head_dim, leading, 1});
    return t;
  }
  // Packed: before 9.26 cuDNN does no other form right (cudnn-frontend 1.28 refuses it).
  Tensor statistics(const Tensor& t) const {
    t->set_uid(lse_id).set_data_type(fe::DataType_t::FLOAT).set_dim({s_.batch, s_.query_heads, s_.query_length, 1});
    t->set_stride({s_.query_heads * s_.query_length, s_.query_length, 1, 1});
    return t;
  }

  const Problem& p_;
  const kernels::AttentionShape& s_;
  fe::graph::Graph& graph_;
};

void load_library() {
#ifdef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
  if (fe::cudnn_dlhandle != nullptr) return;
  // Else the frontend takes the first that it finds, of CUDA 12 before 13.
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(), 0);
  fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
#endif
}

bool has_library() {
#ifdef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
  return fe::cudnn_dlhandle != nullptr;
#else
  return true;
#endif
}

}  // namespace

// The handle of cuDNN, and what it has planned.
struct AttentionPlans {
  struct Plan {
    std::unique_ptr<fe::graph::Graph> graph;  // null: cuDNN does not do it
    std::size_t workspace = 0;
  };

  AttentionPlans() {
    load_library();
    if (has_library() && fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
  }
  ~AttentionPlans() {
    plans.clear();
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;

  const Plan& of(const Problem& problem) {
    const auto [found, is_new] = plans.try_emplace(problem.key());
    Plan& plan = found->second;
    if (!is_new || handle == nullptr) return plan;
    auto graph = std::make_unique<fe::graph::Graph>();
    GraphBuilder builder(problem, *graph);
    problem.is_backward() ? builder.backward() : builder.forward();
    std::int64_t bytes = 0;
    if (graph->build(handle, {fe::HeurMode_t::A}).is_bad() || graph->get_workspace_size(bytes).is_bad()) return plan;
    plan.graph = std::move(graph);
    plan.workspace = static_cast<std::size_t>(bytes);
    return plan;
  }

  cudnnHandle_t handle = nullptr;  // null: there is no cuDNN
  std::map<Problem::Key, Plan> plans;
};

namespace kernels::cudnn {
namespace {

// lse of some heads, one after the other: the caller's, or packed in the workspace.
class Statistics {
 public:
  Statistics(const AttentionShape& s, float* output) : Statistics(s, output, false) {}
  Statistics(const AttentionShape& s, const float* input) : Statistics(s, const_cast<float*>(input), true) {}

  /// Of `part`, behind cuDNN's own.
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
      NANOTRON_CHECK_CUDA(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, static_cast<std::size_t>(heads),
                                            cudaMemcpyDeviceToDevice, device.exec().cuda_stream()));
    };
    if (is_input_) copy(packed, width, rows, pitch);
    f(reinterpret_cast<float*>(packed));
    if (!is_input_) copy(rows, pitch, packed, width);
  }
  static std::size_t behind(const AttentionPlans::Plan& plan) { return (plan.workspace + 255) / 256 * 256; }

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

// The largest part of `problem` that cuDNN does in the workspace.
std::optional<Problem> part_that_fits(AttentionPlans& plans, Problem problem, const Statistics& statistics,
                                      std::size_t workspace) {
  const AttentionShape whole = problem.shape;
  const auto part = fused::largest_part(whole, [&](const AttentionShape& s) {
    problem.shape = s;
    const AttentionPlans::Plan& plan = plans.of(problem);
    return plan.graph != nullptr && statistics.workspace(plan, s) <= workspace;
  });
  return part ? std::optional(problem) : std::nullopt;
}

AttentionPlans& plans_of(Device& device) {
  auto& plans = device.attention_plans();
  if (plans == nullptr) plans = std::make_shared<AttentionPlans>();
  return *plans;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

// pointers(first sequence, first key head) for each part of the whole, but lse.
template <class F>
bool run(Device& device, const Problem& whole, const Statistics& statistics, Vector<std::byte> workspace,
         const F& pointers) {
  AttentionPlans& plans = plans_of(device);
  if (plans.handle == nullptr) return false;
  const std::optional<Problem> part = part_that_fits(plans, whole, statistics, workspace.extent(0));
  if (!part) return false;
  const auto require = [](bool good, const std::string& found) {
    if (!good) fail(ExitCode::system_error, {.what = "cuDNN could not run attention", .found = found});
  };
  require(fe::detail::set_stream(plans.handle, device.exec().cuda_stream()) == CUDNN_STATUS_SUCCESS, "no stream");
  const AttentionPlans::Plan& plan = plans.of(*part);
  const AttentionShape &all = whole.shape, &some = part->shape;
  std::byte* const packed = workspace.data() + Statistics::behind(plan);
  for (index_t sequence = 0; sequence < all.batch; sequence += some.batch) {
    for (index_t head = 0; head < all.key_heads; head += some.key_heads) {
      const index_t first = sequence * all.query_heads + head * (all.query_heads / all.key_heads);
      statistics.with(device, first, some.batch * some.query_heads, packed, [&](float* lse) {
        Pointers of_part = pointers(sequence, head);
        of_part.emplace(lse_id, lse);
        auto error = plan.graph->execute(plans.handle, of_part, workspace.data());
        require(error.is_good(), error.get_message());
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

}  // namespace

bool attention_forward(Device& device, const AttentionShape& s, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                       MatrixRef<const bf16> v, MatrixRef<bf16> out, Vector<float> lse, Vector<std::byte> workspace) {
  if (!fused::by_cudnn(device, s, {q, k, v, out})) return false;
  const Problem problem{.shape = s,
                        .mask = fused::mask_of(s).value(),
                        .q = q.leading,
                        .k = k.leading,
                        .v = v.leading,
                        .out = out.leading};
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
  if (t.dk.leading != t.dv.leading || !fused::by_cudnn(device, s, {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv})) {
    return false;
  }
  const Problem problem{.shape = s,
                        .mask = fused::mask_of(s).value(),
                        .q = t.q.leading,
                        .k = t.k.leading,
                        .v = t.v.leading,
                        .out = t.out.leading,
                        .dout = t.dout.leading,
                        .dq = t.dq.leading,
                        .dkv = t.dk.leading};
  const Offsets from{s};
  return run(device, problem, Statistics(s, t.lse.data()), workspace, [&](index_t b, index_t h) {
    return Pointers{{q_id, from.query(t.q, b, h)},   {k_id, from.key(t.k, b, h)},
                    {v_id, from.key(t.v, b, h)},     {out_id, from.query(t.out, b, h)},
                    {dq_id, from.query(t.dq, b, h)}, {dk_id, from.key(t.dk, b, h)},
                    {dv_id, from.key(t.dv, b, h)},   {dout_id, from.query(t.dout, b, h)}};
  });
}

bool is_there(Device& device) { return plans_of(device).handle != nullptr; }

std::string why_missing(Device&) {
  return has_library() ? "cuDNN does not start on this device" : "libcudnn.so.9 was not found";
}

std::string version() {
  const std::size_t version = fe::detail::get_backend_version();  // 92801: 9.28.1
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace kernels::cudnn
}  // namespace nanotron

#ifdef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
void* cudnn_frontend::cudnn_dlhandle = nullptr;  // declared by the frontend for its users to set
#endif

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
