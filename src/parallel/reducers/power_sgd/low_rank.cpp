#include "nanotron/parallel/reducers/power_sgd/low_rank.hpp"

#include <algorithm>

#include "nanotron/base/random.hpp"

namespace nanotron::parallel {
namespace {

// Appends a value to a hash.
std::uint64_t chained(std::uint64_t hash, index_t value) {
  const PhiloxCounter bits = random_bits(hash, stream_id("low rank plan"), static_cast<std::uint64_t>(value));
  return (static_cast<std::uint64_t>(bits.word[0]) << 32) | bits.word[1];
}

// The matrices of a range of the flat space that are compressed.
std::vector<LowRankMatrix> matrices_in(const model::ParameterTable& table, const Range& range, index_t rank) {
  std::vector<LowRankMatrix> found;
  for (const nn::ParameterSpec& spec : table.specs) {
    const index_t m = spec.local_rows(), n = spec.local_columns();
    if (spec.is_1d || spec.gradient_is_partial || rank * (m + n) >= m * n) continue;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t at = spec.offset_of(layer);
      if (range.contains(at)) found.push_back({.gradient = at, .rows = m, .columns = n});
    }
  }
  std::ranges::sort(found, {}, &LowRankMatrix::gradient);
  return found;
}

}  // namespace

std::uint64_t low_rank_digest(const model::ParameterTable& table, index_t rank) {
  std::uint64_t hash = chained(0, rank);
  for (const nn::ParameterSpec& spec : table.specs) {
    for (const index_t layer : spec.layer_numbers) {
      for (const index_t value : {static_cast<index_t>(stream_id(spec.name)), layer, spec.offset, spec.local.begin,
                                  spec.local_rows(), spec.local_columns()}) {
        hash = chained(hash, value);
      }
    }
  }
  return hash;
}

LowRankPlan low_rank_plan(const model::ParameterTable& table, const model::Section& section, index_t rank) {
  LowRankPlan plan{.rank = rank, .units = {}};
  for (index_t number = section.units.begin; number < section.units.end; ++number) {
    const model::Unit& unit = table.unit(number);
    LowRankUnit& u = plan.units.emplace_back();
    u.matrices = matrices_in(table, unit.range, rank);
    u.errors.begin = plan.errors;
    u.p.begin = plan.p;
    u.q.begin = plan.q;
    index_t at = unit.range.begin;
    const auto send_whole = [&](index_t end) {
      if (at < end) u.whole.push_back({at, end});
    };
    for (LowRankMatrix& m : u.matrices) {
      send_whole(m.gradient);
      at = m.gradient + m.rows * m.columns;
      m.error = plan.errors;
      m.p = plan.p;
      m.q = plan.q;
      plan.errors += m.rows * m.columns;
      plan.p += m.rows * rank;
      plan.q += m.columns * rank;
    }
    send_whole(unit.range.end);
    u.errors.end = plan.errors;
    u.p.end = plan.p;
    u.q.end = plan.q;
  }
  return plan;
}

index_t low_rank_elements(const LowRankPlan& plan, const model::Section& section) {
  index_t sum = section.params_1d.size();
  for (const LowRankUnit& unit : plan.units) {
    sum += unit.p.size() + unit.q.size();
    for (const Range& range : unit.whole) sum += range.size();
  }
  return sum;
}

}  // namespace nanotron::parallel
