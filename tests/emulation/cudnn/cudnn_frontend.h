#pragma once
// The part of cuDNN's frontend that the program uses: graphs of one attention, run as queued work of an emulated GPU
// (cudnn.cpp). What cuDNN 9.19 and its frontend 1.28 ask for is asked for here: 16-byte alignment, no more queries than
// keys under a mask, packed statistics, a workspace as large as on Hopper. Of ragged tensors: a padding mask with
// lengths of each sequence, offsets of one entry more; max_total_seq_len, without which the workspace has the largest
// length for each.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

using cudnnHandle_t = struct EmulatedCudnn*;
enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1 };

namespace cudnn_frontend {

enum class DataType_t { NOT_SET, FLOAT, BFLOAT16, INT32, INT64 };
enum class HeurMode_t { A };

struct [[nodiscard]] error_object {
  std::string message;  // empty: good
  bool is_good() const { return message.empty(); }
  bool is_bad() const { return !is_good(); }
  std::string get_message() { return message; }
};

namespace detail {
inline std::size_t get_backend_version() { return 91900; }
cudnnStatus_t create_handle(cudnnHandle_t* handle);
cudnnStatus_t destroy_handle(cudnnHandle_t handle);
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream);
}  // namespace detail

namespace graph {

struct Tensor_attributes {
  std::int64_t uid = 0;
  std::vector<std::int64_t> dim, stride;
  DataType_t type = DataType_t::NOT_SET;
  bool is_output = false;
  std::shared_ptr<Tensor_attributes> offsets{};  // ragged: of each sequence, in elements

  Tensor_attributes& set_ragged_offset(std::shared_ptr<Tensor_attributes> o) { return offsets = std::move(o), *this; }
  Tensor_attributes& set_uid(std::int64_t id) { return uid = id, *this; }
  Tensor_attributes& set_dim(std::vector<std::int64_t> d) { return dim = std::move(d), *this; }
  Tensor_attributes& set_stride(std::vector<std::int64_t> s) { return stride = std::move(s), *this; }
  Tensor_attributes& set_data_type(DataType_t t) { return type = t, *this; }
  Tensor_attributes& set_output(bool output) { return is_output = output, *this; }
};
using Tensor = std::shared_ptr<Tensor_attributes>;

struct Options {
  float scale = 1.0f;
  bool is_causal = false, gives_statistics = false, is_deterministic = false, has_padding = false;
  std::optional<std::int64_t> window, all_queries, all_keys;
  Tensor query_lengths{}, key_lengths{};
};

template <class Derived>
struct OptionsOf : Options {
  Derived& self() { return static_cast<Derived&>(*this); }
  Derived& set_name(const std::string&) { return self(); }
  Derived& set_attn_scale(float s) { return scale = s, self(); }
  Derived& set_causal_mask(bool causal) { return is_causal = causal, self(); }
  Derived& set_diagonal_band_left_bound(int keys) { return window = keys, self(); }
  Derived& set_padding_mask(bool padding) { return has_padding = padding, self(); }
  Derived& set_seq_len_q(Tensor lengths) { return query_lengths = std::move(lengths), self(); }
  Derived& set_seq_len_kv(Tensor lengths) { return key_lengths = std::move(lengths), self(); }
};
struct SDPA_attributes : OptionsOf<SDPA_attributes> {
  SDPA_attributes& set_generate_stats(bool gives) { return gives_statistics = gives, *this; }
};
struct SDPA_backward_attributes : OptionsOf<SDPA_backward_attributes> {
  SDPA_backward_attributes& set_deterministic_algorithm(bool asked) { return is_deterministic = asked, *this; }
  SDPA_backward_attributes& set_max_total_seq_len_q(std::int64_t all) { return all_queries = all, *this; }
  SDPA_backward_attributes& set_max_total_seq_len_kv(std::int64_t all) { return all_keys = all, *this; }
};

class Graph {
 public:
  Graph& set_io_data_type(DataType_t type) { return io_ = type, *this; }
  Graph& set_intermediate_data_type(DataType_t) { return *this; }
  Graph& set_compute_data_type(DataType_t) { return *this; }

  Tensor tensor(const Tensor_attributes& t) const { return std::make_shared<Tensor_attributes>(t); }
  std::tuple<Tensor, Tensor> sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options);
  std::tuple<Tensor, Tensor, Tensor> sdpa_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                                   const Tensor& dout, const Tensor& lse, const Options& options);
  error_object build(cudnnHandle_t handle, const std::vector<HeurMode_t>& modes);
  error_object get_workspace_size(std::int64_t& bytes) const;
  error_object execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const;

 private:
  std::string refusal() const;
  std::int64_t bytes_of_documents() const;
  DataType_t io_ = DataType_t::NOT_SET;
  Tensor q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_;  // dout_ and behind: of backward
  Options options_;
  int number_ = 0;  // among the graphs of this process; 0: not built
};

/// Of all graphs so far, of backward by its algorithms, and of those that have run with rows in two or more ragged
/// sequences: for tests.
struct Executions {
  std::uint64_t all = 0, fastest = 0, deterministic = 0, of_documents = 0;
};
Executions executions();

}  // namespace graph
}  // namespace cudnn_frontend
