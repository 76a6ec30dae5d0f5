#pragma once

// How an implementation differs from this program, so that published runs of others can be predicted from this
// program's actions: a namelist file of one group, &software. The defaults are this program.

#include <string>

namespace nanotron::simulation {

enum class AttentionForm {
  fused,      // scores stay on the chip
  unfused,    // scores are stored: batched GEMMs, softmax, dropout
  recomputed  // unfused, and its forward is computed again in backward (selective recomputation of Korthikanti et al.)
};

struct Software {
  std::string name = "nanotron_hpc";
  AttentionForm attention = AttentionForm::fused;
  bool dropout = false;                  // on attention's probabilities where unfused, and before both residual sums
  bool recomputes_whole_layers = false;  // recompute = 'full' repeats the last GEMM of a layer and its sum too
  bool overlaps_tensor_parallel = true;  // collectives of tp beside GEMMs
  bool adds_gradients_apart = false;     // weight gradients are added by a kernel of their own, in bf16
  bool scatters_messages = false;        // pipeline messages of replicated hidden states: 1/tp each, then gathered
};

/// Error(deck_error) with every finding and its line.
Software read_software(const std::string& name, const std::string& text);

}  // namespace nanotron::simulation
