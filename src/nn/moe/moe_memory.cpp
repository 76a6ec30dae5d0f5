#include "nanotron/nn/moe/moe_memory.hpp"

#include "nanotron/kernels/moe/expert_rows.hpp"

namespace nanotron::nn {

Range ExpertRows::of_sequence(std::size_t e, index_t s, index_t sequences) const {
  if (sequences == 1) return {begin[e], begin[e + 1]};
  const std::size_t here = begin.size() - 1, ranks = received.size() / here / static_cast<std::size_t>(sequences);
  const std::size_t first = static_cast<std::size_t>(s) * ranks;
  Range rows{begin[e], begin[e]};
  for (std::size_t r = 0; r < first; ++r) rows.begin += received[r * here + e];
  rows.end = rows.begin;
  for (std::size_t r = first; r < first + ranks; ++r) rows.end += received[r * here + e];
  return rows;
}

template <class T>
void take_selective(Arena& arena, MemoryKind kind, const MoeSizes& s, RoutedActivations<T>& act) {
  act.hidden = arena.take<T>(kind, s.rows, s.width);
  act.shared_hidden = arena.take<T>(kind, s.tokens, s.shared_width);
}

namespace {

std::shared_ptr<NodeRows> take_node_rows(Arena& arena, MemoryKind kind, const MoeSizes& s, int ranks) {
  const NodeRowSizes& n = s.by_node;
  if (n.nodes == 1) return nullptr;
  const auto rows = std::make_shared<NodeRows>();
  for (std::vector<std::int64_t>* of_node : {&rows->sent, &rows->received})
    of_node->resize(static_cast<std::size_t>(n.nodes));
  for (std::vector<std::int64_t>* of_rank : {&rows->forwarded, &rows->arrived})
    of_rank->resize(static_cast<std::size_t>(ranks / n.nodes));
  rows->rows = arena.take<std::int64_t>(kind, s.assignments());
  rows->sources = arena.take<std::int64_t>(kind, n.sent);
  rows->rows_forwarded = arena.take<std::int64_t>(kind, n.received * s.top_k);
  rows->sources_forwarded = arena.take<std::int64_t>(kind, n.forwarded);
  return rows;
}

}  // namespace

template <class T>
void take_full(Arena& arena, MemoryKind kind, const MoeSizes& s, int ranks, RoutedActivations<T>& act) {
  using M = master_t<T>;
  act.probabilities = arena.take<M>(kind, s.tokens, s.experts);
  act.z = arena.take<M>(kind, s.experts > 0 ? s.tokens : 0);
  act.score_sums = arena.take<M>(kind, s.is_sigmoid ? s.tokens : 0);
  act.assignments = arena.take<std::int64_t>(kind, s.assignments());
  act.weights = arena.take<M>(kind, s.assignments());
  act.row_of_assignment = arena.take<std::int64_t>(kind, s.assignments());
  act.source = arena.take<std::int64_t>(kind, s.assignments());
  act.gate = arena.take<M>(kind, s.columns > s.experts ? s.tokens : 0);
  act.dlogits = arena.take<T>(kind, s.tokens, s.columns);
  const bool receives_again = s.recompute_dispatch && kind == MemoryKind::activations;
  act.input = arena.take<T>(kind, receives_again ? 0 : s.rows, s.hidden);
  act.row_weights = arena.take<M>(kind, s.rows);
  act.gate_up = arena.take<T>(kind, s.rows, 2 * s.width);
  act.shared_gate_up = arena.take<T>(kind, s.tokens, 2 * s.shared_width);
  if (s.experts == 0) return;
  const auto all = static_cast<std::size_t>(s.experts), here = all / static_cast<std::size_t>(ranks);
  act.rows = std::make_shared<ExpertRows>();
  act.rows->sent.resize(all);
  act.rows->received.resize(all);
  act.rows->begin.resize(here + 1);
  const index_t local = s.experts / ranks;
  act.rows->counts = arena.take<std::int64_t>(kind, ranks > 1 ? 2 : 0, s.experts);
  act.rows->nodes = take_node_rows(arena, kind, s, ranks);
  act.rows->cuts = arena.take<std::int64_t>(kind, s.cuts.shards_on_rank > 0 ? local * s.cuts.sequences : 0,
                                            s.cuts.boundaries_of_sequence());
  act.rows->offsets = arena.take<std::int64_t>(kind, s.gemms == deck::ExpertGemms::grouped ? local + 1 : 0);
}

template <class T>
void take_doutput(Arena& arena, MemoryKind kind, const MoeSizes& s, RoutedActivations<T>& act) {
  act.doutput = arena.take<T>(kind, s.rows, s.hidden);
}

template <class T>
void take_forward(Arena& arena, const MoeSizes& s, RoutedWorkspace<T>& work) {
  constexpr auto kind = MemoryKind::workspace;
  work.logits = arena.take<master_t<T>>(kind, s.tokens, s.columns);
  work.counts = arena.take<std::int64_t>(kind, s.experts);
  work.stretches = arena.take<std::int64_t>(kind, kernels::stretches_of(s.assignments()), s.experts);
  work.cuts = arena.take<std::int64_t>(kind, s.cuts.shards_on_rank > 0 ? s.experts : 0, s.cuts.boundaries_on_rank());
  work.output = arena.take<T>(kind, s.rows, s.hidden);
}

template <class T>
void take_backward(Arena& arena, const MoeSizes& s, RoutedWorkspace<T>& work) {
  using M = master_t<T>;
  constexpr auto kind = MemoryKind::workspace;
  work.sequence_counts = arena.take<std::int64_t>(kind, s.sequences, s.experts);
  work.dhidden = arena.take<T>(kind, s.rows, s.width);
  work.shared_dhidden = arena.take<T>(kind, s.tokens, s.shared_width);
  work.drow_weights = arena.take<M>(kind, s.rows);
  work.dweights = arena.take<M>(kind, s.assignments());
  work.dgate = arena.take<M>(kind, s.columns > s.experts ? s.tokens : 0);
  work.bias_sums = arena.take<M>(kind, s.bias_workspace);
}

template <class T>
void take_turn(Arena& arena, const MoeSizes& s, index_t turn, RoutedWorkspace<T>& work) {
  work.turn = static_cast<std::size_t>(turn);
  if (work.dgate.extent(0) > 0) work.dgate = arena.take<master_t<T>>(MemoryKind::workspace, s.tokens);
}

#define NANOTRON_INSTANTIATE(T)                                                             \
  template void take_selective(Arena&, MemoryKind, const MoeSizes&, RoutedActivations<T>&); \
  template void take_full(Arena&, MemoryKind, const MoeSizes&, int, RoutedActivations<T>&); \
  template void take_doutput(Arena&, MemoryKind, const MoeSizes&, RoutedActivations<T>&);   \
  template void take_forward(Arena&, const MoeSizes&, RoutedWorkspace<T>&);                 \
  template void take_backward(Arena&, const MoeSizes&, RoutedWorkspace<T>&);                \
  template void take_turn(Arena&, const MoeSizes&, index_t, RoutedWorkspace<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
