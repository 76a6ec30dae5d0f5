#include "nanotron/trainer/faults/replica_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "faulty_hosts.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/reduction/content_hash.hpp"

namespace nanotron::trainer {
namespace {

// Appends the values in the range.
template <class U>
void add_hash(std::uint64_t& hash, Device& device, const nn::BufferLayout& layout, const Range& range,
              const Vector<U>& values) {
  for (const nn::BufferLayout::Part& part : layout.within(range)) {
    hash = 3 * hash + kernels::content_hash<U>(device, Vector<const U>(values.data() + part.at, part.range.size()));
  }
}

}  // namespace

template <class T>
ReplicaComparison<T>::ReplicaComparison(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                                        const TrainingState<T>& state)
    : config_(config),
      grid_(grid),
      device_(device),
      state_(state),
      tensor_parallel_(grid.tp(), "tensor-parallel", grid.world(), config.run.check_replicas_every) {
  const auto check = [&](comm::Group& group) {
    return parallel::ReplicaCheck(group, "data-parallel", grid.world(), config.run.check_replicas_every);
  };
  for (const model::Section& section : state.model.table().sections) {
    comm::DataGroups& groups = grid.data_groups(section.replicas);
    sections_.push_back({section, check(groups.data), check(groups.replicate), groups.shard.size()});
  }
}

// Ranks of a replicate group hold the same shard of master weights and moments; of weights without moments, which never
// change, the same of all that they store. All data-parallel ranks hold the same compute weights and 1-D parameters.
template <class T>
void ReplicaComparison<T>::compare(SectionCheck& check, std::int64_t step) {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  std::uint64_t hash = 0;
  const auto add = [&]<class U>(const nn::BufferLayout& layout, const Range& range, const Vector<U>& values) {
    add_hash<U>(hash, device_, layout, range, values);
  };
  if (check.replicate.has_replicas()) {
    const bool is_updated = !p.layouts.moments.within(check.section.flat).empty();
    p.for_each_stored([&]<class U>(const nn::BufferLayout& layout, const Vector<U>& values) {
      add(is_updated ? layout.common(p.layouts.moments) : layout, check.section.flat, values);
    });
    for (const optim::Moment<M>& moment : state_.moments()) {
      for (const Range& range : moment.ranges_of(check.section))
        std::visit([&](const auto& values) { add(moment.layout, range, values); }, moment.values);
    }
    check.replicate.require_equal(hash, step);
  }
  if (check.shards == 1) return;
  hash = 0;
  add(p.layouts.compute, check.section.flat, p.compute);
  add(p.layouts.master, check.section.params_1d, p.master);  // not sharded
  for (const optim::Moment<M>& moment : state_.moments()) {
    if (!moment.own_tensors.empty()) continue;  // of 2-D parameters
    std::visit([&](const auto& values) { add(moment.layout, check.section.params_1d, values); }, moment.values);
  }
  check.data.require_equal(hash, step);
}

// Parameters that tensor-parallel ranks replicate: norms, and routers where the shard group does not shard them.
template <class T>
void ReplicaComparison<T>::compare_tensor_parallel(std::int64_t step) {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  std::uint64_t hash = 0;
  for (const nn::ParameterSpec& spec : state_.model.table().specs) {
    if (spec.partition != nn::Partition::replicated || (state_.sharding.size() > 1 && !spec.is_1d)) continue;
    for (index_t l = 0; l < spec.local_layers(); ++l) {
      const Range local{spec.offset_of(l), spec.offset_of(l) + spec.local_size()};
      p.for_each_stored([&]<class U>(const nn::BufferLayout& layout, const Vector<U>& values) {
        add_hash<U>(hash, device_, layout, local, values);
      });
    }
  }
  tensor_parallel_.require_equal(hash, step);
}

template <class T>
void ReplicaComparison<T>::require_equal(std::int64_t step) {
  const Region region(device_.timers(), "compare replicas");
  try {
    compare_all(step);
  } catch (const Error& error) {  // the same on all ranks
    const bool is_outvoted = is_outvoted_alone() || std::ranges::any_of(sections_, [](const auto& check) {
                               return check.data.is_outvoted() || check.replicate.is_outvoted();
                             });
    const std::vector<int> faulty = ranks_where(is_outvoted, grid_.world());
    if (faulty.empty()) throw;
    const std::string change = exclude_hosts(
        {.ranks = faulty, .step = step, .what = "other weights or moments than most replicas"}, config_, grid_);
    throw Error(error.exit_code(), fmt::format("{}; {}", error.what(), change));
  }
}

// A rank that its tensor-parallel group outvotes, unless all its replicas are: then they got it from one of them with
// the gradients, and which one is not known.
template <class T>
bool ReplicaComparison<T>::is_outvoted_alone() {
  comm::Group& replicas = grid_.data_parallel();
  const int mine = tensor_parallel_.is_outvoted() ? 1 : 0;
  int all = mine;
  NANOTRON_CHECK_MPI(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, replicas.mpi()));
  return mine != 0 && (replicas.size() == 1 || all == 0);
}

template <class T>
void ReplicaComparison<T>::compare_all(std::int64_t step) {
  if (tensor_parallel_.has_replicas()) compare_tensor_parallel(step);
  for (SectionCheck& check : sections_) {
    if (check.data.has_replicas()) compare(check, step);
  }
}

NANOTRON_INSTANTIATE_CLASS(ReplicaComparison)

}  // namespace nanotron::trainer
