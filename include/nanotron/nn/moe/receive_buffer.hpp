#pragma once

// How many rows the experts of a rank receive in one dispatch, relative to an even load, where a router is
// balanced: moe%receive_quantile sizes their buffer by it.
//
//   N rows on average, e ranks that share the experts:
//   rows ~ normal(N, N (1 - 1 / e) + (c N)^2)
//
// N (1 - 1 / e): of tokens that choose a rank at random. c = 0.1, overdispersion: tokens of a sequence choose alike,
// and a balance loss leaves the ranks unequal. A run measures the load (received_load in metrics.h5), and its c
// (nn/received_rows.hpp).

#include "nanotron/base/types.hpp"

namespace nanotron::deck {
struct MoeConfig;
}

namespace nanotron::nn {

inline constexpr double received_overdispersion = 0.1;

/// The q quantile of the rows over N = even. ranks: e; c: overdispersion.
double received_quantile(double q, double even, index_t ranks, double c = received_overdispersion);

/// Rows of the buffer over those of an even load: receive_factor or that of receive_quantile; 0: the worst case.
double receive_buffer_factor(const deck::MoeConfig& moe, index_t even, index_t ranks);

}  // namespace nanotron::nn
