#include "nanotron/trainer/checkpoint/persistent_tensors.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"

namespace nanotron::trainer {

template <class M>
PersistentTensors<M>::PersistentTensors(const std::vector<parallel::PersistentState<M>>& of_sections,
                                        comm::ProcessGrid& grid) {
  if (of_sections.empty()) return;
  comm::Group& world = grid.world();
  const parallel::PersistentState<M>& first = of_sections.front();
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    Dataset dataset{.name = first.values[i].name, .parts = {}};
    std::int64_t here = 0;
    for (const parallel::PersistentState<M>& section : of_sections) {
      const Vector<M>& values = section.values[i].values;
      dataset.parts.push_back({here, values});
      here += static_cast<index_t>(values.extent(0));
    }
    std::int64_t before = 0;  // on lower ranks; rank 0 receives nothing
    NANOTRON_CHECK_MPI(MPI_Exscan(&here, &before, 1, MPI_INT64_T, MPI_SUM, world.mpi()));
    for (Part& part : dataset.parts) part.begin += before;
    dataset.size = comm::sum(world, here);
    datasets_.push_back(std::move(dataset));
  }
  const std::uint64_t digest = comm::sum(world, first.digest * (2 * static_cast<std::uint64_t>(world.rank()) + 1));
  const comm::GridShape& g = grid.shape();
  if (datasets_.front().size == 0) return;
  layout_ = fmt::format("{}, dp {} x pp {} x cp {} x tp {}, ep {}{}, in the order {}, {:016x}", first.layout, g.dp,
                        g.pp, g.cp, g.tp, g.ep, g.tp_in_ep() > 1 ? " with tp" : "", g.order, digest);
}

template <class M>
std::vector<io::StateTensor> PersistentTensors<M>::tensors() {
  std::vector<io::StateTensor> tensors;
  if (layout_.empty()) return tensors;
  for (Dataset& dataset : datasets_) {
    io::StateTensor& tensor = tensors.emplace_back();
    tensor.name = dataset.name;
    tensor.global_shape = {dataset.size};
    for (Part& part : dataset.parts) {
      const auto size = static_cast<index_t>(part.values.extent(0));
      if (size > 0)
        tensor.parts.push_back({.offset = {part.begin}, .extent = {size}, .data = part.values.data(), .stride = {1}});
    }
  }
  return tensors;
}

NANOTRON_INSTANTIATE_MASTER_CLASS(PersistentTensors)

}  // namespace nanotron::trainer
