#pragma once

// What SOAP (src/optim/soap) needs besides GEMMs, elementwise updates and bases of eigenvectors.

#include <cstdint>

#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// g *= gradient_scale of scalars (1); scaled (1) <- the same decision, of gradients that are scaled already. M is
/// double or float.
template <class M>
void scale_gradient(Device& device, Vector<M> g, Vector<const UpdateScalars> scalars, Vector<UpdateScalars> scaled);

/// Rows, or columns, of x (rows, columns): number i <- number order[i]. workspace: of rows x columns elements. S is
/// double, float or bf16.
enum class Lines { rows, columns };
template <class S>
void permute(Device& device, Matrix<S> x, Lines lines, Vector<const std::int32_t> order, Vector<S> workspace);

}  // namespace nanotron::kernels
