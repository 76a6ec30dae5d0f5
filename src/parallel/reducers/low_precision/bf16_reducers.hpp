#pragma once

// compression = 'bf16', for each way of reducing gradients. g_i: gradient of rank i; M: the master type.
//
//   all-reduce     bf16(bf16(g_0) + bf16(g_1) + ...), added in float, in the order of the transport
//   ZeRO           (bf16(g_0) + bf16(g_1)) + ... in M, in the order of ranks, by the owner of a shard
//   'layout'       the same, with g_i of shard i of the global batch (layout_invariant_reducer.cpp)
//
// With ZeRO and 'layout' each addend is rounded once, to nearest even, and nothing else is:
//
//   |error| <= 2^-8 (|g_0| + |g_1| + ...), and the rounding of sums in M
//
// A finite addend of 2^128 (1 - 2^-9) or more becomes infinite, one below 2^-134 zero; what is not finite stays so.
//
// The sums do not depend on the algorithms of MPI and NCCL: the all-to-all moves numbers, and their owner adds them.
// There the gradients of 1-D parameters are not rounded, nor are sums over tp, replicate groups and tied embeddings.

#include <memory>

#include "parallel/reducers/zero/shard_sum.hpp"

namespace nanotron::parallel {

/// Without sharding: all-reduces buckets in bf16. Takes memory for all gradients of the section in bf16.
template <class T>
std::unique_ptr<GradientReducer<T>> make_bf16(const ReducerContext<T>& context);

/// With ZeRO: an all-to-all sends each rounded addend to the owner of its shard. It moves half the bytes of a
/// reduce-scatter in fp32, which is less only if few ranks of the shard group are on one node
/// (doc/parallelism_formulas.md). The shard group has two or more ranks.
///
/// Takes memory for the largest unit of the section in bf16; what is sent and received takes the place of the gradient.
template <class T>
std::unique_ptr<ShardSum<T>> make_bf16_shard_sum(const ReducerContext<T>& context);

}  // namespace nanotron::parallel
