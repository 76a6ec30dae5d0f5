#include "kernels/attention/cuda/cudnn_graphs.hpp"

#ifdef NANOTRON_WITH_CUDNN

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <bit>

#include <cmath>
#include <cstdlib>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

namespace fe = cudnn_frontend;

class GraphBuilder {
 public:
  GraphBuilder(const AttentionProblem& problem, fe::graph::Graph& graph)
      : p_(problem), s_(problem.shape), sequences_(p_.documents > 0 ? p_.documents : s_.batch), graph_(graph) {
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
    if (p_.documents > 0) {  // else cuDNN reserves the largest length for each one
      options.set_max_total_seq_len_q(s_.batch * s_.query_length).set_max_total_seq_len_kv(s_.batch * s_.key_length);
    }
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
    options.set_attn_scale(static_cast<float>(s_.scores.scale_or(1.0 / std::sqrt(static_cast<double>(s_.head_dim)))));
    if (p_.documents > 0) {
      options.set_padding_mask(true)
          .set_seq_len_q(indices(query_lengths_id, sequences_, fe::DataType_t::INT32))
          .set_seq_len_kv(indices(key_lengths_id, sequences_, fe::DataType_t::INT32));
    }
    if (p_.mask == kernels::fused::Mask::none) return;
    options.set_causal_mask(true);
    if (s_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s_.window));
  }
  Tensor input() const { return graph_.tensor(fe::graph::Tensor_attributes()); }
  Tensor indices(std::int64_t id, index_t count, fe::DataType_t type) const {
    const Tensor t = input();
    t->set_uid(id).set_data_type(type).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1});
    return t;
  }
  // Each document begins where its offset says.
  Tensor placed(const Tensor& t, std::int64_t id) const {
    t->set_uid(id);
    if (p_.documents > 0) t->set_ragged_offset(indices(offsets_id(id), sequences_ + 1, fe::DataType_t::INT64));
    return t;
  }
  // (sequences, heads, rows, columns) of a matrix (sequences * rows, heads * head_dim).
  Tensor queries(const Tensor& t, std::int64_t id, index_t leading) const {
    t->set_dim({sequences_, s_.query_heads, s_.query_length, s_.head_dim});
    t->set_stride({s_.query_row_stride() * leading, s_.head_dim, leading, 1});
    return placed(t, id);
  }
  Tensor keys(const Tensor& t, std::int64_t id, index_t leading) const {
    t->set_dim({sequences_, s_.key_heads, s_.key_length, s_.head_dim});
    t->set_stride({s_.key_row_stride() * leading, s_.head_dim, leading, 1});
    return placed(t, id);
  }
  // Packed: before 9.26 cuDNN computes other layouts wrongly (cudnn-frontend 1.28 rejects them). Documents: row by row.
  Tensor statistics(const Tensor& t) const {
    const index_t heads = s_.query_heads, rows = s_.query_length;
    t->set_data_type(fe::DataType_t::FLOAT).set_dim({sequences_, heads, rows, 1});
    p_.documents > 0 ? t->set_stride({heads * rows, 1, heads, 1}) : t->set_stride({heads * rows, rows, 1, 1});
    return placed(t, lse_id);
  }

  const AttentionProblem& p_;
  const kernels::AttentionShape& s_;
  index_t sequences_;
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

}  // namespace

AttentionProblem::Key AttentionProblem::key() const {
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
          std::bit_cast<index_t>(s.scores.scale),
          documents,
          q,
          k,
          v,
          out,
          dout,
          dq,
          dkv};
}

struct AttentionPlans::Handle {
  explicit Handle(cudnnHandle_t handle) : value(handle) {}
  ~Handle() { fe::detail::destroy_handle(value); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t value;
};

AttentionPlans::AttentionPlans() {
  load_library();
  cudnnHandle_t handle = nullptr;
  if (has_library() && fe::detail::create_handle(&handle) == CUDNN_STATUS_SUCCESS) {
    handle_ = std::make_unique<Handle>(handle);
  }
}

AttentionPlans::~AttentionPlans() { plans_.clear(); }

bool AttentionPlans::has_library() {
#ifdef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
  return fe::cudnn_dlhandle != nullptr;
#else
  return true;
#endif
}

bool AttentionPlans::is_there() const { return handle_ != nullptr; }

std::size_t AttentionPlans::version() { return fe::detail::get_backend_version(); }

const AttentionPlans::Plan& AttentionPlans::of(const AttentionProblem& problem) {
  const auto [found, is_new] = plans_.try_emplace(problem.key());
  Plan& plan = found->second;
  if (!is_new || handle_ == nullptr) return plan;
  auto graph = std::make_shared<fe::graph::Graph>();
  GraphBuilder builder(problem, *graph);
  problem.is_backward() ? builder.backward() : builder.forward();
  std::int64_t bytes = 0;
  if (graph->build(handle_->value, {fe::HeurMode_t::A}).is_bad() || graph->get_workspace_size(bytes).is_bad()) {
    return plan;
  }
  plan.graph = std::move(graph);
  plan.workspace = static_cast<std::size_t>(bytes);
  return plan;
}

void AttentionPlans::execute(Device& device, const Plan& plan, std::unordered_map<std::int64_t, void*> tensors,
                             void* workspace) {
  const auto require = [](bool good, const std::string& found) {
    if (!good) fail(ExitCode::system_error, {.what = "cuDNN could not run attention", .found = found});
  };
  const bool is_set = fe::detail::set_stream(handle_->value, device.exec().cuda_stream()) == CUDNN_STATUS_SUCCESS;
  require(is_set, "no stream");
  auto error = plan.graph->execute(handle_->value, tensors, workspace);
  require(error.is_good(), error.get_message());
}

}  // namespace nanotron

#ifdef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
void* cudnn_frontend::cudnn_dlhandle = nullptr;  // declared by the frontend for its users to set
#endif

#endif
