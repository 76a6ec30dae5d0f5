// The keys of &precision.
#include "nanotron/deck/keys/precision.hpp"

#include "rows.hpp"

#define GROUP_NAME "precision"
#define GROUP(c) (c).precision

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> precision_rows() {
  return {
    ENUM(compute,
               {name_of(ScalarType::fp64), ScalarType::fp64}, {name_of(ScalarType::fp32), ScalarType::fp32},
               {name_of(ScalarType::bf16), ScalarType::bf16}, {name_of(ScalarType::fp8), ScalarType::fp8}).says(
        "Data type of weights and activations in forward and backward; with 'bf16' and 'fp8' the master weights and "
        "gradients are fp32, and the moments too unless moments says otherwise. 'fp8': as 'bf16', with FP8 operands in "
        "the GEMMs of attention's projections and of dense MLPs."),
    ENUM(fp8_scales, {"tensor", Fp8Scales::rows}, {"blocks", Fp8Scales::blocks}).says(
        "With compute = 'fp8', what one scale is for: a whole operand of a GEMM ('tensor'), or as in DeepSeek-V3 128 "
        "values of an input or a gradient along the sum and 128 x 128 of a weight ('blocks')."),
    KEY(fp8_experts).says(
        "With compute = 'fp8': the GEMMs of experts have FP8 operands too. Otherwise they are in bf16."),
    ENUM(moments, {"master", MomentType::master}, {"bf16", MomentType::bf16}).says(
        "Data type of the moments of optimizers that update each element by itself: that of the master weights, or "
        "'bf16', half the memory, rounded stochastically: up or down with the probability that makes the rounding "
        "error zero on average, from random bits that depend on run%seed, parameter and update only."),
    ENUM(reproducible,
        {"none", Reproducible::none}, {"run", Reproducible::run}, {"layout", Reproducible::layout}).says(
        "Bitwise reproducible results from the same deck: on the same grid ('run'; on GPUs by cuDNN's deterministic "
        "algorithm in attention's backward, slower and with up to 2 GiB of workspace), or on every grid that the "
        "shards below allow ('layout'; slower still; with tp > 1 sums go through host memory, on GPUs too; "
        "micro_batch_size and tp_overlap_chunks are then 1). 'none': on CPUs the same as 'run'; on GPUs gradients of "
        "attention can differ between runs in their last bits (doc/reproducibility.md)."),
    KEY(tensor_shards).at_least(0).at_most(1024).says(
        "With 'layout': number of partial sums over features and heads on every grid, at most as many as query heads; "
        "tp must be 1 or leave a power of two of them per rank; 0: the "
        "largest of 8, 4, 2, 1 that divides the key-value heads."),
    KEY(context_shards).at_least(1).at_most(1024).says(
        "With 'layout': number of partial sums over the tokens of a sequence on every grid, at most sequence_length; "
        "cp must be 1 or leave a power of two of them per rank."),
    KEY(batch_shards).at_least(0).at_most(1e9).says(
        "With 'layout': number of partial sums of the gradient over a global batch, added one after the other; must "
        "divide global_batch_size and be a multiple of dp; fewer need less communication; 0: one per sequence."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
