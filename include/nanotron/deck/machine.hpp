#pragma once
// A machine to plan for, as a namelist file: &machine, one rank; &node and &network, how ranks are connected; &gemm and
// &attention, how shapes change rates; &kernels, rates of others. Rates are achieved rates, not peaks.

#include <limits>
#include <string>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::deck {

/// &gemm: see trainer/plan/kernel_time.hpp. Zeros: every shape runs at the rate of large ones.
struct GemmModel {
  double multiprocessors = 0.0;  // of a GPU: tiles of C that run at once
  double ramp_k = 0.0;           // of a GPU: columns of A that the first and the last loads of a tile cost
  double spread = 0.0;           // standard deviation of the rates of equal GPUs, as a share
  double operands = 0.0;         // of a host: bytes per second at which operands are packed and C is written
};

/// &node: ranks that share memory or NVLink.
struct Node {
  int ranks = 0;                     // that a node has
  int cores = 0;                     // of a host that its ranks share; 0: one for each rank
  double memory_bytes = 0.0;         // of a rank; 0: not given
  double reserved_bytes = 0.0;       // of it, outside of the buffer of a run
  double link = 0.0, latency = 0.0;  // bytes per second of a ring (nccl-tests' busbw), seconds of a step of it
  double host_link = 0.0;            // of a GPU and host memory, bytes per second in each direction; 0: not given
  int multicast = 0;                 // not 0: its switches add and multicast (NVLink SHARP), with buffers of NCCL's
  double watts = 0.0;                // of the node at full load
};

/// &network: between nodes.
struct Network {
  int rails = 0;                     // adapters of a node
  double rail = 0.0, latency = 0.0;  // bytes per second of one in one direction, seconds of a message
};

/// A row of &kernels: bytes of its operands per second, in the file as they are or as a share of `memory`.
struct KernelRate {
  std::string kernel;  // "other": all kernels without a row, except GEMMs and attention
  double rate = 0.0;
};

/// A row of &attention: fused kernels in bf16 on causal sequences of `length`, in FLOP/s, masked pairs not counted.
struct AttentionRate {
  double head_dim = 0.0, length = 0.0;
  double forward = 0.0, backward = 0.0, deterministic = 0.0;  // of backward: the library's ordinary algorithm, and that
};

/// Of one rank: a GPU, or its share of a host. GEMM rates in FLOP/s.
struct Machine {
  std::string name;
  bool is_gpu = true;
  double peak_fp8 = 0.0, peak_bf16 = 0.0;  // what a fraction of the peak refers to
  double gemm_fp8 = 0.0, gemm_bf16 = 0.0, gemm_fp32 = 0.0, gemm_fp64 = 0.0;
  double attention_forward = 0.0, attention_backward = 0.0;  // as in `attention`, of all shapes where that is empty
  double attention_deterministic = 0.0;
  double attention_mma = 0.0;  // the same of the program's own, without cuDNN
  double memory = 0.0;         // bytes per second, read and written
  double launch = 0.0;         // seconds between two kernels that follow each other

  GemmModel gemm_model{};
  Node node{};                             // ranks = 0: the file has none
  Network network{};                       // rails = 0: the file has none
  double collective_share = 0.0;           // of the multiprocessors, taken by a collective that overlaps kernels
  std::vector<AttentionRate> attention{};  // by head_dim, then length
  std::vector<KernelRate> kernels{};

  /// Bytes that the buffer of a run may take on a rank; infinite where the memory is not given.
  double buffer_limit() const {
    return node.memory_bytes > 0.0 ? node.memory_bytes - node.reserved_bytes : std::numeric_limits<double>::infinity();
  }
  double peak(ScalarType compute) const { return compute == ScalarType::fp8 ? peak_fp8 : peak_bf16; }
  double gemm(ScalarType type) const {
    switch (type) {
      case ScalarType::fp64:
        return gemm_fp64;
      case ScalarType::fp32:
        return gemm_fp32;
      case ScalarType::bf16:
        return gemm_bf16;
      default:
        return gemm_fp8;
    }
  }
};

/// A deterministic backward whose rate a file lacks, as a share of the ordinary one: 10 to 17 % more time, in NVIDIA's
/// tables for GB200 (cudnn-frontend 1.28, benchmark/sdpa_benchmark_training).
inline constexpr double deterministic_share = 1.0 / 1.14;

/// node%reserved_gb of a file that lacks it, an estimate. A GPU: CUDA's context and code, workspaces of libraries, but
/// not NCCL's buffers (comm/transport/nccl_memory.hpp). A host: the program, its libraries and buffers of MPI.
inline double reserved_by_default(bool is_gpu) { return is_gpu ? 4e9 : 0.5e9; }

/// Reads the text of such a file. Error(deck_error) with every finding and its line.
Machine read_machine(const std::string& name, const std::string& text);

/// The file of a machine; comment: its first lines, each begins with '!'. read_machine() is the inverse.
std::string machine_text(const Machine& machine, const std::string& comment);

}  // namespace nanotron::deck
