// cuDNN's attention as queued work of an emulated GPU: plain loops in fp64, results rounded once; p and ds are rounded
// to bf16 as operands of their products, as tensor cores take them.
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "emulation/device_memory.hpp"
#include "emulation/scheduler.hpp"
#include "nanotron/base/types.hpp"

using namespace nanotron::emulation;
using nanotron::bf16;

struct EmulatedCudnn {
  cudaStream_t stream = nullptr;
};

namespace cudnn_frontend {
namespace detail {

cudnnStatus_t create_handle(cudnnHandle_t* handle) {
  *handle = new EmulatedCudnn;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_handle(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace detail

namespace graph {
namespace {

// A tensor of four dimensions in memory. Ragged: sequence b begins at offsets[b].
template <class T>
struct View {
  T* data;
  std::vector<std::int64_t> dim, stride;
  const std::int64_t* offsets;

  std::int64_t begin(std::int64_t b) const { return offsets == nullptr ? b * stride[0] : offsets[b]; }
  std::int64_t end(std::int64_t b, std::int64_t rows) const {
    return begin(b) + (rows - 1) * stride[2] + (dim[1] - 1) * stride[1] + dim[3];
  }
  T& operator()(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c) const {
    return data[begin(b) + h * stride[1] + i * stride[2] + c * stride[3]];
  }
};

Executions executed;

double rounded(double x) { return static_cast<double>(static_cast<float>(bf16(static_cast<float>(x)))); }

struct Shape {
  std::int64_t sequences, heads, group, max_queries, max_keys, width;
  Options options;
  const std::int32_t *query_lengths, *key_lengths;  // null: the most

  std::int64_t queries(std::int64_t b) const { return query_lengths == nullptr ? max_queries : query_lengths[b]; }
  std::int64_t keys(std::int64_t b) const { return key_lengths == nullptr ? max_keys : key_lengths[b]; }

  bool sees(std::int64_t i, std::int64_t j) const {
    if (!options.is_causal) return true;
    return j <= i && (!options.window || j > i - *options.window);
  }
};

// f(sequence, head, query, scaled scores of all keys).
template <class F>
void for_each_query(const Shape& s, const View<const bf16>& q, const View<const bf16>& k, const F& f) {
  std::vector<double> scores(static_cast<std::size_t>(s.max_keys));
  for (std::int64_t b = 0; b < s.sequences; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.queries(b); ++i) {
        for (std::int64_t j = 0; j < s.keys(b); ++j) {
          double dot = 0;
          for (std::int64_t c = 0; c < s.width; ++c) {
            dot += static_cast<double>(q(b, h, i, c)) * static_cast<double>(k(b, h / s.group, j, c));
          }
          scores[static_cast<std::size_t>(j)] = dot * static_cast<double>(s.options.scale);
        }
        f(b, h, i, scores);
      }
    }
  }
}

void count_documents(const Shape& s) {
  if (s.query_lengths == nullptr) return;
  executed.of_documents += s.sequences - std::count(s.query_lengths, s.query_lengths + s.sequences, 0) > 1 ? 1 : 0;
}

// Of ragged tensors each sequence has its rows in the tensor's memory, aligned. No two sequences of a result share any.
template <class T>
void check_ragged(const Shape& s, const View<T>& x, bool is_key) {
  if (x.offsets == nullptr || x.data == nullptr) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (std::int64_t b = 0; b < s.sequences; ++b) {
    const std::int64_t rows = is_key ? s.keys(b) : s.queries(b);
    if (rows < 0 || rows > x.dim[2]) fault(fmt::format("cuDNN: sequence {} has {} rows of {}", b, rows, x.dim[2]));
    if (rows == 0) continue;
    const std::int64_t begin = x.begin(b), end = x.end(b, rows);
    require_device(x.data + begin, static_cast<std::size_t>(end - begin) * sizeof(T), "a ragged sequence of cuDNN");
    if (sizeof(T) == 2 && begin % 8 != 0)
      fault(fmt::format("cuDNN: ragged offset {} is not aligned to 16 bytes", begin));
    taken.emplace_back(begin, end);
  }
  if constexpr (!std::is_const_v<T>) {
    std::ranges::sort(taken);
    for (std::size_t i = 1; i < taken.size(); ++i) {
      if (taken[i].first < taken[i - 1].second) fault("cuDNN: two ragged sequences of a result overlap");
    }
  }
}

std::string misaligned(const Tensor& t, DataType_t io) {
  if (t->dim.size() != 4 || t->stride.size() != 4) return fmt::format("tensor {} has no four dimensions", t->uid);
  if (t->type == DataType_t::FLOAT) return "";
  if (io != DataType_t::BFLOAT16) return "the type of the tensors is not set";
  for (int d = 0; d < 3; ++d) {
    const bool counts = t->dim[static_cast<std::size_t>(d)] > 1;
    if (counts && t->stride[static_cast<std::size_t>(d)] % 8 != 0) {
      return fmt::format("stride {} of tensor {} is {}", d, t->uid, t->stride[static_cast<std::size_t>(d)]);
    }
  }
  return t->dim[3] % 8 == 0 && t->stride[3] == 1 ? "" : fmt::format("the width of tensor {} is {}", t->uid, t->dim[3]);
}

}  // namespace

Executions executions() { return executed; }

std::tuple<Tensor, Tensor> Graph::sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  q_ = q, k_ = k, v_ = v, options_ = options;
  out_ = tensor({}), lse_ = tensor({});
  return {out_, lse_};
}

std::tuple<Tensor, Tensor, Tensor> Graph::sdpa_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                        const Tensor& out, const Tensor& dout, const Tensor& lse,
                                                        const Options& options) {
  q_ = q, k_ = k, v_ = v, out_ = out, dout_ = dout, lse_ = lse, options_ = options;
  dq_ = tensor({}), dk_ = tensor({}), dv_ = tensor({});
  return {dq_, dk_, dv_};
}

// Words of cuDNN 9.19 and of validate() of cudnn-frontend 1.28, where they have some.
std::string Graph::refusal() const {
  using Dimensions = std::vector<std::int64_t>;
  const std::int64_t sequences = q_->dim[0], heads = q_->dim[1], queries = q_->dim[2];
  for (const Tensor& t : {q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_}) {
    if (t == nullptr) continue;
    const std::string wrong = misaligned(t, io_);
    if (!wrong.empty()) return wrong;
    if (t->offsets == nullptr) continue;
    if (t->offsets->type != DataType_t::INT64) return "offsets of other types are not emulated";
    if (t->offsets->dim != Dimensions{sequences + 1, 1, 1, 1}) {
      return "ragged dim should match dim value + 1 of original tensor.";
    }
  }
  const Options& o = options_;
  const bool is_ragged = q_->offsets != nullptr || k_->offsets != nullptr || v_->offsets != nullptr;
  if (is_ragged && !o.has_padding) return "Ragged offsets are only supported with padding mask.";
  if (o.has_padding != (o.query_lengths != nullptr && o.key_lengths != nullptr)) {
    return "Padding mask requires seq_len_q and seq_len_kv to be set.";
  }
  for (const Tensor& t : {o.query_lengths, o.key_lengths}) {
    if (t == nullptr) continue;
    if (t->dim != Dimensions{sequences, 1, 1, 1}) return "dimensions mismatch as broadcasting";
    if (t->type != DataType_t::INT32) return "lengths of other types are not emulated";
  }
  if ((o.all_queries || o.all_keys) && !is_ragged) return "max_total_seq_len_q/kv is only supported with packed layout";
  if (lse_->offsets == nullptr && lse_->stride != Dimensions{heads * queries, queries, 1, 1}) {
    return "For cuDNN version below 9.26.0, non-ragged Stats must be a packed BHSD tensor.";
  }
  if (dout_ != nullptr && is_ragged) {
    const bool is_packed = lse_->offsets != nullptr && o.all_queries && o.all_keys && q_->dim[3] % 16 == 0;
    if (!is_packed || o.is_deterministic) return "its workspace is not emulated";
  }
  if (o.is_causal && q_->dim[2] > k_->dim[2]) return "more queries than keys";
  if (q_->dim[1] % k_->dim[1] != 0) return "query heads are not a multiple of key heads";
  if (dout_ == nullptr && (!o.gives_statistics || !out_->is_output || !lse_->is_output)) return "no output";
  return "";
}

error_object Graph::build(cudnnHandle_t, const std::vector<HeurMode_t>&) {
  const std::string why = refusal();
  if (!why.empty()) return {why};
  static int graphs = 0;
  number_ = ++graphs;
  Scheduler::instance().load_module(fmt::format("graph {} of cuDNN, to build it", number_));
  return {};
}

// What cuDNN 9.19 asks for of ragged tensors on Hopper, planned as below: in backward dq in fp32, sums of rows, and dk
// and dv of each query head of a group, all as ragged_workspace_size of its frontend has them.
std::int64_t Graph::bytes_of_documents() const {
  const std::int64_t sequences = q_->dim[0];
  if (dout_ == nullptr)
    return 256 * (options_.is_causal ? std::max<std::int64_t>(sequences, 64) + 3 : sequences + (sequences > 1 ? 3 : 2));
  const auto rows = [](const Tensor& t, std::int64_t all, std::int64_t group) {
    return 4 * ((all - 1) * t->stride[2] * group + (t->dim[1] * group - 1) * t->stride[1] + t->dim[3]);
  };
  const std::int64_t group = q_->dim[1] / k_->dim[1];
  std::int64_t bytes = 1152 + (sequences > 1 ? 448 * sequences : 0) + rows(dq_, *options_.all_queries, 1) +
                       rows(lse_, *options_.all_queries, 1);
  if (group > 1) bytes += rows(dk_, *options_.all_keys, group) + rows(dv_, *options_.all_keys, group);
  return bytes;
}

// What cuDNN 9.19 asks for on Hopper (planned from a description of the GPU): in backward sums of rows; dk and dv of
// each query head of a group; dq in fp32, or deterministic ds in bf16 of whole tiles.
error_object Graph::get_workspace_size(std::int64_t& bytes) const {
  if (number_ == 0) return {"not built"};
  if (q_->offsets != nullptr) return bytes = bytes_of_documents(), error_object{};
  bytes = 256;
  if (dout_ == nullptr) return {};
  const std::int64_t heads = q_->dim[0] * q_->dim[1], queries = q_->dim[2], keys = k_->dim[2], width = q_->dim[3];
  bytes += heads * queries * 4;
  bytes += options_.is_deterministic ? heads * ((queries + 63) / 64 * 64) * ((keys + 127) / 128 * 128) * 2
                                     : heads * queries * width * 4;
  if (q_->dim[1] > k_->dim[1]) bytes += 2 * heads * keys * width * 2;
  return {};
}

error_object Graph::execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers,
                            void* workspace) const {
  std::int64_t needed = 0;
  if (get_workspace_size(needed).is_bad()) return {"not built"};
  if (needed > 0) require_device(workspace, static_cast<std::size_t>(needed), "the workspace of cuDNN");
  const auto pointer = [&](const Tensor& t, const char* what) -> void* {
    if (t == nullptr) return nullptr;
    void* const p = pointers.at(t->uid);
    std::int64_t last = 0;
    for (std::size_t d = 0; d < 4; ++d) last += (t->dim[d] - 1) * t->stride[d];
    const bool is_eight = t->type == DataType_t::INT64, is_four = is_eight || t->type != DataType_t::NOT_SET;
    if (t->offsets != nullptr) last = 0;  // else where the offsets are read
    require_device(p, static_cast<std::size_t>(last + 1) * (is_eight ? 8 : is_four ? 4 : 2), what);
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) {
      fault(fmt::format("cuDNN: tensor {} is not aligned to 16 bytes", t->uid));
    }
    return p;
  };
  const auto view = [&]<class T>(const Tensor& t, T*) {
    if (t == nullptr) return View<T>{};
    return View<T>{static_cast<T*>(pointer(t, "a tensor of cuDNN")), t->dim, t->stride,
                   static_cast<const std::int64_t*>(pointer(t->offsets, "the ragged offsets of cuDNN"))};
  };
  const auto in = [&](const Tensor& t) { return view(t, static_cast<const bf16*>(nullptr)); };
  const auto result = [&](const Tensor& t) { return view(t, static_cast<bf16*>(nullptr)); };
  const auto lengths = [&](const Tensor& t) {
    return static_cast<const std::int32_t*>(pointer(t, "the sequence lengths of cuDNN"));
  };
  Scheduler::instance().load_module(fmt::format("graph {} of cuDNN", number_));
  ++executed.all;
  if (dout_ != nullptr) ++(options_.is_deterministic ? executed.deterministic : executed.fastest);
  const Shape s{q_->dim[0],
                q_->dim[1],
                q_->dim[1] / k_->dim[1],
                q_->dim[2],
                k_->dim[2],
                q_->dim[3],
                options_,
                lengths(options_.query_lengths),
                lengths(options_.key_lengths)};
  const auto q = in(q_), k = in(k_), v = in(v_), dout = in(dout_), old_out = in(out_);
  const View<float> lse = view(lse_, static_cast<float*>(nullptr));
  Stream& stream =
      handle->stream == nullptr ? Scheduler::instance().default_stream() : *reinterpret_cast<Stream*>(handle->stream);
  if (dout_ == nullptr) {
    const auto out = result(out_);
    Scheduler::instance().launch_kernel(stream, "cudnn attention forward", [=] {
      count_documents(s);
      check_ragged(s, q, false), check_ragged(s, k, true), check_ragged(s, v, true);
      check_ragged(s, out, false), check_ragged(s, lse, false);
      for_each_query(s, q, k, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::vector<double>& scores) {
        double max = -1e300, sum = 0;
        for (std::int64_t j = 0; j < s.keys(b); ++j) {
          if (s.sees(i, j)) max = std::max(max, scores[static_cast<std::size_t>(j)]);
        }
        for (std::int64_t j = 0; j < s.keys(b); ++j) {
          double& p = scores[static_cast<std::size_t>(j)];
          sum += p = s.sees(i, j) ? std::exp(p - max) : 0.0;
        }
        lse(b, h, i, 0) = static_cast<float>(max + std::log(sum));
        for (std::int64_t c = 0; c < s.width; ++c) {
          double value = 0;
          for (std::int64_t j = 0; j < s.keys(b); ++j) {
            value += rounded(scores[static_cast<std::size_t>(j)]) * static_cast<double>(v(b, h / s.group, j, c));
          }
          out(b, h, i, c) = bf16(static_cast<float>(value / sum));
        }
      });
    });
    return {};
  }
  const auto dq = result(dq_), dk = result(dk_), dv = result(dv_);
  Scheduler::instance().launch_kernel(stream, "cudnn attention backward", [=] {
    count_documents(s);
    for (const auto* x : {&q, &dout, &old_out}) check_ragged(s, *x, false);
    for (const auto* x : {&k, &v}) check_ragged(s, *x, true);
    check_ragged(s, dq, false), check_ragged(s, dk, true), check_ragged(s, dv, true), check_ragged(s, lse, false);
    const auto size = static_cast<std::size_t>(s.sequences * (s.heads / s.group) * s.max_keys * s.width);
    std::vector<double> dkey(size), dvalue(size);
    const auto at = [&](std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t c) {
      return static_cast<std::size_t>(((b * (s.heads / s.group) + h / s.group) * s.max_keys + j) * s.width + c);
    };
    for_each_query(s, q, k, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::vector<double>& scores) {
      double dot = 0;
      for (std::int64_t c = 0; c < s.width; ++c) {
        dot += static_cast<double>(dout(b, h, i, c)) * static_cast<double>(old_out(b, h, i, c));
      }
      std::vector<double> dquery(static_cast<std::size_t>(s.width));
      for (std::int64_t j = 0; j < s.keys(b); ++j) {
        if (!s.sees(i, j)) continue;
        const double p = std::exp(scores[static_cast<std::size_t>(j)] - static_cast<double>(lse(b, h, i, 0)));
        double dp = 0;
        for (std::int64_t c = 0; c < s.width; ++c) {
          dp += static_cast<double>(dout(b, h, i, c)) * static_cast<double>(v(b, h / s.group, j, c));
        }
        const double ds = rounded(p * (dp - dot)) * static_cast<double>(s.options.scale);
        for (std::int64_t c = 0; c < s.width; ++c) {
          dquery[static_cast<std::size_t>(c)] += ds * static_cast<double>(k(b, h / s.group, j, c));
          dkey[at(b, h, j, c)] += ds * static_cast<double>(q(b, h, i, c));
          dvalue[at(b, h, j, c)] += rounded(p) * static_cast<double>(dout(b, h, i, c));
        }
      }
      for (std::int64_t c = 0; c < s.width; ++c)
        dq(b, h, i, c) = bf16(static_cast<float>(dquery[static_cast<std::size_t>(c)]));
    });
    for (std::int64_t b = 0; b < s.sequences; ++b) {
      for (std::int64_t h = 0; h < s.heads / s.group; ++h) {
        for (std::int64_t j = 0; j < s.keys(b); ++j) {
          for (std::int64_t c = 0; c < s.width; ++c) {
            dk(b, h, j, c) = bf16(static_cast<float>(dkey[at(b, h * s.group, j, c)]));
            dv(b, h, j, c) = bf16(static_cast<float>(dvalue[at(b, h * s.group, j, c)]));
          }
        }
      }
    }
  });
  return {};
}

}  // namespace graph
}  // namespace cudnn_frontend
