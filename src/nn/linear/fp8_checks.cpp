#include "nanotron/nn/checks.hpp"

#include "nanotron/deck/config.hpp"

namespace nanotron::nn {

void check_fp8(const deck::Config& c, deck::Findings& f) {
  if (c.precision.compute != ScalarType::fp8 || c.precision.reproducible != deck::Reproducible::layout) return;
  if (!f.is_valid({"precision.compute", "precision.reproducible"})) return;
  f.error({"precision.compute", "precision.reproducible"},
          "FP8 scales follow from the values on a rank, so that their bits depend on the grid",
          "compute = 'bf16', 'fp32' or 'fp64'", "or reproducible = 'run'");
}

}  // namespace nanotron::nn
