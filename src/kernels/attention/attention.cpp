#include "nanotron/kernels/attention/attention.hpp"

#include "kernels/attention/attention_backend.hpp"
#include "kernels/attention/attention_fused.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/attention/score_maxima.hpp"
#include "nanotron/tensor/kernel_region.hpp"

namespace nanotron::kernels {
namespace {

void check(const AttentionShape& s, std::size_t workspace, std::size_t needed) {
  NANOTRON_REQUIRE(
      s.head_dim >= 1 && s.head_dim <= 1024 && s.group >= 1 && s.query_position >= 0 && s.key_position >= 0,
      "attention: head_dim {}, group {}, queries from {}, keys from {}", s.head_dim, s.group, s.query_position,
      s.key_position);
  const bool heads_match =
      s.query_heads == 0 || (s.key_head_of(0) >= 0 && s.key_head_of(s.query_heads - 1) < s.key_heads);
  NANOTRON_REQUIRE(heads_match, "attention: query heads {} + {} of groups of {} have no key head here",
                   s.first_query_head, s.query_heads, s.group);
  NANOTRON_REQUIRE(workspace >= needed, "attention: workspace of {} bytes, needs {}", workspace, needed);
}

// Queries times the keys they attend to, in one pass with the scores in cache; `products` GEMMs of 2 head_dim FLOPs per
// pair; of a backward with both probabilities computed twice 7, else 5. (In a plan every sequence is one document.)
template <class T>
Work fused_work(const AttentionShape& s, int products, Reads read, Writes written) {
  AttentionShape one_document = s;
  one_document.document_starts = nullptr;
  double pairs = 0.0;
  for (index_t i = 0; i < s.query_length; ++i) pairs += static_cast<double>(one_document.keys_of(0, i).size());
  pairs *= static_cast<double>(s.batch * s.query_heads);
  return {.read = read.bytes,
          .written = written.bytes,
          .flops = 2.0 * products * static_cast<double>(s.head_dim) * pairs,
          .type = scalar_type_of<T>,
          .gemm = {s.query_length, s.key_length, s.head_dim, s.batch * s.query_heads}};
}

fused::Available there_is(Device& device) {
  if (device.processor() == Processor::cpu) return {.cudnn = false, .tensor_cores = false};
  return device.is_planning() ? fused::Available() : detail::available(device);
}

// The same for backward: a plan knows where cuDNN would ask for too much.
fused::Available there_is_for_backward(Device& device, const AttentionShape& s) {
  fused::Available there = there_is(device);
  there.cudnn = there.cudnn && fused::has_backward(s) && (!device.is_planning() || fused::planned_calls(s) > 0);
  return there;
}

const char* name_of_backward(fused::Library library, const AttentionShape& s) {
  if (library == fused::Library::mma) return "attention_backward_mma";
  const bool is_slower = library == fused::Library::cudnn && s.backward == BackwardAlgorithm::deterministic;
  return is_slower ? "attention_backward_deterministic" : "attention_backward";
}

// With documents where they are and, after the call, what it leaves to do (cuda/cudnn_documents.hpp).
index_t launches_of_forward(fused::Library library, const AttentionShape& s) {
  return library == fused::Library::cudnn && s.document_stride > 0 ? 3 : 1;
}

// Of mma one for the queries, one for the keys.
index_t launches_of_backward(fused::Library library, const AttentionShape& s) {
  if (library != fused::Library::cudnn) return library == fused::Library::mma ? 2 : 1;
  return s.document_stride > 0 ? 1 + 3 * fused::planned_calls(s) : fused::planned_calls(s);
}

void launch_planned(const Device& device, index_t launches) {
  for (; launches > 0; --launches) device.launch_planned();
}

// On a planned GPU, without fused kernels, those of the blocked form are counted one by one.
bool plans_blocks(const Device& device, fused::Library library) {
  return device.is_planning() && device.processor() == Processor::gpu && library == fused::Library::none;
}

}  // namespace

template <class T>
void attention_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q, MatrixRef<const T> k,
                       MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse, Vector<std::byte> workspace) {
  check(shape, workspace.extent(0), attention_workspace_bytes<T>(shape, device.processor()));
  const fused::Library library = fused::library_of<T>(device, shape, {q, k, v, out}, there_is(device));
  if (plans_blocks(device, library)) return blocked::attention_forward<T>(device, shape, q, k, v, out, lse, workspace);
  const KernelRegion kernel(device, library == fused::Library::mma ? "attention_forward_mma" : "attention_forward",
                            fused_work<T>(shape, 2, reads(q, k, v), writes(out, lse)));
  if (device.is_planning()) return launch_planned(device, launches_of_forward(library, shape));
  detail::run_forward<T>(device, library, shape, q, k, v, out, lse, workspace);
}

