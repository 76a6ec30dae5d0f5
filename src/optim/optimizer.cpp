#include "nanotron/optim/optimizer.hpp"

#include <algorithm>
#include <memory>

#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"
#include "optim/qk_clip/qk_clip.hpp"

namespace nanotron::optim {
namespace {

// The end of the first part of `range` that is contiguous in the buffer.
index_t contiguous_end(const nn::BufferLayout& layout, const Range& range) {
  return layout.within(range).front().range.end;
}

bool has_float_master(const deck::Config& c) {
  return with_scalar_type(c.precision.compute,
                          []<class T>(std::type_identity<T>) { return std::is_same_v<master_t<T>, float>; });
}

OptimizerKind kind_named(const std::string& name) {
  const std::vector<OptimizerKind> kinds = optimizer_kinds();
  const auto found = std::ranges::find(kinds, name, &OptimizerKind::name);
  NANOTRON_REQUIRE(found != kinds.end(), "no optimizer '{}'", name);
  return *found;
}

void check_keys_of_others(const deck::Config& c, deck::Findings& f) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    if (kind.name == c.optimizer.name) continue;
    const std::string name = "name = '" + kind.name + "'";
    for (const char* key : kind.keys) {
      deck::refuse_unused(c, {key}, name, "its default, or optimizer%" + name, f);
    }
  }
}

// precision%moments = 'bf16' is for master weights in fp32.
void check_moments(const deck::Config& c, const OptimizerKind& kind, deck::Findings& f) {
  if (c.precision.moments == deck::MomentType::master || !f.is_valid({"precision.moments"})) return;
  if (!kind.has_bf16_states) {
    f.error(
        {"precision.moments", "optimizer.name"},
        "moments = 'bf16', and optimizer%name is '" + kind.name + "', whose states have the type of the master weights",
        "moments = 'master' with '" + kind.name + "'");
  }
  if (!has_float_master(c)) {
    f.error({"precision.moments", "precision.compute"}, "moments = 'bf16' with compute = 'fp64'",
            deck::phrases::values_with("precision", "compute", has_float_master) + ", or moments = 'master'");
  }
}

void check_state_memory(const deck::Config& c, const OptimizerKind& kind, deck::Findings& f) {
  const std::string key = "optimizer.state_memory";
  if (c.optimizer.state_memory == deck::StateMemory::device || kind.has_host_states || !f.is_valid({key})) return;
  f.error({key, "optimizer.name"}, "states of '" + kind.name + "' are operands of GEMMs, which need them on the device",
          "state_memory = 'device' with '" + kind.name + "'");
}

}  // namespace

void check_optimizer(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"optimizer.name"})) return;
  const OptimizerKind kind = kind_named(c.optimizer.name);
  if (kind.check != nullptr) kind.check(c, f);
  check_moments(c, kind, f);
  check_state_memory(c, kind, f);
  check_keys_of_others(c, f);
  check_weight_decay(c, f);
  check_qk_clip(c, kind, f);
}

std::vector<UpdatePart> update_parts(const Range& range, const nn::ParameterLayouts& layouts) {
  std::vector<UpdatePart> parts;
  for (const nn::BufferLayout::Part& held : layouts.moments.within(range)) {
    for (index_t begin = held.range.begin, end = 0; begin < held.range.end; begin = end) {
      const Range rest{begin, held.range.end};
      end = std::min(contiguous_end(layouts.master, rest), contiguous_end(layouts.reduced, rest));
      parts.push_back({.range = {begin, end},
                       .parameters = layouts.master.at(begin),
                       .gradient = layouts.reduced.at(begin),
                       .moments = held.at + begin - held.range.begin});
    }
  }
  return parts;
}

std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterLayouts& layouts) {
  std::vector<UpdatePart> all;
  for (const auto& [range, decays, fan_in_ratio] : model::update_ranges(table)) {
    for (UpdatePart& part : update_parts(range, layouts)) {
      part.decays = decays;
      part.fan_in_ratio = fan_in_ratio;
      all.push_back(part);
    }
  }
  return all;
}

// States in bf16 are rounded stochastically: nearest rounding would stop a mean that changes by less than half a unit
// of bf16 per update, such as AdamW's v where beta2 > 0.996; the expectation of a stochastically rounded mean is that
// of the mean in fp32. The random bits depend on run%seed, tensor, element and update only: the same on every grid, and
// after a resume.
std::vector<NoisyPart> noisy_parts(const deck::Config& config, const OptimizerSetup& setup) {
  std::vector<NoisyPart> parts;
  if (config.precision.moments == deck::MomentType::master) {
    for (const UpdatePart& part : update_parts(setup.table, setup.layouts)) parts.push_back({part});
    return parts;
  }
  for (const nn::ParameterSpec& spec : setup.table.specs) {
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer);
      for (UpdatePart& part : update_parts(Range{begin, begin + spec.local_size()}, setup.layouts)) {
        part.decays = spec.decays;
        part.fan_in_ratio = spec.fan_in_ratio;
        parts.push_back({part,
                         {.seed = static_cast<std::uint64_t>(config.run.seed),
                          .stream = stream_id("moments of " + spec.name),
                          .index = spec.logical_index(layer),
                          .begin = part.range.begin - begin}});
      }
    }
  }
  return parts;
}

template <class M>
std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config& config, const OptimizerSetup& given, Arena& arena) {
  const model::ParameterTable table = with_weight_decay(given.table, config.optimizer.no_weight_decay);
  const OptimizerSetup setup{.table = table,
                             .layouts = given.layouts,
                             .sharding = given.sharding,
                             .tp = given.tp,
                             .host_bucket = given.host_bucket};
  return kind_named(config.optimizer.name).maker<M>()(config, setup, arena);
}

template <class M>
std::unique_ptr<WeightRule<M>> make_weight_rule(const deck::Config& config, const OptimizerSetup& setup,
                                                const nn::ScoreMaxima& maxima, Arena& arena) {
  return config.optimizer.qk_clip > 0.0 ? make_qk_clip<M>(config, setup, maxima, arena) : nullptr;
}

#define NANOTRON_INSTANTIATE(M)                                                                              \
  template std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config&, const OptimizerSetup&, Arena&); \
  template std::unique_ptr<WeightRule<M>> make_weight_rule(const deck::Config&, const OptimizerSetup&,       \
                                                           const nn::ScoreMaxima&, Arena&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::optim
