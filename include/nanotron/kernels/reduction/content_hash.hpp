#pragma once

// A hash of the bits of a vector, with which ranks compare their copies:
//
//   mix(n)  +  sum over i of mix(word_i  xor  (i + 1) 2^64 / golden ratio)   mod 2^64
//
// for a vector of n elements, where each word_i is 8 bytes of it; an element that is left over has a word of its own.
// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
// 2014), a bijection: a change of one word always changes the sum. An integer sum does not depend on threads or
// blocks.

#include <cstddef>
#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// M is double, float or bf16. The same for any address. The result is on the host at return.
template <class M>
std::uint64_t content_hash(Device& device, Vector<const M> x);

/// hash (1) <- the sum above, without mix(n), of `bytes` bytes at `data`, as words of the largest of 8, 4, 2 and 1
/// bytes that divides the address and their number. In memory of the device; no host synchronization.
void content_hash(Device& device, const void* data, std::size_t bytes, Vector<std::uint64_t> hash);

}  // namespace nanotron::kernels