template <class T>
void attention_backward(Device& device, const AttentionShape& shape, MatrixRef<const T> q, MatrixRef<const T> k,
                        MatrixRef<const T> v, MatrixRef<const T> out, MatrixRef<const T> dout,
                        Vector<const master_t<T>> lse, MatrixRef<T> dq, MatrixRef<T> dk, MatrixRef<T> dv,
                        Vector<std::byte> workspace) {
  check(shape, workspace.extent(0), attention_workspace_bytes<T>(shape, device.processor()));
  const detail::AttentionGradients<T> tensors{q, k, v, out, dout, lse, dq, dk, dv};
  if (device.processor() == Processor::gpu) blocked::raise_maxima<T>(device, shape, q, k, workspace);
  const fused::Library library =
      fused::library_of<T>(device, shape, {q, k, v, out, dout, dq, dk, dv}, there_is_for_backward(device, shape));
  if (plans_blocks(device, library)) return blocked::attention_backward<T>(device, shape, tensors, workspace);
  const int products = library == fused::Library::mma ? 7 : 5;
  const KernelRegion kernel(device, name_of_backward(library, shape),
                            fused_work<T>(shape, products, reads(q, k, v, out, dout, lse), writes(dq, dk, dv)));
  if (device.is_planning()) return launch_planned(device, launches_of_backward(library, shape));
  detail::run_backward<T>(device, library, shape, tensors, workspace);
}

std::vector<index_t> planned_documents(index_t sequences, index_t length) {
  std::vector<index_t> documents;
  const index_t most = fused::max_documents(sequences, length);
  for (index_t n = fused::power_of_two(sequences); n <= most; n *= 2) documents.push_back(n);
  return documents;
}

template <class T>
std::size_t attention_workspace_bytes(const AttentionShape& shape, Processor processor) {
  if (processor == Processor::cpu) return detail::workspace_bytes<T>(shape);
  const bool may_be_cudnn = std::is_same_v<T, bf16> && fused::Available().cudnn;
  return std::max(blocked::attention_workspace_bytes<T>(shape), may_be_cudnn ? fused::planned_bytes(shape) : 0);
}

template <class T>
std::string attention_library(Device& device, const AttentionShape& shape) {
  return detail::library<T>(device, shape);
}

#define NANOTRON_INSTANTIATE(T)                                                                                       \
  template void attention_forward<T>(Device&, const AttentionShape&, MatrixRef<const T>, MatrixRef<const T>,          \
                                     MatrixRef<const T>, MatrixRef<T>, Vector<master_t<T>>, Vector<std::byte>);       \
  template void attention_backward<T>(                                                                                \
      Device&, const AttentionShape&, MatrixRef<const T>, MatrixRef<const T>, MatrixRef<const T>, MatrixRef<const T>, \
      MatrixRef<const T>, Vector<const master_t<T>>, MatrixRef<T>, MatrixRef<T>, MatrixRef<T>, Vector<std::byte>);    \
  template std::string attention_library<T>(Device&, const AttentionShape&);                                          \
  template std::size_t attention_workspace_bytes<T>(const AttentionShape&, Processor);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
