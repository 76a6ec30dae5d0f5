#include "nanotron/model/parameter_table.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"

namespace nanotron::model {
namespace {

using nn::Cut;
using nn::Initial;
using nn::ParameterSpec;

constexpr index_t alignment = 64;  // elements: every product operand starts on a cache line

Range times(Range r, index_t factor) { return {r.begin * factor, r.end * factor}; }

// What a rank holds of a cut dimension, what of that it owns, and whether any rank of the group holds
// something another one owns.
struct Held {
  Range local;
  Range owned;
  bool shared = false;
};

Held exclusively(Range r) { return {r, r, false}; }

// Lays specs out one behind the other in a flat buffer.
class Builder {
 public:
  Builder(const deck::ModelConfig& model, ParameterTable& table, int tp_rank)
      : model_(model), table_(table), tp_rank_(tp_rank) {}

  // What follows is held here, or belongs to another stage and takes no memory.
  void hold(bool is_held) { is_held_ = is_held; }
  void align() { cursor_ = (cursor_ + alignment - 1) / alignment * alignment; }
  index_t cursor() const { return cursor_; }

  // A vector every rank holds whole.
  void norm(const std::string& name, index_t n, bool partial) {
    ParameterSpec spec{.name = name, .rows = n, .is_vector = true, .initial = Initial::ones};
    spec.local = {0, n};
    spec.owned = tp_rank_ == 0 ? spec.local : Range{0, 0};
    spec.gradient_is_partial = partial;
    add(spec);
  }

  void bias(const std::string& name, index_t n, const Held& held) {
    ParameterSpec spec{.name = name, .rows = n, .is_vector = true, .cut = Cut::rows};
    spec.initial = Initial::zeros;
    shard(spec, held);
  }

  void matrix(const std::string& name, index_t rows, index_t columns, Cut cut, const Held& held,
              double deviation) {
    ParameterSpec spec{.name = name, .rows = rows, .columns = columns, .cut = cut};
    spec.deviation = deviation;
    spec.decays = true;
    shard(spec, held);
  }

  void stack_layers(std::size_t first_spec, index_t begin, const std::vector<index_t>& layer_numbers) {
    align();
    table_.layers_begin = begin;
    table_.layer_stride = cursor_ - begin;
    for (std::size_t i = first_spec; i < table_.specs.size(); ++i) {
      table_.specs[i].layers = model_.num_hidden_layers;
      table_.specs[i].layer_numbers = layer_numbers;
      table_.specs[i].is_stacked = true;
      table_.specs[i].layer_stride = table_.layer_stride;
    }
    cursor_ = begin + static_cast<index_t>(layer_numbers.size()) * table_.layer_stride;
  }

 private:
  void shard(ParameterSpec& spec, const Held& held) {
    spec.local = held.local;
    spec.owned = held.owned;
    spec.gradient_is_partial = held.shared;
    add(spec);
  }

  void add(ParameterSpec& spec) {
    spec.offset = cursor_;
    if (is_held_) {
      cursor_ += spec.local_size();
    } else {
      spec.layer_numbers.clear();
    }
    table_.specs.push_back(std::move(spec));
  }

