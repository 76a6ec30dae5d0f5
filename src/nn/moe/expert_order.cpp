// What precision%reproducible = 'layout' asks of experts.

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/nn/checks.hpp"

namespace nanotron::nn {

using namespace deck::phrases;

// ep neighbouring ranks have whole sequences, or a node of a sequence's tree; of whole experts (expert_tp = 1) each
// token's tp ranks.
void check_expert_order(const deck::Config& c, deck::Findings& f) {
  if (c.precision.reproducible != deck::Reproducible::layout || f.errors() > 0) return;
  const std::int64_t shards = deck::sum_shards(c).context;
  const deck::ParallelConfig& p = c.parallel;
  const std::int64_t tp = deck::tp_in_ep(p);
  if (!f.is_valid({"parallel.ep", "parallel.cp", "parallel.tp"}) || p.cp <= 0 || p.tp <= 0 || p.ep <= 0) return;
  if (p.ep == 1) return;
  if (p.ep % tp != 0) {
    f.error({"parallel.ep", "parallel.tp", "parallel.expert_tp"},
            "with expert_tp = 1 each of tp = " + text(tp) + " ranks sends a part of the same tokens, and ep = " +
                text(p.ep) + " neighbouring ranks do not receive all of them",
            "ep a multiple of " + text(tp), "or expert_tp = 0");
    return;
  }
  const std::int64_t parts = p.ep / tp;
  const bool whole_sequences = parts % p.cp == 0, within_one = p.cp % parts == 0;
  if (parts == 1 || whole_sequences || (within_one && deck::holds_node(shards, p.cp / parts))) return;
  f.error({"parallel.ep", "parallel.cp", "precision.reproducible"},
          "ep = " + text(p.ep) + " neighbouring ranks have neither whole sequences, of " +
              (tp > 1 ? "tp x cp = " : "cp = ") + text(tp * p.cp) + " ranks, nor a node of a sequence's " +
              text(shards) + " context_shards",
          "ep a multiple of " + text(tp * p.cp), "or reproducible = 'run'");
}

void fill_expert_order(deck::Config& c) {
  if (c.precision.reproducible != deck::Reproducible::layout) return;
  c.parallel.ep_messages = deck::ExpertMessages::by_rank;  // sums of a node would be added before they travel
  c.parallel.ep_nodes = 0;
  if (c.parallel.ep == 1) c.parallel.expert_tp = 0;  // of whole experts each rank would add a part of the tokens
  c.run.expert_gemms = deck::ExpertGemms::library;   // grouped ones add rows as tensor cores do
}

}  // namespace nanotron::nn
