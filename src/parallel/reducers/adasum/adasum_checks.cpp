
#include <string>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/tensor/layout_checks.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {

using namespace deck::phrases;

void check_adasum(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.gradient_sum != deck::GradientRule::adasum || !f.is_valid({"parallel.gradient_sum"})) return;
  const auto refuse = [&](const char* key, bool applies, const std::string& why, const std::string& expected) {
    if (applies && f.is_valid({key}))
      f.error({"parallel.gradient_sum", key}, "gradient_sum = 'adasum' " + why, expected);
  };
  refuse("parallel.cp", p.cp > 1,
         "combines the gradients of different samples; with cp = " + text(p.cp) + " ranks hold parts of the same",
         "cp = 1, or gradient_sum = 'sum'");
  refuse("parallel.zero_stage", p.zero_stage > 0,
         "needs the whole gradient of every data-parallel rank, of which zero_stage = " + text(p.zero_stage) +
             " leaves only shards of the sum",
         "zero_stage = 0, or gradient_sum = 'sum'");
  refuse("parallel.compression", p.compression != deck::Compression::none,
         "is not a sum, and compression is for the all-reduce of a sum",
         "compression = 'none', or gradient_sum = 'sum'");
  refuse("model.tie_word_embeddings", p.pp > 1 && deck::embeds_at_end(c.model) && f.is_valid({"parallel.pp"}),
         "is not linear, and embeddings that the last stage uses too, with pp = " + text(p.pp) +
             ", are all-reduced over both ends of the pipeline after it",
         "pp = 1, untied embeddings, or gradient_sum = 'sum'");
  refuse(
      "parallel.expert_tp", deck::ep_spans_tp(p),
      "takes the gradient of each data-parallel rank, and with expert_tp = 1 experts have one of each tensor-parallel "
      "rank",
      "expert_tp = 0, or gradient_sum = 'sum'");
  if (p.ep > 1 && c.model.moe.num_experts > 0 && f.is_valid({"moe.num_experts", "parallel.ep"})) {
    f.error({"parallel.ep", "parallel.gradient_sum"},
            "gradient_sum = 'adasum' takes the gradient of each data-parallel rank; with ep = " + text(p.ep) +
                " that of an expert is from the tokens of as many ranks",
            "ep = 1", "or gradient_sum = 'sum'");
  }
  refuse_layout(c, f, "parallel.gradient_sum", "Adasum", "gradient_sum = 'sum'");
}

}  // namespace nanotron::parallel
