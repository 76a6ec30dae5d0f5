#pragma once

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// y = x, rounded to nearest even, both (n). A and B are any of double, float and bf16; call with
/// both explicit. No aliasing.
template <class A, class B>
void cast(Device& device, Vector<const A> x, Vector<B> y);

}  // namespace nanotron::kernels
