#pragma once

// Training on pairs of answers (kernels/preference/pair_loss.hpp): the losses of whole answers, which give each token
// its weight in the gradient. A sequence is one pair (data/order/pairs.hpp).

#include <vector>

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/kernels/preference/pair_loss.hpp"
#include "nanotron/nn/vocab/vocab_loss.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::nn {

/// Refuses what training on pairs cannot do, and keys of one without the other: preference%beta, data%sequences.
void check_preference(const deck::Config& config, deck::Findings& findings);

/// The pairs of one micro-batch. Weights and sums are of the last micro-batch that was asked for.
class PairLoss final : public TokenWeights {
 public:
  struct Buffers {
    Vector<double> parts;                       // (sequences, shards of a sequence, 2)
    Vector<double> sums;                        // (sequences, 2); parts, if there is one shard
    Vector<double> weights;                     // (rows)
    Vector<double> reference;                   // (sequences, 2): log-probabilities of the reference model
    Vector<double> chosen, rejected, accuracy;  // (sequences), see kernels::pair_rewards
  };
  PairLoss(double beta, const kernels::PairRows& rows, const SumOrder& tokens, comm::Group& cp, const Buffers& buffers)
      : beta_(beta), rows_(rows), tokens_(tokens), cp_(&cp), buffers_(buffers) {}

  Vector<const double> of(Device& device, Vector<const double> losses) const override;
  void replace(Device& device, Vector<double> losses) const override;
  /// The sums of losses of whole answers, (sequences, 2). Collective as of() is.
  Vector<const double> sums(Device& device, Vector<const double> losses) const;

 private:
  kernels::PairLogs logs() const { return {buffers_.sums, buffers_.reference, beta_}; }

  double beta_;
  kernels::PairRows rows_;
  SumOrder tokens_;
  comm::Group* cp_;
  Buffers buffers_;
};

struct PairSetup {
  double beta = 0.0;                         // 0: no pairs, and no memory
  index_t micro_batches = 0, sequences = 0;  // sequences: of a micro-batch
  kernels::PairRows rows{};                  // of all micro-batches
  std::vector<Vector<double>> rewards{};  // (micro-batches, sequences) each: as kernels::pair_rewards overwrites them
  comm::Group* cp = nullptr;
  SumOrder tokens{};  // of the sums over an answer, see kernels::pair_sums
};

/// The pairs of a step, by micro-batch.
class PairLosses {
 public:
  /// Takes its memory from the arena (planning or real).
  PairLosses(const PairSetup& setup, Arena& arena);

  bool exist() const { return !of_.empty(); }
  const PairLoss* of(index_t micro_batch) const {
    return exist() ? &of_[static_cast<std::size_t>(micro_batch)] : nullptr;
  }
  /// (micro-batches, sequences, 2) to be set before the first use of a global batch.
  Vector<double> reference() const { return reference_; }

 private:
  Vector<double> reference_;
  std::vector<PairLoss> of_;
};

/// Of the sums over the context-parallel group, for one micro-batch; nothing where training minimises no function of
/// sequences. shards: those of PairSetup::tokens.
comm::StepTraffic pair_traffic(const Objective& objective, index_t sequences, int shards, int cp);

}  // namespace nanotron::nn
