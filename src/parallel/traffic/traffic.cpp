#include "nanotron/parallel/traffic/traffic.hpp"

#include <algorithm>
#include <array>

#include "parallel/traffic/collective_bytes.hpp"
#include "nanotron/deck/sum_shards.hpp"
#include "nanotron/kernels/reduction/gram.hpp"
#include "nanotron/kernels/reduction/scaled_half.hpp"
#include "nanotron/model/unit_weights.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/moe/moe.hpp"
#include "nanotron/nn/linear/residual_stream.hpp"
#include "nanotron/parallel/reducers/adasum_plan.hpp"
#include "nanotron/parallel/reducers/low_rank.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"

namespace nanotron::parallel {
namespace {

using namespace detail;

nn::ContextShard context_of(const deck::Config& c, const comm::GridCoordinate& at) {
  const SequenceLayout layout(c.parallel.cp_mode, c.data.sequence_length, static_cast<int>(c.parallel.cp));
  return {c.parallel.cp_mode, layout, at.cp};
}

// Of a micro-batch.
index_t tokens_of(const deck::Config& c, const comm::GridCoordinate& at) {
  return c.data.micro_batch_size * context_of(c, at).tokens().length();
}

index_t stream_rows_of(const deck::Config& c, const comm::GridCoordinate& at) {
  return nn::stream_rows(c.parallel.tp_mode, {.tokens = tokens_of(c, at), .tp_size = static_cast<int>(c.parallel.tp)});
}

bool keeps_order(const deck::Config& c) { return c.precision.reproducible == deck::Reproducible::layout; }

// Sums over tp of a token's feed-forward network; of experts with nn::SumsOf::rows those of each row. Capacities
// leave some out.
index_t sums_of_token(const deck::Config& c) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.num_experts == 0 || !keeps_order(c)) return 1;
  return moe.num_experts_per_tok + (moe.shared_expert_intermediate_size > 0 ? 1 : 0);
}

// Over tp, of what one micro-batch brings through this rank's layers, embedding and head.
Bytes activations_of(const deck::Config& c, const model::ParameterTable& table, const comm::GridCoordinate& at,
                     index_t element) {
  const index_t layers = table.layers, hidden = c.model.hidden_size, ranks = c.parallel.tp;
  const index_t again = c.parallel.recompute == deck::Recompute::full ? 2 * layers : 0;
  const index_t outer = (table.has_embedding ? 1 : 0) + (table.has_head ? 1 : 0);
  const index_t rows = stream_rows_of(c, at);
  const index_t sums = (2 * layers + again / 2) * (1 + sums_of_token(c)) + outer;
  const index_t once = element * hidden * rows;
  if (c.parallel.tp_mode == deck::TpMode::all_reduce) return all_reduce(once * sums, ranks);
  const bool two_parts = c.parallel.pp > 1 && c.parallel.pp_schedule == deck::PpSchedule::zero_bubble;
  const bool kept = c.parallel.tp_gathered_inputs == deck::GatheredInputs::keep;
  const index_t gathers = ((two_parts ? 8 : 6) - (kept ? 2 : 0)) * layers + again + outer;
  return all_gather(once * gathers, ranks) + reduce_scatter(once * ranks * sums, ranks);
}

// Chunks of this rank's layers that lie one behind the other in the model hand over without a message.
index_t messages_of(const deck::Config& c, const model::ParameterTable& table) {
  if (c.parallel.pp == 1) return 0;
  const std::vector<index_t>& layers = table["model/layers/input_layernorm/weight"].layer_numbers;
  index_t ends = 2 - (table.has_embedding ? 1 : 0) - (table.has_head ? 1 : 0);
  for (std::size_t l = 1; l < layers.size(); ++l) ends += layers[l] == layers[l - 1] + 1 ? 0 : 2;
  return ends;
}

// Elements that tensor-parallel ranks hold parts of: sum[0] of vectors, sum[1] of matrices.
std::array<index_t, 2> partial_gradients(const model::ParameterTable& table) {
  std::array<index_t, 2> sum{};
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.gradient_is_partial) continue;
    sum[spec.is_vector ? 0 : 1] +=
        spec.local_layers() * (spec.cut == nn::Cut::none ? spec.local_size() : spec.rows * spec.columns);
  }
  return sum;
}

// Elements of the units that stage 3 gathers, replayed: what a slot still holds is not gathered again.
class GatheredPerUse {
 public:
  explicit GatheredPerUse(const model::ParameterTable& table) : table_(table) { slots_.fill(model::no_unit); }

