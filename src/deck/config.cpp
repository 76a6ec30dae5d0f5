#include "nanotron/deck/config.hpp"

#include <limits>

namespace nanotron::deck {
namespace {

/// Saturates: a grid of that many ranks fits nowhere anyway.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

}  // namespace

std::string checkpoint_directory(const Config& c) {
  return c.checkpoint.directory.empty() ? c.run.output_dir + "/checkpoints" : c.checkpoint.directory;
}

std::int64_t virtual_stages(const ParallelConfig& p) {
  if (p.pp == 1) return 1;
  return p.pp_schedule == PpSchedule::interleaved_1f1b ? p.pp_chunks : p.pp_schedule == PpSchedule::zero_bubble ? 2 : 1;
}

std::int64_t all_to_all_ranks(const ParallelConfig& p) {
  if (p.cp <= 1) return 1;
  return p.cp_mode == CpMode::all_to_all ? p.cp : p.cp_all_to_all;
}

std::int64_t pipeline_stages(const ParallelConfig& p) { return product(p.pp, virtual_stages(p)); }

std::int64_t grid_size(const ParallelConfig& p) { return product(product(p.dp, p.tp), product(p.pp, p.cp)); }

std::int64_t shard_group_size(const ParallelConfig& p) {
  if (p.zero_stage == 0) return 1;
  return p.zero_size > 0 ? p.zero_size : p.dp * p.cp;
}

SumShards sum_shards(const Config& c) {
  if (c.precision.reproducible != Reproducible::layout)
    return {c.parallel.tp, c.parallel.cp, c.parallel.dp, c.parallel.cp};
  const std::int64_t kv = c.model.num_key_value_heads > 0 ? c.model.num_key_value_heads : c.model.num_attention_heads;
  std::int64_t tensor = c.precision.tensor_shards;
  for (tensor = tensor > 0 ? tensor : 8; c.precision.tensor_shards == 0 && kv % tensor != 0;) tensor /= 2;
  const std::int64_t context = c.precision.context_shards;
  const bool one_tree =
      (context == 1 || (tensor & (tensor - 1)) == 0) && c.data.sequence_length % (context * tensor) == 0;
  return {tensor, context, c.precision.batch_shards > 0 ? c.precision.batch_shards : c.data.global_batch_size,
          one_tree ? context * tensor : context};
}

}  // namespace nanotron::deck
