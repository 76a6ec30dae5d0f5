#pragma once

// What a gradient sum needs besides the gradients: taken from the arena with the model, before the sum is made.

#include "nanotron/base/fp16.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/parallel/reducers/adasum_plan.hpp"
#include "nanotron/parallel/reducers/low_rank.hpp"

namespace nanotron::parallel {

/// What 'powersgd' cuts and carries; empty where nothing is compressed so.
LowRankPlan low_rank_plan_of(const deck::ParallelConfig& parallel, const model::ParameterTable& table);

/// Of OrderedSum.
template <class M>
struct OrderedMemory {
  Vector<M> send, receive;       // one unit each
  Vector<M> vectors;             // (sequences of this rank, vectors)
  Vector<M> vector_shard, vector_sum;
  Vector<M> gathered;            // (replicas, vectors)
  // Of weights that are head and embedding here:
  Vector<M> head_sum;            // piece of the unit: the head's part of the sum
  Vector<M> other_part;          // one unit, of several sequences: the gradient of head or embedding, whichever waits
};

/// Of Adasum; empty without it.
template <class M>
struct AdasumMemory {
  AdasumMemory(const deck::ParallelConfig& parallel, const model::ParameterTable& table, Arena& arena);

  std::vector<AdasumTensor> tensors;
  Vector<M> received;            // (replicas, this rank's piece), then the gathered result
  Vector<M> piece;               // piece_size
  Vector<double> gram;           // (tensors, pairs of replicas)
  Vector<double> coefficients;   // (tensors, replicas)
};

/// The sections that several ranks hold.
std::vector<model::Section> summed_sections(const deck::ParallelConfig& parallel, const model::ParameterTable& table);

template <class M>
struct SumMemory {
  SumMemory(const deck::Config& config, const model::ParameterTable& table, Arena& arena);

  OrderedMemory<M> ordered;

  Vector<bf16> rounded;  // of RoundedSum
  Vector<fp16> half;     // of ScaledSum, as is the next
  Vector<M> largest;
  AdasumMemory<M> adasum;

  // Of PowerSgd; error and q are what it carries from step to step.
  LowRankPlan low_rank;
  Vector<M> error, p, q;
};

}  // namespace nanotron::parallel
