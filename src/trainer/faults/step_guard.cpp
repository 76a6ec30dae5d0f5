#include "nanotron/trainer/faults/step_guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "faulty_hosts.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/reduction/content_hash.hpp"

namespace nanotron::trainer {
namespace {

// Ranks whose numbers differ from those of the majority; empty without a majority.
std::vector<int> minority(const kernels::UpdateScalars& decided, comm::Group& world) {
  using Numbers = std::pair<std::uint64_t, std::uint64_t>;
  const Numbers mine{std::bit_cast<std::uint64_t>(decided.loss), std::bit_cast<std::uint64_t>(decided.norm)};
  std::vector<Numbers> all(static_cast<std::size_t>(world.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world.mpi()));
  std::map<Numbers, std::size_t> times;
  for (const Numbers& n : all) ++times[n];
  const auto most = std::ranges::max_element(times, {}, [](const auto& entry) { return entry.second; });
  std::vector<int> others;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (2 * most->second > all.size() && all[r] != most->first) others.push_back(static_cast<int>(r));
  }
  return others;
}

}  // namespace

double SpikeBound::largest_norm() const {
  if (factor_ == 0.0 || norms_.size() < min_norms) return std::numeric_limits<double>::infinity();
  std::vector<double> sorted = norms_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  return factor_ * *middle;
}

void SpikeBound::accept(double norm) {
  if (factor_ == 0.0) return;
  if (norms_.size() == window) norms_.erase(norms_.begin());
  norms_.push_back(norm);
}

void SpikeBound::restore(const std::vector<double>& norms) {
  norms_.clear();
  for (const double norm : norms) accept(norm);
}

template <class T>
StepGuard<T>::StepGuard(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                        const TrainingState<T>& state)
    : config_(config), grid_(grid), device_(device), state_(state) {
  if (!computes_bad_steps_again(config)) return;
  trace_ = std::make_unique<StepTrace>(device);
  watched_ = std::make_unique<comm::WatchedGroups>(grid, *trace_);
}

template <class T>
void StepGuard<T>::begin() {
  if (trace_) trace_->begin();
}

template <class T>
void StepGuard<T>::end() {
  if (trace_) trace_->end();
}

template <class T>
ComputedStep StepGuard<T>::computed(const kernels::UpdateScalars& decided) const {
  const Vector<const double> losses = state_.loaded_loss_rows();
  const Vector<const master_t<T>> gradient = state_.model.parameters().gradient;
  return {
      .events = trace_->events(),
      .results = {kernels::content_hash<double>(device_, losses), kernels::content_hash<master_t<T>>(device_, gradient),
                  std::bit_cast<std::uint64_t>(decided.loss), std::bit_cast<std::uint64_t>(decided.norm)},
      .is_cut = trace_->is_cut()};
}

template <class T>
void StepGuard<T>::require_same(const ComputedStep& first, const ComputedStep& second,
                                const kernels::UpdateScalars& decided, std::int64_t step) const {
  const StepDifference difference = compare_steps(first, second, grid_.world().mpi());
  if (difference.exists) {
    end_for_hardware({.ranks = difference.ranks,
                      .step = step,
                      .what = "two computations of the same step differ",
                      .expected = "the same bits in messages between ranks, losses and gradients",
                      .found = difference.ranks.empty()
                                   ? fmt::format("different ones, in a step of more than {} operations between ranks",
                                                 StepTrace::capacity)
                                   : "different ones, first on the ranks named here"},
                     config_, grid_);
  }
  if (decided.agrees) return;
  const std::string found =
      fmt::format("loss {}, gradient norm {} on rank {}", decided.loss, decided.norm, grid_.world().rank());
  const std::vector<int> faulty = minority(decided, grid_.world());
  const HardwareFault fault{.ranks = faulty,
                            .step = step,
                            .what = "ranks have different losses or gradient norms, twice",
                            .expected = "those of the other ranks",
                            .found = faulty.empty() ? found : text_of_rank(found, faulty.front(), grid_.world())};
  if (!faulty.empty()) end_for_hardware(fault, config_, grid_);
  fail(ExitCode::system_error,
       {.what = fmt::format("step {}: {}", step, fault.what),
        .expected = "the same values on all ranks",
        .found = found,
        .change = "no majority shows which rank is right: test the hosts before the next start"});
}

NANOTRON_INSTANTIATE_CLASS(StepGuard)

}  // namespace nanotron::trainer
