// The keys of &preference.
#include "nanotron/deck/keys/preference.hpp"

#include "rows.hpp"

#define GROUP_NAME "preference"
#define GROUP(c) (c).preference

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> preference_rows() {
  return {
    KEY(beta).at_least(0).at_most(1e6).of_training().says(
        "Direct preference optimization (DPO): trains on pairs of a chosen and a rejected answer, with "
        "data%sequences = 'pairs'; the larger beta, the nearer to the reference model the trained one stays. 0: "
        "training on tokens."),
    KEY(reference).of_files().of_training().says(
        "File of the log-probabilities of all answers by the reference model, the weights that the run begins with. If "
        "there is none, the first start computes them and writes it. Empty: reference.txt in run%output_dir."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
