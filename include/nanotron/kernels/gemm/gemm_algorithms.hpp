#pragma once

// The algorithms with which cuBLASLt or hipBLASLt runs the GEMMs of a deck, measured side by side on the GPU and kept
// in a file, as FFTW keeps its wisdom (Frigo and Johnson 2005, section 6). Without a file its heuristic chooses. They
// are not measured at each start: the algorithm decides the order of a sum, so a run would not repeat its bits.
//
//   nanotron_bench --gemm-algorithms h200.gemm --deck input.deck       run%gemm_algorithms = 'h200.gemm'
//
// An algorithm is what these libraries call serialisable: valid for the same version of the library on the same kind of
// GPU.

#include <map>
#include <string>

#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

struct GemmAlgorithms {
  std::string library{};                  // "cuBLASLt 130100, NVIDIA H200"
  std::map<std::string, std::string> of;  // of a GEMM (shape, types, alignments): the algorithm, in hexadecimal digits
};

/// A line for each GEMM. read: the inverse; Error(deck_error) with file and line.
std::string text_of(const GemmAlgorithms& algorithms);
GemmAlgorithms read_gemm_algorithms(const std::string& text, const std::string& file);

/// Uses these algorithms for GEMMs whose first run is after this call, if the file has one. Error(deck_error) if they
/// are of another library or GPU. A host ignores them.
void use_gemm_algorithms(Device& device, const GemmAlgorithms& algorithms, const std::string& file);

/// GEMMs whose first run is after this call are chosen for a GPU on which concurrent kernels use `count`
/// multiprocessors (CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET). 0: none. A host ignores it.
void leave_multiprocessors(Device& device, int count);

/// From now on the first run of each GEMM measures the candidates of the heuristic, each of which runs several times on
/// the operands: a GEMM that adds to C does so every time. Error(deck_error) on a host.
void measure_gemm_algorithms(Device& device);
/// What has been measured.
GemmAlgorithms measured_gemm_algorithms(const Device& device);

/// GEMMs run since use_gemm_algorithms, by shape: with an algorithm of the file, with the heuristic's, and those that
/// the library has no algorithm for (of rocBLAS; fp64, always of rocBLAS on AMD's GPUs, is not counted).
struct GemmAlgorithmCounts {
  int given = 0, by_heuristic = 0, others = 0;
};
GemmAlgorithmCounts gemm_algorithm_counts(const Device& device);

}  // namespace nanotron::kernels
