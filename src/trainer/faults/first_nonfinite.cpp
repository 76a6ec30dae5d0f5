#include "nanotron/trainer/faults/first_nonfinite.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "faulty_hosts.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::trainer {
namespace {

using kernels::ExactSum;

// Places in the order: parameters, losses, gradients.
constexpr std::int64_t losses_at = std::int64_t{1} << 60, gradients_at = losses_at << 1;
constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();

struct Found {
  std::int64_t place = nowhere;
  std::string name = "none";
};

template <class M>
struct TensorValues {
  std::int64_t place;
  std::string name;
  Vector<const M> values;
};

// The tensors of this rank, as far as it stores and owns them.
template <class T>
std::vector<TensorValues<master_t<T>>> tensors_of(const TrainingState<T>& state) {
  using M = master_t<T>;
  const model::ParameterTable& table = state.model.table();
  const nn::ParameterBuffers<T>& p = state.model.parameters();
  const auto specs = static_cast<std::int64_t>(table.specs.size());
  const std::int64_t layers = deck::stored_layers(state.model.config());
  bool is_before_layers = true;
  std::vector<TensorValues<M>> tensors;
  for (std::int64_t i = 0; i < specs; ++i) {
    const nn::ParameterSpec& spec = table.specs[static_cast<std::size_t>(i)];
    is_before_layers = is_before_layers && !spec.is_stacked;
    for (index_t l = 0; l < spec.local_layers(); ++l) {
      const index_t number = spec.layer_numbers[static_cast<std::size_t>(l)], begin = spec.offset_of(l);
      const std::int64_t layer = spec.is_stacked ? number + 1 : is_before_layers ? 0 : layers + 1;
      const std::string name = spec.is_stacked ? fmt::format("{}, layer {}", spec.name, number) : spec.name;
      const Range flat{begin, begin + spec.local_size()};
      for (const nn::BufferLayout::Part& part : p.layouts.master.within(flat)) {
        tensors.push_back(
            {layer * specs + i, "parameter " + name, Vector<const M>(p.master.data() + part.at, part.range.size())});
      }
      for (const Range& owned : optim::owned_gradient_ranges(table, p.layouts, state.sharding, flat)) {
        tensors.push_back({gradients_at + (layers + 1 - layer) * specs + i, "gradient of " + name,
                           Vector<const M>(p.gradient.data() + owned.begin, owned.size())});
      }
    }
  }
  return tensors;
}

template <class T>
Found first_tensor(Device& device, const TrainingState<T>& state) {
  const std::vector<TensorValues<master_t<T>>> tensors = tensors_of(state);
  const Kokkos::View<ExactSum*, MemorySpace> sums("sums of squares", tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    kernels::sum_of_squares<master_t<T>>(device, tensors[i].values, Vector<ExactSum>(sums.data() + i, 1));
  const auto host = Kokkos::create_mirror_view(sums);
  Kokkos::deep_copy(device.exec(), host, sums);
  device.fence();
  Found first;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (host(i).top == ExactSum::not_finite && tensors[i].place < first.place)
      first = {tensors[i].place, tensors[i].name};
  }
  return first;
}

template <class T>
Found first_loss(Device& device, const TrainingState<T>& state, const SequenceShard& shard,
                 const data::BatchLoader& loader, index_t first_sample) {
  const Vector<double> losses = state.loaded_loss_rows();
  const Kokkos::View<double*, Kokkos::HostSpace> host("losses", losses.size());
  Kokkos::deep_copy(device.exec(), host, losses);
  device.fence();
  Found first;
  for (index_t row = 0; row < static_cast<index_t>(host.size()); ++row) {
    if (std::isfinite(host(static_cast<std::size_t>(row)))) continue;
    const index_t sample = loader.sample_of(first_sample, row / shard.length());
    const index_t position = shard.position_of(row % shard.length());
    const std::int64_t place = losses_at + ((sample - first_sample) << 31) + position;
    if (place < first.place) first = {place, fmt::format("loss of global sample {}, position {}", sample, position)};
  }
  return first;
}

}  // namespace

template <class T>
std::string first_nonfinite(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state,
                            const SequenceShard& shard, const data::BatchLoader& loader, index_t first_sample) {
  const Found loss = first_loss(device, state, shard, loader, first_sample), tensor = first_tensor(device, state);
  const Found& mine = loss.place < tensor.place ? loss : tensor;
  comm::Group& world = grid.world();
  const std::int64_t first = comm::min(world, mine.place);
  if (first == nowhere) return mine.name;
  const std::vector<int> ranks = ranks_where(mine.place == first, world);
  return fmt::format("{}, rank {}", text_of_rank(mine.name, ranks.front(), world), ranks.front());
}

#define NANOTRON_INSTANTIATE(T)                                                                                       \
  template std::string first_nonfinite<T>(Device&, comm::ProcessGrid&, const TrainingState<T>&, const SequenceShard&, \
                                          const data::BatchLoader&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
