#pragma once

// Attention in bf16 by the fused kernels of cuDNN, which keep the scores on the chip (FlashAttention: Dao 2023). The
// library is loaded when it is first asked for. What cuDNN does not do, the caller gives to mma:: and
// blocked::attention_*.

#include "nanotron/kernels/attention/attention_gpu.hpp"

namespace nanotron::kernels::cudnn {

/// Each as in attention.hpp; false, and nothing done, for what fused::by_cudnn refuses, without cuDNN, and where
/// the workspace is too small for one key head.
bool attention_forward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                       MatrixRef<const bf16> v, MatrixRef<bf16> out, Vector<float> lse, Vector<std::byte> workspace);

bool attention_backward(Device& device, const AttentionShape& shape, const blocked::BackwardTensors<bf16>& tensors,
                        Vector<std::byte> workspace);

/// Loads and starts it where that was not tried yet.
bool is_there(Device& device);
std::string why_missing(Device& device);
/// "cuDNN 9.28.1", where it is there.
std::string version();

}  // namespace nanotron::kernels::cudnn
