
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {
namespace {

using namespace deck::phrases;

void check_shard_group(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.zero_size == 0 || !f.is_valid({"parallel.zero_size", "parallel.zero_stage", "parallel.dp", "parallel.cp"}))
    return;
  if (p.zero_stage == 0) {
    f.error({"parallel.zero_size"}, "zero_size = " + text(p.zero_size) + ", but zero_stage = 0 shards nothing",
            "zero_size = 0, or zero_stage from 1 to 3");
    return;
  }
  const std::int64_t replicas = p.dp * p.cp;
  if (replicas == 0 || replicas % p.zero_size == 0) return;
  f.error({"parallel.zero_size"},
          "zero_size = " + text(p.zero_size) + " does not divide the data-parallel group of " + text(replicas) +
              " ranks (dp x cp)",
          nearest_divisors(p.zero_size, replicas));
}

// zero_size is a multiple or a divisor of ep: a shard group holds whole sets of experts, or a set whole shard groups.
void check_experts(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (c.model.moe.num_experts == 0 || !f.is_valid({"moe.num_experts", "parallel.ep", "parallel.zero_size"})) return;
  if (p.zero_stage == 0 || p.zero_size == 0 || p.zero_size % p.ep == 0 || p.ep % p.zero_size == 0) return;
  f.error({"parallel.zero_size", "parallel.ep"},
          "a shard group of zero_size = " + text(p.zero_size) +
              " ranks does not hold whole sets of experts over ep = " + text(p.ep) + " ranks",
          "zero_size a multiple or a divisor of ep");
}

}  // namespace

void check_zero(const deck::Config& c, deck::Findings& f) {
  check_shard_group(c, f);
  check_experts(c, f);
}

}  // namespace nanotron::parallel
