#include "nanotron/tensor/layout_checks.hpp"

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/micro_batch.hpp"

namespace nanotron {
namespace {

using namespace deck::phrases;

bool asked_for(const deck::Config& c, const deck::Findings& f) {
  return c.precision.reproducible == deck::Reproducible::layout && f.is_valid({"precision.reproducible"});
}

std::int64_t key_heads(const deck::ModelConfig& m) {
  return m.num_key_value_heads > 0 ? m.num_key_value_heads : m.num_attention_heads;
}

// The degrees that `shards` admits, as text: "1, 2 or 4".
std::string admitted(std::int64_t shards) {
  std::vector<std::string> degrees;
  for (std::int64_t d = 1; d <= shards; ++d) {
    if (deck::holds_node(shards, d)) degrees.push_back(text(d));
  }
  return one_of(degrees);
}

void check_heads(std::int64_t shards, const deck::Config& c, deck::Findings& f) {
  const std::int64_t heads = c.model.num_attention_heads;
  if (f.is_valid({"precision.tensor_shards", "model.num_attention_heads"}) && shards > heads) {
    f.error({"precision.tensor_shards"},
            "tensor_shards = " + text(shards) + ", but there are " + text(heads) + " query heads",
            at_most("tensor_shards", heads));
  }
}

void check_shard_counts(const deck::Config& c, deck::Findings& f) {
  const std::int64_t tensor = deck::sum_shards(c).tensor, context = c.precision.context_shards;
  check_heads(tensor, c, f);
  if (f.is_valid({"precision.context_shards", "data.sequence_length"}) && c.data.sequence_length < context) {
    f.error({"precision.context_shards"},
            "context_shards = " + text(context) + ", but a sequence has " + text(c.data.sequence_length) + " tokens",
            at_most("context_shards", c.data.sequence_length));
  }
  const std::int64_t batch = c.precision.batch_shards, samples = c.data.global_batch_size;
  if (batch > 0 && f.is_valid({"precision.batch_shards", "data.global_batch_size"}) && samples % batch != 0) {
    f.error({"precision.batch_shards"},
            "batch_shards = " + text(batch) + " does not divide global_batch_size = " + text(samples),
            "a divisor of " + text(samples));
  } else if (batch > 0 && batch != samples && context > 1) {
    f.error({"precision.batch_shards", "precision.context_shards"},
            "with context_shards > 1 the parts of each sequence are added first, then the sequences",
            "batch_shards = 0, or context_shards = 1");
  }
}

void check_degrees(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  const deck::SumShards shards = deck::sum_shards(c);
  const auto check = [&](const char* name, std::int64_t degree, const char* key, std::int64_t count) {
    const std::string of_grid = std::string("parallel.") + name, of_sums = std::string("precision.") + key;
    if (degree <= 0 || deck::holds_node(count, degree) || !f.is_valid({of_grid, of_sums})) return;
    f.error({of_grid, of_sums},
            std::string(name) + " = " + text(degree) + " splits sums differently than " + key + " = " + text(count),
            std::string(name) + " = " + admitted(count), std::string("or another ") + key + ", which gives other bits");
  };
  check("tp", p.tp, "tensor_shards", shards.tensor);
  check("cp", p.cp, "context_shards", shards.context);
  if (p.dp > 0 && shards.batch % p.dp != 0 &&
      f.is_valid({"parallel.dp", "precision.batch_shards", "data.global_batch_size"})) {
    f.error({"parallel.dp", "precision.batch_shards"},
            "dp = " + text(p.dp) + " does not divide batch_shards = " + text(shards.batch),
            "a divisor of " + text(shards.batch));
  }
}

// Whether rows of hidden states that are sharded over tp give the same bits: the ranks have nodes of the tree over the
// tokens; and gradients of matrices that multiply such rows, which are added over tp shard by shard of the batch, are
// of one sequence each.
bool admits_sharded_rows(const deck::Config& c) {
  const deck::SumShards shards = deck::sum_shards(c);
  const bool has_matrices = deck::attention_sizes(c.model).is_compressed || deck::appended_layers(c.model) > 0;
  return shards.norm == shards.tensor * shards.context &&
         deck::holds_node(shards.norm, c.parallel.tp * c.parallel.cp) &&
         (!has_matrices || shards.batch == c.data.global_batch_size);
}

}  // namespace

void check_layout(const deck::Config& c, deck::Findings& f) {
  if (!asked_for(c, f)) return;
  check_shard_counts(c, f);
  if (f.errors() == 0) check_degrees(c, f);
}

void refuse_layout(const deck::Config& c, deck::Findings& f, const char* key, const std::string& what,
                   const std::string& change) {
  if (!asked_for(c, f) || !f.is_valid({key})) return;
  f.error({key, "precision.reproducible"},
          "reproducible = 'layout' does not work with " + what + ": its order of summation depends on the grid", change,
          "or reproducible = 'run'");
}

void fill_layout(deck::Config& c) {
  if (c.precision.reproducible != deck::Reproducible::layout) return;
  const deck::SumShards shards = deck::sum_shards(c);
  c.precision.tensor_shards = shards.tensor;
  c.precision.batch_shards = shards.batch;
  c.data.micro_batch_size = deck::parts_of_micro_batch(c.parallel);
  c.parallel.tp_overlap_chunks = 1;
  c.parallel.cp_all_to_all = 1;
  deck::ParallelConfig& p = c.parallel;
  if (p.tp <= 0 || p.cp <= 0) return;
  if (p.tp > 1 && !admits_sharded_rows(c)) {
    p.tp_mode = deck::TpMode::all_reduce;
    p.tp_gathered_inputs = deck::GatheredInputs::gather_again;
  }
  const std::int64_t keys = key_heads(c.model);
  const bool are_unequal = shards.tensor < keys && keys % shards.tensor != 0;  // the ranks' key heads
  if (are_unequal || keys % (p.tp * p.cp) != 0)
    p.cp_mode = deck::CpMode::ring;  // an all-to-all would split sums over the heads that read a key
}

}  // namespace nanotron
