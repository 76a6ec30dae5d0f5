// The keys of &lora.
#include "nanotron/deck/keys/lora.hpp"

#include "rows.hpp"

#define GROUP_NAME "lora"
#define GROUP(c) (c).lora

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> lora_rows() {
  return {
    KEY(rank).at_least(0).at_most(1e5).of_training().says(
        "Rank r of the adapters beside linear layers (LoRA); all other weights are frozen: they have no gradients and "
        "no moments. 0: no adapters, all weights are trained."),
    KEY(alpha).above(0).of_training().says(
        "The output of an adapter counts alpha / rank times (PEFT's lora_alpha)."),
    KEY(targets).of_training().says(
        "Names of the linear layers with adapters, with * for any characters, such as 'q_proj v_proj', 'mlp.*_proj' or "
        "'*_proj'; a name that does not begin with 'model.layers.' may begin after any dot."),
    KEY(base).of_files().of_training().says(
        "Checkpoint with the frozen weights: a step folder, or a folder of them, whose newest is taken. 'initial': the "
        "initial values of run%seed, for tests of speed."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
