#pragma once

// Dispatch of rows to the experts of a layer, and combine of their outputs. Each of the e ranks of an expert-parallel
// group has experts / e consecutive experts, whole. With e = 1 rows stay in place; else both are all-to-alls (Lepikhin
// et al. 2021). Rows are not padded to a capacity: how many a rank receives depends on the routing.
//
//   sent rows        sorted by expert, then token
//   received rows    sorted by expert, then source rank, then token
//
// So the order of the sum in every GEMM depends only on the tokens.
//
// Rows travel as they are, or in a narrower form (kernels/moe/wire_rows.hpp): with row_type = fp8 those of dispatch as
// codes, in forward and in backward, those of combine in bf16; with bf16 all in bf16.

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/nn/moe/moe_memory.hpp"
#include "nanotron/nn/pass_traffic.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

/// All but rows, traffic, is_local, send_buffer and send_buffer_values are collective over the expert-parallel group. A
/// dispatch and a combine are in two calls: the messages of the first are in flight until the second, beside the work
/// that is queued between them. One dispatch or one combine at a time.
template <class T>
class ExpertExchange {
 public:
  using M = master_t<T>;
  virtual ~ExpertExchange() = default;

  /// Max rows that the experts here can receive.
  virtual index_t rows() const = 0;
  /// Whether rows stay in place: combine then returns those that it is given.
  virtual bool is_local() const = 0;

  /// Per layer and micro-batch, with no token dropped. Counts rows sent in combine as those sent in dispatch: over the
  /// group the totals are equal.
  virtual PassTraffic traffic() const = 0;

  /// counts (experts): rows from here to each expert, of this many assignments -> plan, whose vectors have their sizes.
  /// finish_plan waits for the device, once: the host must know how many rows each GEMM, and each rank, has. It waits
  /// for the counts alone, and not for what is queued after start_plan. It is the only such wait of a layer of experts,
  /// in each forward of a micro-batch (with recompute = 'full' also in the second one); backward uses the same plan.
  /// With e = 1 library GEMMs wait in start_plan; grouped GEMMs leave the counts on the device, and nothing waits.
  /// Collectives that go through host memory have waits of their own. Error(deck_error) when more rows arrive than
  /// rows(). Until finish_plan only sent_rows is set, perhaps to all assignments.
  virtual void start_plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) = 0;
  virtual void finish_plan(Device& device, ExpertRows& plan) = 0;

  /// After start_plan(): shard boundaries in the rows sent from here (experts, boundaries) -> in the rows received
  /// here, see kernels::join_cuts.
  virtual void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) = 0;

  /// send_buffer: where the caller writes the rows to send, (plan.sent_rows, hidden); send_buffer_values: the same with
  /// one value per row.
  virtual Matrix<T> send_buffer(const ExpertRows& plan, Matrix<T> rows) = 0;
  virtual Vector<M> send_buffer_values(const ExpertRows& plan, Vector<M> values) = 0;
  /// Both buffers are written, after start_plan: they are sent now, or in finish_plan if the host does not know the
  /// counts yet; on a GPU beside what is queued in between.
  virtual void start_dispatch(Device& device, const ExpertRows& plan) = 0;
  /// The rows alone, with a finished plan.
  virtual void start_dispatch_rows(Device& device, const ExpertRows& plan) = 0;
  /// rows (R, hidden) and values (R): those for the experts here. values may be empty after start_dispatch_rows.
  virtual void finish_dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows, Vector<M> values) = 0;

  /// Send the experts' output rows, or a value of each, back. On return `rows` and `values` may be overwritten, unless
  /// is_local().
  virtual void start_combine(Device& device, const ExpertRows& plan, Matrix<T> rows) = 0;
  virtual void start_combine_values(Device& device, const ExpertRows& plan, Vector<M> values) = 0;
  /// Those of this rank, in the order sent; valid until the next dispatch or combine.
  virtual Matrix<const T> finish_combine(Device& device, const ExpertRows& plan) = 0;
  virtual Vector<const M> finish_combine_values(Device& device, const ExpertRows& plan) = 0;

  /// On the host: messages in flight make progress. Call it between kernels.
  virtual void progress() {}
};

struct ExchangeSize {
  index_t assignments = 0;  // max rows that this rank sends
  index_t rows = 0;         // max rows that its experts receive
  index_t hidden = 0;
  index_t experts = 0;  // of the layer
  ExpertCuts cuts{};
  deck::ExpertGemms gemms = deck::ExpertGemms::library;
  deck::ExpertRowType row_type = deck::ExpertRowType::compute;
};

/// Takes what it needs from the arena (planning or real). ep must outlive it.
template <class T>
std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize& size, comm::Group& ep, Arena& arena);

}  // namespace nanotron::nn
