#pragma once

// Experts whose GEMMs read codes: narrower copies of the weights, made before each pass, and of the rows, made where a
// GEMM reads them.

#include <cstddef>
#include <memory>
#include <vector>

#include "nanotron/nn/moe/expert_linear.hpp"

namespace nanotron::nn {

/// The codes of the weights of one linear layer of every expert here, in one layer of the model.
template <class T>
class ExpertCodes {
 public:
  virtual ~ExpertCodes() = default;
  /// gradients: of the weights of the experts here, in their order. workspace: ExpertCodeBytes::rows, which all layers
  /// share. *this need not outlive the result.
  virtual std::unique_ptr<const ExpertLinear<T>> linear(deck::ExpertGemms gemms,
                                                        const std::vector<Matrix<master_t<T>>>& gradients,
                                                        Vector<std::byte> workspace) const = 0;
};

/// What such experts need in addition, in bytes.
struct ExpertCodeBytes {
  index_t rows = 0;      // of codes of rows
  std::size_t gemm = 0;  // of Device::gemm_workspace()
};

}  // namespace nanotron::nn
