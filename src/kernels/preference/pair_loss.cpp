#include "nanotron/kernels/preference/pair_loss.hpp"

#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Finite for all finite x.
NANOTRON_FUNCTION double sigmoid(double x) { return 1.0 / (1.0 + exponential(-x)); }
NANOTRON_FUNCTION double softplus(double x) { return (x > 0.0 ? x : 0.0) + logarithm_1p(exponential(-std::abs(x))); }

}  // namespace

void pair_sums(Device& device, const PairRows& rows, const SumOrder& tokens, Vector<const double> losses,
               Vector<double> sums) {
  const KernelRegion kernel(device, "pair_sums", reads(losses, losses, rows.document_starts), writes(sums));
  const index_t columns = rows.shard.length(), shards = tokens.shards;
  const SumOrder order = tokens.block_count > 0 ? tokens : SumOrder({{columns, 1}}, 1, 1, 0);
  NANOTRON_REQUIRE(order.size() == columns && sums.extent(0) % (2 * static_cast<std::size_t>(shards)) == 0,
                   "pair_sums: an order of {} terms for {} tokens, {} sums", order.size(), columns, sums.extent(0));
  for_each_row_of<double>(
      device, "pair_sums", static_cast<index_t>(sums.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const index_t first = i / (2 * shards) * columns, shard = i / 2 % shards - order.first;
        const bool is_here = shard >= 0 && shard < order.shards_on_rank;
        const Range terms = is_here ? order.terms(0, static_cast<int>(shard)) : Range{};
        sums.data()[i] = row.template sum<double>(terms.size(), [=](const index_t c) {
          const index_t at = first + terms.begin + c;
          return rows.answer_of(at) == static_cast<int>(i % 2) ? losses.data()[at] : 0.0;
        });
      });
}

void pair_weights(Device& device, const PairRows& rows, const PairLogs& logs, Vector<double> weights) {
  const KernelRegion kernel(device, "pair_weights", reads(logs.losses, logs.reference, rows.document_starts),
                            writes(weights));
  for_each_element(
      device, "pair_weights", static_cast<index_t>(weights.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const double weight = logs.beta * sigmoid(-logs.margin(rows.sequence_of(i)));
        weights.data()[i] = rows.answer_of(i) == 0 ? weight : -weight;
      });
}

void pair_losses(Device& device, const PairRows& rows, const PairLogs& logs, Vector<double> losses) {
  const KernelRegion kernel(device, "pair_losses", reads(logs.losses, logs.reference), writes(losses));
  for_each_element(
      device, "pair_losses", static_cast<index_t>(losses.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        losses.data()[i] = rows.is_first(i) ? softplus(-logs.margin(rows.sequence_of(i))) : 0.0;
      });
}

void pair_rewards(Device& device, const PairRows& rows, const PairLogs& logs, Vector<double> chosen,
                  Vector<double> rejected, Vector<double> accuracy) {
  const KernelRegion kernel(device, "pair_rewards", reads(logs.losses, logs.reference),
                            writes(chosen, rejected, accuracy));
  const bool counts = rows.has_first();
  for_each_element(
      device, "pair_rewards", static_cast<index_t>(chosen.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        chosen.data()[i] = counts ? logs.reward(i, 0) : 0.0;
        rejected.data()[i] = counts ? logs.reward(i, 1) : 0.0;
        accuracy.data()[i] = counts && logs.margin(i) > 0.0 ? 1.0 : 0.0;
      });
}

}  // namespace nanotron::kernels