  void use(index_t unit, index_t next) {
    if (unit == model::no_unit) return;
    set_out(unit);
    if (next != model::no_unit && model::slot_of(table_, next) != model::slot_of(table_, unit)) set_out(next);
  }
  index_t elements() const { return elements_; }

 private:
  void set_out(index_t unit) {
    index_t& held = slots_[model::slot_of(table_, unit)];
    if (held == unit) return;
    held = unit;
    elements_ += table_.units[static_cast<std::size_t>(unit)].range.size();
  }

  const model::ParameterTable& table_;
  std::array<index_t, model::unit_slots> slots_{};
  index_t elements_ = 0;
};

// The chunks of this rank by the numbers of their layers here.
std::vector<Range> local_chunks(const deck::Config& c, const model::ParameterTable& table,
                                const PipelineSchedule& schedule, int pp_rank) {
  if (c.parallel.pp == 1) return {{0, table.layers}};
  std::vector<Range> chunks;
  index_t begin = 0;
  for (const model::Chunk& chunk : chunks_of_rank(stage_layers(c), schedule, pp_rank)) {
    chunks.push_back({begin, begin + chunk.layers.size()});
    begin = chunks.back().end;
  }
  return chunks;
}

// As model::Transformer asks for its weights, seen as which units: all but experts, or these (unit_of).
template <class UnitOf>
index_t gathered_per_use(const deck::Config& c, const model::ParameterTable& table, int pp_rank, const UnitOf& unit_of) {
  const PipelineSchedule schedule = schedule_of(c);
  const std::vector<Range> chunks = local_chunks(c, table, schedule, pp_rank);
  GatheredPerUse gathered(table);
  const auto use = [&](index_t unit, index_t next) {
    gathered.use(unit_of(unit), next == model::no_unit ? next : unit_of(next));
  };
  for (const Action& action : schedule.actions[static_cast<std::size_t>(pp_rank)]) {
    const Range& chunk = chunks[static_cast<std::size_t>(action.chunk)];
    const int stage = schedule.stage_of(pp_rank, action.chunk);
    const bool last = stage + 1 == schedule.stages();
    if (action.work == Work::forward) {
      if (stage == 0) use(table.embedding_unit(), table.layer_unit(chunk.begin));
      for (index_t l = chunk.begin; l < chunk.end; ++l) {
        use(table.layer_unit(l), l + 1 < chunk.end ? table.layer_unit(l + 1) : last ? table.head_unit() : model::no_unit);
      }
    } else if (action.work != Work::backward_weight) {
      if (last) use(table.head_unit(), table.layer_unit(chunk.end - 1));
      for (index_t l = chunk.end - 1; l >= chunk.begin; --l) {
        use(table.layer_unit(l), l > chunk.begin ? table.layer_unit(l - 1) : model::no_unit);
      }
    }
  }
  return gathered.elements();
}

// Inner products of the replicas' gradients within a range, all-reduced over so many ranks; nothing without Adasum.
Bytes adasum_products(const deck::ParallelConfig& p, const model::ParameterTable& table, const Range& range, index_t ranks) {
  if (p.dp == 1 || p.gradient_sum != deck::GradientRule::adasum) return {};
  const auto tensors = std::ranges::count_if(adasum_tensors(table),
                                             [&](const AdasumTensor& t) { return range.contains(t.local.begin); });
  return all_reduce(static_cast<index_t>(sizeof(double)) * tensors * kernels::gram_pairs(p.dp), ranks);
}

// Of a section's gradients, which nothing shards, over so many ranks.
Bytes all_reduced(const deck::ParallelConfig& p, const model::ParameterTable& table, const model::Section& section,
                  index_t master, index_t ranks) {
  const index_t size = section.flat.size();
  if (p.gradient_sum == deck::GradientRule::adasum) {
    return all_to_all(master * size, ranks) + all_gather(master * piece_size(size, static_cast<int>(p.dp)), ranks) +
           adasum_products(p, table, section.flat, ranks);
  }
  switch (p.compression) {
    case deck::Compression::none: return all_reduce(master * size, ranks);
    case deck::Compression::bf16: return all_reduce(2 * size, ranks);
    case deck::Compression::fp16: return all_reduce(2 * size + master * kernels::half_blocks(size), ranks);
    case deck::Compression::powersgd: break;
  }
  return all_reduce(master * low_rank_elements(low_rank_plan(table, p.powersgd_rank, {section}), section), ranks);
}

