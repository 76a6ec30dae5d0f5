#pragma once

// The graphs of attention that cuDNN has planned, by what they are asked for.

#include <array>
#include <map>
#include <memory>
#include <unordered_map>

#include "kernels/attention/attention_fused.hpp"

namespace cudnn_frontend::graph {
class Graph;
}

namespace nanotron {

/// One call of cuDNN: some sequences of the shape, some key heads with their query heads.
struct AttentionProblem {
  kernels::AttentionShape shape;
  kernels::fused::Mask mask;
  index_t documents = 0;              // of packed documents: the sequences of ragged tensors; else 0
  index_t q, k, v, out;               // leading dimensions
  index_t dout = 0, dq = 0, dkv = 0;  // dout is 0 in forward; of documents dq, dkv are those of the part, packed

  bool is_backward() const { return dout > 0; }
  using Key = std::array<index_t, 20>;
  Key key() const;
};

/// Of a graph's tensors. Those of ragged tensors' offsets follow from the tensor's.
enum AttentionTensor : std::int64_t {
  q_id = 1,
  k_id,
  v_id,
  out_id,
  lse_id,
  dout_id,
  dq_id,
  dk_id,
  dv_id,
  query_lengths_id,
  key_lengths_id
};
inline std::int64_t offsets_id(std::int64_t tensor) { return 100 + tensor; }

/// cuDNN, and what it has planned. The frontend, which takes minutes to compile, is in one source.
struct AttentionPlans {
  AttentionPlans();
  ~AttentionPlans();
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;

  /// Whether the library was found; whether it works on this device.
  static bool has_library();
  bool is_there() const;
  static std::size_t version();  // 92801: 9.28.1

  struct Plan {
    std::shared_ptr<cudnn_frontend::graph::Graph> graph;  // null: cuDNN does not do it
    std::size_t workspace = 0;
  };
  const Plan& of(const AttentionProblem& problem);

  /// Queues the plan on the device's stream: tensors by their identifiers.
  void execute(Device& device, const Plan& plan, std::unordered_map<std::int64_t, void*> tensors, void* workspace);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;  // null: there is no cuDNN
  std::map<AttentionProblem::Key, Plan> plans_;
};

}  // namespace nanotron
