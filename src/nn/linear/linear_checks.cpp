#include "nanotron/nn/checks.hpp"

#include <algorithm>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/deck/micro_batch.hpp"

namespace nanotron::nn {
namespace {

using namespace deck::phrases;

void check_extents(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.tp > c.model.num_attention_heads && f.is_valid({"parallel.tp", "model.num_attention_heads"})) {
    f.error({"parallel.tp", "model.num_attention_heads"},
            "tp = " + text(p.tp) + ", but there are " + text(c.model.num_attention_heads) +
                " attention heads; each rank of a tensor-parallel group needs one",
            at_most("tp", c.model.num_attention_heads));
  }
  const auto too_narrow = [&](const char* key, std::int64_t width) {
    if (width > 0 && p.tp > width && f.is_valid({"parallel.tp", key})) {
      f.error({"parallel.tp", key}, "tp = " + text(p.tp) + " is more than " + key + " = " + text(width),
              at_most("tp", width));
    }
  };
  const deck::LayerKinds kinds(c.model);
  for (const deck::LayerKind& kind : kinds.all()) {
    const deck::FeedForwardSizes sizes = deck::feed_forward_sizes(c.model, kind);
    too_narrow(sizes.width.key, sizes.width.size);
    too_narrow(sizes.shared_width.key, sizes.shared_width.size);
  }
  too_narrow("model.vocab_size", c.model.vocab_size);
}

void check_mode(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (!f.is_valid({"parallel.tp_mode", "parallel.tp_overlap_chunks"})) return;
  if (p.tp_mode == deck::TpMode::all_reduce) {
    const char* const expected = "tp_mode = 'reduce_scatter'";
    if (p.tp_overlap_chunks > 1) {
      f.error({"parallel.tp_overlap_chunks"},
              "tp_overlap_chunks = " + text(p.tp_overlap_chunks) +
                  " splits all-gathers, which tp_mode = 'all_reduce' does not have",
              expected, "or tp_overlap_chunks = 1");
    }
    if (p.tp_gathered_inputs == deck::GatheredInputs::keep) {
      f.error({"parallel.tp_gathered_inputs"},
              "tp_gathered_inputs = 'keep' keeps all-gathered inputs; tp_mode = 'all_reduce' has none", expected,
              "or tp_gathered_inputs = 'gather_again'");
    }
    return;
  }
  if (p.tp == 0 || p.cp == 0 ||
      !f.is_valid({"parallel.tp", "parallel.cp", "data.micro_batch_size", "data.sequence_length"}))
    return;
  const std::int64_t tokens =
      deck::sequences_at_once(c) * (c.data.sequence_length / p.cp);  // of the rank with the fewest
  const std::int64_t rows = std::max<std::int64_t>(1, (tokens + p.tp - 1) / p.tp);
  if (p.tp_overlap_chunks <= rows) return;
  f.error(
      {"parallel.tp_overlap_chunks"},
      "tp_overlap_chunks = " + text(p.tp_overlap_chunks) + ", but a rank has " + text(rows) + " tokens per micro-batch",
      "at most " + text(rows));
}

}  // namespace

void check_tensor_parallel(const deck::Config& c, deck::Findings& f) {
  check_extents(c, f);
  check_mode(c, f);
}

}  // namespace nanotron::nn