  const deck::ModelConfig& model_;
  ParameterTable& table_;
  int tp_rank_;
  index_t cursor_ = 0;
  bool is_held_ = true;
};

// Sharing is a property of the group, not of one rank: every rank must know whether any head is held twice.
bool key_heads_are_shared(const deck::ModelConfig& m, int tp_size) {
  for (int rank = 0; rank < tp_size; ++rank) {
    const nn::HeadShard heads =
        nn::shard_heads(m.num_attention_heads, m.num_key_value_heads, tp_size, rank);
    if (heads.key != heads.owned_key) return true;
  }
  return false;
}

void add_attention(Builder& build, const deck::ModelConfig& m, const ParameterTable& table,
                   bool kv_shared) {
  const std::string attention = "model/layers/self_attn/";
  const index_t query = m.num_attention_heads * m.head_dim;
  const index_t key = m.num_key_value_heads * m.head_dim;
  const Held q = exclusively(times(table.heads.query, m.head_dim));
  const Held k{times(table.heads.key, m.head_dim), times(table.heads.owned_key, m.head_dim), kv_shared};
  const double plain = m.initializer_range;
  const double residual = plain / std::sqrt(2.0 * static_cast<double>(m.num_hidden_layers));
  if (m.qk_norm) {
    build.norm(attention + "q_norm/weight", m.head_dim, true);
    build.align();
    build.norm(attention + "k_norm/weight", m.head_dim, true);
    build.align();
  }
  if (m.qkv_bias) {
    build.bias(attention + "q_proj/bias", query, q);
    build.bias(attention + "k_proj/bias", key, k);
    build.bias(attention + "v_proj/bias", key, k);
    build.align();
  }
  build.matrix(attention + "q_proj/weight", query, m.hidden_size, Cut::rows, q, plain);
  build.matrix(attention + "k_proj/weight", key, m.hidden_size, Cut::rows, k, plain);
  build.matrix(attention + "v_proj/weight", key, m.hidden_size, Cut::rows, k, plain);
  build.align();
  build.matrix(attention + "o_proj/weight", m.hidden_size, query, Cut::columns, q, residual);
  build.align();
}

void add_mlp(Builder& build, const deck::ModelConfig& m, const ParameterTable& table) {
  const std::string mlp = "model/layers/mlp/";
  const Held f = exclusively(table.intermediate);
  const double plain = m.initializer_range;
  const double residual = plain / std::sqrt(2.0 * static_cast<double>(m.num_hidden_layers));
  build.matrix(mlp + "gate_proj/weight", m.intermediate_size, m.hidden_size, Cut::rows, f, plain);
  build.matrix(mlp + "up_proj/weight", m.intermediate_size, m.hidden_size, Cut::rows, f, plain);
  build.align();
  build.matrix(mlp + "down_proj/weight", m.hidden_size, m.intermediate_size, Cut::columns, f, residual);
}

std::vector<index_t> layers_of(const std::vector<Range>& chunks, index_t all) {
  std::vector<index_t> layers;
  const auto add = [&](const Range& chunk) {
    for (index_t l = chunk.begin; l < chunk.end; ++l) layers.push_back(l);
  };
  if (chunks.empty()) add({0, all});
  for (const Range& chunk : chunks) add(chunk);
  return layers;
}

}  // namespace

ParameterTable make_parameter_table(const deck::ModelConfig& m, int tp_size, int tp_rank,
                                    deck::TpMode mode, const std::vector<Range>& chunks) {
  ParameterTable table;
  table.heads = nn::shard_heads(m.num_attention_heads, m.num_key_value_heads, tp_size, tp_rank);
  table.intermediate = shard_range(m.intermediate_size, tp_size, tp_rank);
  table.vocabulary = shard_range(m.vocab_size, tp_size, tp_rank);

  const std::vector<index_t> layers = layers_of(chunks, m.num_hidden_layers);
  const bool is_first = layers.front() == 0, is_last = layers.back() + 1 == m.num_hidden_layers;
  const Held words = exclusively(table.vocabulary);
  const Held embedding = is_first ? words : Held{table.vocabulary, {0, 0}, false};

  // A norm of the residual stream sees a part of the tokens where the stream is split.
  const bool stream_is_split = mode == deck::TpMode::reduce_scatter && tp_size > 1;

  Builder build(m, table, tp_rank);
  build.hold(is_first || (is_last && m.tie_word_embeddings));
  build.matrix("model/embed_tokens/weight", m.vocab_size, m.hidden_size, Cut::rows, embedding, m.initializer_range);
  build.align();

  build.hold(true);
  const std::size_t first_layer_spec = table.specs.size();
  const index_t layers_begin = build.cursor();
  build.norm("model/layers/input_layernorm/weight", m.hidden_size, stream_is_split);
  build.align();
  build.norm("model/layers/post_attention_layernorm/weight", m.hidden_size, stream_is_split);
  build.align();
  add_attention(build, m, table, key_heads_are_shared(m, tp_size));
  add_mlp(build, m, table);
  build.stack_layers(first_layer_spec, layers_begin, layers);

  table.head_begin = build.cursor();
  build.hold(is_last);
  build.norm("model/norm/weight", m.hidden_size, stream_is_split);
  build.align();
  if (!m.tie_word_embeddings) {
    build.matrix("lm_head/weight", m.vocab_size, m.hidden_size, Cut::rows, words, m.initializer_range);
    build.align();
  }
  table.size = build.cursor();
  return table;
}

bool ParameterTable::contains(const std::string& name) const {
  return std::ranges::any_of(specs, [&](const ParameterSpec& s) { return s.name == name; });
}

const nn::ParameterSpec& ParameterTable::operator[](const std::string& name) const {
  const auto found = std::ranges::find(specs, name, &ParameterSpec::name);
  NANOTRON_REQUIRE(found != specs.end(), "no parameter is called {}", name);
  return *found;
}

index_t ParameterTable::logical_parameters() const {
  index_t sum = 0;
  for (const ParameterSpec& spec : specs) sum += spec.logical_size();
  return sum;
}

std::vector<FlatRange> owned_ranges(const ParameterTable& table) {
  std::vector<FlatRange> ranges;
  for (const ParameterSpec& spec : table.specs) {
    if (spec.owned.size() == 0) continue;
    const bool whole = spec.owned == spec.local;
    // A part of the rows is contiguous; columns are never held twice.
    const index_t skip = whole ? 0 : (spec.owned.begin - spec.local.begin) * spec.columns;
    const index_t count = whole ? spec.local_size() : spec.owned.size() * spec.columns;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer) + skip;
      ranges.push_back({begin, begin + count});
    }
  }
  std::ranges::sort(ranges, {}, &FlatRange::begin);
  std::vector<FlatRange> merged;
  for (const FlatRange& r : ranges) {
    if (!merged.empty() && merged.back().end == r.begin) {
      merged.back().end = r.end;
    } else {
      merged.push_back(r);
    }
  }
  return merged;
}

