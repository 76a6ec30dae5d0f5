#include <fmt/format.h>

#include <algorithm>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/model/adapters/adapters.hpp"
#include "nanotron/model/parameters/name_patterns.hpp"
#include "nanotron/tensor/layout_checks.hpp"

namespace nanotron::model {
namespace {

void check_targets(const deck::Config& c, deck::Findings& f) {
  std::string names;
  for (const nn::ParameterSpec& spec : named_parameters(c).specs) {
    if (is_adapted(c.lora, spec)) return;
    if (!is_adapted({.targets = "*"}, spec)) continue;
    const std::string module = spec.name.substr(0, spec.name.rfind('/'));
    names += (names.empty() ? "" : ", ") + module.substr(module.rfind('/') + 1);
  }
  f.error({"lora.targets"}, fmt::format("targets = '{}' fits no linear layer of this model", c.lora.targets),
          "some of " + names + ", with * for any characters");
}

void check_model(const deck::Config& c, deck::Findings& f) {
  if (c.model.moe.num_experts > 0 && f.is_valid({"moe.num_experts"})) {
    f.error({"lora.rank", "moe.num_experts"}, "there are no adapters of a mixture of experts",
            "rank = 0 with num_experts > 0, or a dense model");
  }
  if (deck::attention_sizes(c.model).is_compressed)
    f.error({"lora.rank"}, "there are no adapters of attention from compressed tokens (MLA)", "rank = 0");
  if (deck::appended_layers(c.model) > 0)
    f.error({"lora.rank"}, "layers that predict later tokens have no frozen weights", "rank = 0");
}

bool updates_elements(const deck::Config& c) { return c.optimizer.name != "muon" && c.optimizer.name != "soap"; }

bool multiplies_as_stored(const deck::Config& c) {
  const ScalarType compute = c.precision.compute;
  return compute == ScalarType::fp64 || compute == ScalarType::fp32 || compute == ScalarType::bf16;
}

// What sums or updates all parameters, or multiplies weights in another way.
void check_training(const deck::Config& c, deck::Findings& f) {
  if (c.parallel.mlp_tile > 0 && c.precision.context_shards > 1) {
    refuse_layout(c, f, "parallel.mlp_tile", "adapters of tiles, whose shards of a sequence it adds at once",
                  "mlp_tile = 0, or context_shards = 1");
  }
  if (!updates_elements(c) && f.is_valid({"optimizer.name"})) {
    f.error({"optimizer.name", "lora.rank"},
            "this optimizer works on whole weights of layers, and adapters are factors", "name = 'adamw'",
            "or rank = 0");
  }
  if (!multiplies_as_stored(c) && f.is_valid({"precision.compute"})) {
    f.error({"precision.compute", "lora.rank"},
            fmt::format("there are no GEMMs of adapters with compute = '{}'", name_of(c.precision.compute)),
            deck::phrases::values_with("precision", "compute", multiplies_as_stored), "or rank = 0");
  }
  if (c.lora.base.empty()) {
    f.error({"lora.base"}, "rank > 0, but base names no checkpoint with the frozen weights",
            "a step folder, as nanotron-convert from-hf writes it",
            "for a test of speed: base = 'initial', the initial values of run%seed");
  }
}

}  // namespace

void check_lora(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"lora.rank", "lora.targets", "lora.base"})) return;
  if (c.lora.rank == 0) {
    deck::refuse_unused(c, {"lora.alpha", "lora.targets", "lora.base"}, "adapters", "lora%rank > 0", f);
    return;
  }
  check_model(c, f);
  check_training(c, f);
  if (f.errors() == 0) check_targets(c, f);
}

}  // namespace nanotron::model
