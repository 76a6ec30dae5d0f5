#pragma once

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// to = from, both (rows, columns), each with its own leading dimension. No aliasing.
template <class T>
void copy_matrix(Device& device, MatrixRef<const T> from, MatrixRef<T> to);

/// to = from, of equal extents. No aliasing.
template <class T>
void copy(Device& device, Vector<const T> from, Vector<T> to);

}  // namespace nanotron::kernels