std::vector<DecayRange> decay_ranges(const ParameterTable& table) {
  struct Start {
    index_t begin;
    bool decays;
  };
  std::vector<Start> starts;
  for (const ParameterSpec& spec : table.specs) {
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      starts.push_back({spec.offset_of(layer), spec.decays});
    }
  }
  std::ranges::sort(starts, {}, &Start::begin);
  std::vector<DecayRange> ranges;
  for (const Start& s : starts) {
    if (!ranges.empty() && ranges.back().decays == s.decays) continue;
    if (!ranges.empty()) ranges.back().range.end = s.begin;
    ranges.push_back({{s.begin, table.size}, s.decays});
  }
  return ranges;
}

template <class M>
void initialise(const ParameterTable& table, std::int64_t seed, const Vector<M>& master) {
  for (const ParameterSpec& spec : table.specs) {
    const std::uint32_t stream = stream_id(spec.name);
    const index_t rows = spec.local_rows();
    const index_t columns = spec.local_columns();
    const index_t first_row = spec.cut == Cut::columns ? 0 : spec.local.begin;
    const index_t first_column = spec.cut == Cut::columns ? spec.local.begin : 0;
    const Initial initial = spec.initial;
    const double deviation = spec.deviation;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      M* const out = master.data() + spec.offset_of(layer);
      const index_t logical_begin = spec.layer_numbers[static_cast<std::size_t>(layer)] * spec.rows * spec.columns;
      const index_t logical_columns = spec.columns;
      Kokkos::parallel_for(
          "initialise", Kokkos::RangePolicy<ExecutionSpace>(0, rows * columns),
          KOKKOS_LAMBDA(const index_t i) {
            if (initial != Initial::normal) {
              out[i] = initial == Initial::ones ? M(1) : M(0);
              return;
            }
            const index_t row = first_row + i / columns;
            const index_t column = first_column + i % columns;
            const auto index = static_cast<std::uint64_t>(logical_begin + row * logical_columns + column);
            out[i] = static_cast<M>(static_cast<float>(
                deviation * normal(static_cast<std::uint64_t>(seed), stream, index, 0)));
          });
    }
  }
  Kokkos::fence();
}

template void initialise<double>(const ParameterTable&, std::int64_t, const Vector<double>&);
template void initialise<float>(const ParameterTable&, std::int64_t, const Vector<float>&);

}  // namespace nanotron::model
