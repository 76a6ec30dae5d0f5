#pragma once

// How rows reach the experts and come back, where the experts of a layer lie over an expert-parallel group: rank e of
// n has the e-th n-th of them, whole. On one rank rows stay where they are; over several an all-to-all carries them
// there and back (Lepikhin et al. 2021; no row is padded, so what a rank gets depends on the routing).
//
// Rows here are sorted by expert, then by token; rows of an expert by the rank they come from, then by token. So every
// product sums in an order that follows from the tokens alone.

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/nn/moe/moe_memory.hpp"
#include "nanotron/nn/pass_traffic.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

/// All but rows, send_buffer and send_buffer_values are collective over the group.
template <class T>
class ExpertExchange {
 public:
  using M = master_t<T>;
  virtual ~ExpertExchange() = default;

  /// Most rows that the experts here can be sent.
  virtual index_t rows() const = 0;

  /// Of a layer and micro-batch, no token dropped. Rows that come back are counted as those sent, which over the group is
  /// the same.
  virtual PassTraffic traffic() const = 0;

  /// counts (experts) of rows from here to each -> plan, which has its sizes. Waits for the device. Error(deck_error)
  /// when more come than there is room for.
  virtual void plan(Device& device, Vector<std::int64_t> counts, ExpertRows& plan) = 0;

  /// Behind it: cuts of the rows from here (experts, places) -> of those that come to the experts here, see
  /// kernels::join_cuts.
  virtual void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) = 0;

  /// Where the rows of this rank are to be written, (plan.sent_rows, hidden), so that dispatch brings them to
  /// `rows` (R, hidden); the same of one value a row.
  virtual Matrix<T> send_buffer(const ExpertRows& plan, Matrix<T> rows) = 0;
  virtual Vector<M> send_buffer_values(const ExpertRows& plan, Vector<M> values) = 0;
  virtual void dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows) = 0;
  virtual void dispatch_values(Device& device, const ExpertRows& plan, Vector<M> values) = 0;

  /// The way back: what the experts made of each row, in this rank's order. Valid until the next call.
  virtual Matrix<const T> combine(Device& device, const ExpertRows& plan, Matrix<T> rows) = 0;
  virtual Vector<const M> combine_values(Device& device, const ExpertRows& plan, Vector<M> values) = 0;
};

struct ExchangeSize {
  index_t choices = 0;  // rows that this rank sends at most
  index_t rows = 0;     // that its experts get at most
  index_t hidden = 0;
  index_t experts = 0;  // of the layer
  ExpertCuts cuts{};
};

/// Takes what it needs from the arena (planning or real). ep must outlive it.
template <class T>
std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize& size, comm::Group& ep, Arena& arena);

}  // namespace nanotron::nn