// Of the ranks that hold a section, and of those that share one set of it.
struct SectionRanks {
  index_t replicas, shards;
};

// What OrderedSum hands to collectives for the gradients of a section. sequences: gradients of each element.
Bytes summed_in_order(const deck::Config& c, const model::ParameterTable& table, const model::Section& section,
                      const SectionRanks& ranks, index_t master, index_t sequences) {
  const auto [replicas, shards] = ranks;
  if (replicas == 1) return {};
  const index_t matrices = section.flat.size() - section.vectors.size();
  const index_t rounds = deck::sum_shards(c).batch / c.parallel.dp;
  const model::Unit& words = table.units.front();
  const index_t twice = section.units.begin == 0 && words.uses > 1 ? words.range.size() : 0;
  return rounds * (all_to_all(master * (sequences * matrices + twice), replicas) +
                   all_gather(master * section.vectors.size(), replicas)) +
         all_gather(shards < replicas ? master * (matrices / replicas) : 0, replicas / shards);
}

// One section over its ranks. gathered: elements of units that stage 3 gathers.
template <class Gathered>
Bytes of_section(const deck::Config& c, const model::ParameterTable& table, const model::Section& section,
                 const SectionRanks& ranks, index_t master, index_t micro_batches, const Gathered& gathered) {
  const auto [replicas, shards] = ranks;
  const index_t stage = c.parallel.zero_stage;
  if (replicas == 1) return {};
  if (deck::shard_group_size(c.parallel) == 1) return all_reduced(c.parallel, table, section, master, replicas);
  const index_t matrices = section.flat.size() - section.vectors.size();
  const Bytes whole = all_reduce(master * section.vectors.size(), replicas) +
                      all_reduce(shards < replicas ? master * (matrices / shards) : 0, replicas / shards);
  if (shards == 1) return whole;
  const index_t elements = stage == 3 ? gathered() : matrices;
  return whole + reduce_scatter(master * (stage == 1 ? 1 : micro_batches) * matrices, shards) +
         all_gather(static_cast<index_t>(size_of(c.precision.compute)) * elements / shards, shards);
}

// Over the ranks that hold the same parameters.
Bytes over_replicas(const deck::Config& c, const model::ParameterTable& table, index_t master, index_t micro_batches,
                    int pp_rank) {
  const index_t replicas = c.parallel.dp * c.parallel.cp, shards = deck::shard_group_size(c.parallel);
  if (replicas == 1) return {};
  const auto all = [](index_t unit) { return unit; };
  const auto experts = [&](index_t unit) { return table.is_layer(unit) ? table.expert_unit(unit) : model::no_unit; };
  if (keeps_order(c)) {
    const auto of = [&](const model::Section& section, const SectionRanks& ranks, index_t sequences, const auto& unit_of) {
      index_t gathered = 0;
      if (ranks.shards > 1) {
        gathered = c.parallel.zero_stage == 3 ? gathered_per_use(c, table, pp_rank, unit_of)
                                              : section.flat.size() - section.vectors.size();
      }
      return summed_in_order(c, table, section, ranks, master, sequences) +
             all_gather(static_cast<index_t>(size_of(c.precision.compute)) * gathered / ranks.shards, ranks.shards);
    };
    const Bytes dense = of(table.dense_section(), {replicas, shards}, 1, all);
    if (!table.has_experts()) return dense;
    const index_t sequences = std::max<index_t>(1, c.parallel.ep / c.parallel.cp);
    return dense + of(table.expert_section(), {replicas / c.parallel.ep, deck::expert_shard_group_size(c.parallel)}, sequences, experts);
  }
  const Bytes dense = of_section(c, table, table.dense_section(), {replicas, shards}, master, micro_batches,
                                 [&] { return gathered_per_use(c, table, pp_rank, all); });
  if (!table.has_experts()) return dense;
  return dense + of_section(c, table, table.expert_section(), {replicas / c.parallel.ep, table.expert_shards}, master,
                            micro_batches, [&] { return gathered_per_use(c, table, pp_rank, experts); });
}

// Of one layer and micro-batch.
nn::MoeTraffic moe_traffic_of(const deck::Config& c, const comm::GridCoordinate& at, index_t element, index_t master) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.num_experts == 0) return {};
  return nn::moe_traffic({.tokens = tokens_of(c, at),
                          .sequences = c.data.micro_batch_size,
                          .longest_shard = context_of(c, at).layout.longest_shard(),
                          .hidden = c.model.hidden_size,
                          .experts = moe.num_experts,
                          .top_k = moe.num_experts_per_tok,
                          .element = element,
                          .master = master,
                          .ep_size = static_cast<int>(c.parallel.ep),
                          .cp_size = static_cast<int>(c.parallel.cp),
                          .cuts = keeps_order(c) ? c.precision.context_shards / c.parallel.cp + 1 : 0,
                          .capacity_factor = moe.capacity_factor});
}

