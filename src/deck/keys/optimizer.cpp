// The keys of &optimizer.
#include "nanotron/deck/keys/optimizer.hpp"

#include "rows.hpp"

#define GROUP_NAME "optimizer"
#define GROUP(c) (c).optimizer

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> optimizer_rows() {
  return {
    KEY(name).one_of({"adamw", "muon", "ademamix", "lion", "schedule_free_adamw", "sophia", "soap"}).says(
        "Optimizer: AdamW, AdEMAMix, Lion, schedule-free AdamW or Sophia-G for all parameters; or Muon or SOAP for the "
        "2-D parameters of the layers and AdamW for embedding, head, norms and biases."),
    KEY(learning_rate).at_least(0).says("Peak learning rate of the schedule."),
    KEY(beta1).at_least(0).below(1).says("Decay of the first moment; of 'lion', weight of the momentum in the update."),
    KEY(beta2).at_least(0).below(1).says(
        "Decay of the second moment; of 'lion', of the momentum; of 'sophia', of the "
        "curvature."),
    KEY(beta3).at_least(0).below(1).says("Decay of the slow first moment of 'ademamix'."),
    KEY(beta3_warmup_steps).at_least(0).in("updates").says(
        "With 'ademamix', updates over which beta3 grows from beta1 to its value, its half-life linearly; 0: none."),
    KEY(alpha).at_least(0).says("Weight of the slow first moment of 'ademamix' in an update."),
    KEY(alpha_warmup_steps).at_least(0).in("updates").says(
        "With 'ademamix', updates over which alpha grows linearly from 0 to its value; 0: none."),
    KEY(rho).above(0).says(
        "With 'sophia', the multiple of the curvature that divides the first moment; where the ratio is above 1, "
        "updates are clipped."),
    KEY(hessian_every).at_least(1).in("updates").says(
        "With 'sophia', updates from one estimate of the curvature to the next; each is a second forward and backward "
        "of the batch."),
    KEY(precondition_every).at_least(1).in("updates").says(
        "With 'soap', updates from one step of the power iteration for the eigenvectors to the next."),
    KEY(max_precondition_size).at_least(1).at_most(32000).says(
        "With 'soap', the largest side of a 2-D parameter that has eigenvectors; a larger side has none, and with two "
        "of these SOAP is Adam, whose first update changes no weight."),
    KEY(eps).above(0).says("Added to the square root of the second moment."),
    KEY(momentum).at_least(0).below(1).says("Decay of the momentum of 'muon'."),
    KEY(newton_schulz_steps).at_least(1).at_most(100).in("steps").says(
        "Newton-Schulz iterations with which 'muon' orthogonalises the momentum of a 2-D parameter."),
    KEY(qk_clip).at_least(0).says(
        "QK-clip: after an update, query and key projections of heads whose largest attention score of the step was "
        "above this value (Kimi K2: 100) are scaled down to it; 0: none. With every optimizer but "
        "'schedule_free_adamw'. A GPU computes the scores once more for it, by GEMMs that write them to memory: one "
        "seventh more FLOPs in attention; a CPU has them."),
    KEY(weight_decay).at_least(0).says("Decoupled weight decay; not applied to 1-D parameters."),
    KEY(no_weight_decay).says(
        "Names of parameters without weight decay besides those of one dimension, with * for any characters, such as "
        "'*embed_tokens*'; '!' before a pattern turns weight decay on, '!*' for all parameters. The last pattern that "
        "fits a name counts."),
    KEY(z_loss_coefficient).at_least(0).says(
        "Coefficient of the z loss of the output logits: training minimises the mean over target tokens of "
        "cross-entropy + z_loss_coefficient lse^2, lse = log(sum(exp(logits))) (PaLM); 0: none."),
    KEY(ema_decay).at_least(0).below(1).says(
        "Decay of the exponential moving average of the weights, which each update moves by 1 - ema_decay of the "
        "difference; checkpoints store it. 0: none."),
    KEY(mtp_loss_coefficient).at_least(0).says(
        "Coefficient of the mean loss of the layers that predict later tokens (model%num_nextn_predict_layers), added "
        "to the loss of the next token in what training minimises."),
    ENUM(state_memory, {"device", StateMemory::device}, {"host", StateMemory::host}).says(
        "Where the states of the optimizer and the average of the weights are: in the memory of the GPU, or in "
        "page-locked memory of the host, from which an update copies them to the GPU and back over PCIe or NVLink-C2C, "
        "beside the next forward (--plan tells the time). The numbers are the same. On a CPU both are host memory."),
    KEY(clip_grad_norm).at_least(0).says("Largest global L2 norm of the gradient; 0: no clipping."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
