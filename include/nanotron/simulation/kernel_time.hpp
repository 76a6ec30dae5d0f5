#pragma once

#include <string>

#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::simulation {

// How an implementation differs from this program, so that published runs of others can be predicted from this
// program's actions: a namelist file of one group, &software. The defaults are this program.

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

// Seconds of a kernel of this program (trainer/plan/kernel_time.hpp), or of other software that does the same step.

/// What a step of other sizes needs to know of the deck, where the software is not this program.
struct LayerSizes {
  index_t hidden = 0, intermediate = 0;  // of this rank
};

/// Seconds of one call of the row, launches included.
double kernel_seconds(const WorkRow& row, const deck::Machine& machine, const Software& software,
                      const LayerSizes& sizes);

}  // namespace nanotron::simulation