index_t forwards_of(const deck::Config& c) { return c.parallel.recompute == deck::Recompute::full ? 2 : 1; }

// One micro-batch's attention.
Bytes attention_bytes_of(const deck::Config& c, const model::ParameterTable& table, const comm::GridCoordinate& at,
                         index_t element, index_t master) {
  const nn::CoreTraffic core =
      nn::core_traffic(context_of(c, at), table.heads, c.model.head_dim, c.data.micro_batch_size);
  const index_t forwards = forwards_of(c);
  const index_t bytes = table.layers * (element * (forwards * core.forward + core.backward) + master * core.backward_master);
  return c.parallel.cp_mode == deck::CpMode::ring ? message(bytes) : all_to_all(bytes, c.parallel.cp);
}

// By the axes of the grid, as StepTraffic.
struct AxisBytes {
  Bytes tensor_parallel, context_parallel, data_parallel, pipeline, expert_parallel;
};

AxisBytes bytes_by_axis(const deck::Config& c, const model::ParameterTable& table, const comm::GridCoordinate& at) {
  const auto element = static_cast<index_t>(size_of(c.precision.compute));
  const auto master = static_cast<index_t>(c.precision.compute == ScalarType::fp64 ? sizeof(double) : sizeof(float));
  const index_t micro_batches = c.data.global_batch_size / c.parallel.dp / c.data.micro_batch_size;
  AxisBytes bytes;
  if (c.parallel.tp > 1) {
    const auto [vectors, matrices] = partial_gradients(table);
    const index_t weights = keeps_order(c) && table.has_experts() ? sums_of_token(c) * table.layers * tokens_of(c, at) : 0;
    const index_t sums = deck::shard_group_size(c.parallel) > 1 && c.parallel.zero_stage > 1 ? micro_batches : 1;
    const index_t loss = table.has_head ? 3 * tokens_of(c, at) : 0;
    const index_t gradients = (keeps_order(c) ? micro_batches : 1) * vectors + sums * matrices;
    bytes.tensor_parallel = micro_batches * activations_of(c, table, at, element) +
                            all_reduce(master * (micro_batches * (loss + weights) + gradients), c.parallel.tp) +
                            adasum_products(c.parallel, table, {0, table.size}, c.parallel.tp);
  }
  const nn::MoeTraffic moe = moe_traffic_of(c, at, element, master);
  const index_t layers = micro_batches * table.layers;
  bytes.context_parallel = micro_batches * attention_bytes_of(c, table, at, element, master) +
                           all_gather(layers * forwards_of(c) * moe.context_forward, c.parallel.cp) +
                           all_reduce(layers * moe.context_backward, c.parallel.cp);
  bytes.expert_parallel = all_to_all(layers * (forwards_of(c) * moe.forward + moe.backward), c.parallel.ep);
  bytes.pipeline = message(micro_batches * messages_of(c, table) * stream_rows_of(c, at) * c.model.hidden_size * element);
  bytes.data_parallel = over_replicas(c, table, master, micro_batches, at.pp);
  return bytes;
}

template <class F>
StepTraffic each_axis(const AxisBytes& bytes, const F& of) {
  const auto whole = [&](const Bytes& b) { return static_cast<std::uint64_t>(of(b)); };
  return {.tensor_parallel = whole(bytes.tensor_parallel),
          .context_parallel = whole(bytes.context_parallel),
          .data_parallel = whole(bytes.data_parallel),
          .pipeline = whole(bytes.pipeline),
          .expert_parallel = whole(bytes.expert_parallel)};
}

}  // namespace

StepTraffic step_traffic(const deck::Config& c, const model::ParameterTable& table, const comm::GridCoordinate& at) {
  return each_axis(bytes_by_axis(c, table, at), [](const Bytes& b) { return b.counted; });
}

StepTraffic sent_traffic(const deck::Config& c, const model::ParameterTable& table, const comm::GridCoordinate& at) {
  return each_axis(bytes_by_axis(c, table, at), [](const Bytes& b) { return b.sent; });
}

}  // namespace nanotron::parallel
