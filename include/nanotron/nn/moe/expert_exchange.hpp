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
#include "nanotron/kernels/moe/routing.hpp"
#include "nanotron/nn/moe/moe_memory.hpp"
#include "nanotron/nn/pass_traffic.hpp"
#include "nanotron/nn/received_rows.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

/// Where the assignments of a micro-batch's tokens go (kernels/moe/expert_rows.hpp).
struct TokenRoutes {
  index_t top_k = 1;
  Vector<const std::int64_t> experts{}, rows{};  // of each assignment; < 0: none
  Vector<const std::int64_t> sources{};          // the assignment of each row, as many as this rank may send
};

/// All but rows, traffic and is_local are collective over the expert-parallel group. A dispatch and a combine are in
/// two calls: the messages of the first are in flight until the second, beside the work that is queued between them.
/// One dispatch or one combine at a time.
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
  /// Of one dispatch of rows alone.
  virtual comm::StepTraffic dispatch_traffic() const { return {}; }

  /// counts (experts): rows from here to each expert -> plan, whose vectors have their sizes. finish_plan waits for the
  /// device, once: the host must know how many rows each GEMM, and each rank, has. It waits for the counts alone, and
  /// not for what is queued after start_plan. It is the only such wait of a layer of experts, in each forward of a
  /// micro-batch (with recompute = 'full' also in the second one); backward uses the same plan. With e = 1 library
  /// GEMMs wait in start_plan; grouped GEMMs leave the counts on the device, and nothing waits. Collectives that go
  /// through host memory have waits of their own. Error(deck_error) when more rows arrive than rows(). Until
  /// finish_plan only sent_rows is set, perhaps to all assignments.
  virtual void start_plan(Device& device, const TokenRoutes& routes, Vector<std::int64_t> counts, ExpertRows& plan) = 0;
  virtual void finish_plan(Device& device, ExpertRows& plan) = 0;

  /// After start_plan(): shard boundaries in the rows sent from here (experts, boundaries) -> in the rows received
  /// here, see kernels::join_cuts.
  virtual void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) = 0;

  /// After start_plan: tokens (tokens, hidden) are sent as rows, and the weights (of assignments) with them: now, or in
  /// finish_plan if the host does not know the counts yet; on a GPU beside what is queued in between. rows, values: as
  /// in finish_dispatch. With a finished plan the weights may be empty: rows alone.
  virtual void start_dispatch(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<const T> tokens,
                              Vector<const M> weights, Matrix<T> rows, Vector<M> values) = 0;
  /// rows (R, hidden) and values (R): those for the experts here. values are empty where no weights were sent.
  virtual void finish_dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows, Vector<M> values) = 0;

  /// Send the experts' output rows, or a value of each, back. On return `rows` and `values` may be overwritten, unless
  /// is_local().
  virtual void start_combine(Device& device, const ExpertRows& plan, Matrix<T> rows) = 0;
  virtual void start_combine_values(Device& device, const ExpertRows& plan, Vector<M> values) = 0;
  /// y(token, :) += its rows, in the order of its assignments.
  virtual void add_combined(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<T> y) = 0;
  /// of_assignments <- the value of its row, or 0.
  virtual void finish_combine_values(Device& device, const ExpertRows& plan, const TokenRoutes& routes,
                                     Vector<M> of_assignments) = 0;

  /// On the host: messages in flight make progress. Call it between kernels.
  virtual void progress() {}
};

/// The parts of an expert-parallel group whose messages go by node (comm/process_grid.hpp); alone: they go by rank.
struct NodeGroups {
  comm::Group* across = &comm::alone();
  comm::Group* within = &comm::alone();
};

struct ExchangeSize {
  index_t assignments = 0;  // max rows that this rank sends
  index_t rows = 0;         // max rows that its experts receive
  index_t tokens = 0;       // max tokens of any rank of the group
  index_t hidden = 0;
  index_t experts = 0;  // of the layer
  ExpertCuts cuts{};
  deck::ExpertGemms gemms = deck::ExpertGemms::library;
  deck::ExpertRowType row_type = deck::ExpertRowType::compute;
  kernels::Routing routing{};
  ReceivedRows* received = nullptr;  // counts them; null: nobody does
  NodeRowSizes by_node{};
};

/// Of an exchange with these sizes. assignments: as in NodeRowSizes. is_expected: size.rows is what a rank is expected
/// to receive (moe%receive_factor) and no bound; a rank forwards as many at most.
NodeRowSizes node_row_sizes(const ExchangeSize& size, index_t assignments, const NodeGroups& groups, bool is_expected);

/// Takes what it needs from the arena (planning or real). The groups must outlive it.
template <class T>
std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize& size, comm::Group& ep,
                                                        const NodeGroups& nodes, Arena& arena);

}  // namespace nanotron::nn
