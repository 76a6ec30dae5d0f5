#pragma once

// A hash of the bits of a vector, by which ranks compare what they hold:
//
//   sum over i of mix(bits of x_i  xor  (i + 1) 2^64 / golden ratio)   mod 2^64
//
// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014), a bijection: a change of one element always changes the sum. The sum is of integers: neither
// threads nor blocks enter into it.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// M is double, float or bf16. On the host when it returns.
template <class M>
std::uint64_t content_hash(Device& device, Vector<const M> x);

}  // namespace nanotron::kernels
