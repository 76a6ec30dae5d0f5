#include "nanotron/trainer/faults/memory_check.hpp"

#include <fmt/format.h>

#include "faulty_hosts.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/reduction/content_hash.hpp"

namespace nanotron::trainer {

template <class T>
MemoryCheck<T>::MemoryCheck(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                            const TrainingState<T>& state)
    : config_(config), grid_(grid), device_(device), state_(state), every_(config.run.check_memory_every) {
  if (every_ == 0) return;
  const nn::ParameterBuffers<T>& p = state.model.parameters();
  const std::vector<nn::ParameterSpec>& specs = state.model.table().specs;
  // Else they are places that layers share (ZeRO 3, FP8), filled for each use.
  const bool is_stored = p.layouts.compute == nn::BufferLayout::whole(state.model.table().size) &&
                         static_cast<const void*>(p.compute.data()) != p.master.data();
  p.for_each_stored([&](const nn::BufferLayout& layout, const auto& values) {
    if (!is_stored || static_cast<const void*>(values.data()) != p.compute.data())
      add("master weights of", specs, layout, values);
  });
  if (is_stored) add("compute weights of", specs, p.layouts.compute, p.compute);
  for (const optim::Moment<M>& moment : state.moments()) {
    const std::vector<nn::ParameterSpec> tensors = moment.tensors(state.model.table());
    std::visit([&](const auto& values) { add(moment.name + " of", tensors, moment.layout, values); }, moment.values);
  }
  hashes_ = Kokkos::View<std::uint64_t*, MemorySpace>("memory check", pieces_.size());
}

template <class T>
template <class U>
void MemoryCheck<T>::add(const std::string& what, const std::vector<nn::ParameterSpec>& specs,
                         const nn::BufferLayout& layout, const Vector<U>& values) {
  for (const nn::ParameterSpec& spec : specs) {
    for (index_t l = 0; l < spec.local_layers(); ++l) {
      const index_t begin = spec.offset_of(l);
      for (const nn::BufferLayout::Part& part : layout.within({begin, begin + spec.local_size()})) {
        const std::string layer =
            spec.is_stacked ? fmt::format(", layer {}", spec.layer_numbers[static_cast<std::size_t>(l)]) : "";
        pieces_.push_back({fmt::format("{} {}{}", what, spec.name, layer), values.data() + part.at,
                           static_cast<std::size_t>(part.range.size()) * sizeof(U)});
      }
    }
  }
}

template <class T>
std::vector<std::uint64_t> MemoryCheck<T>::hashes() {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    kernels::content_hash(device_, pieces_[i].data, pieces_[i].bytes, Vector<std::uint64_t>(hashes_.data() + i, 1));
  }
  const auto host = Kokkos::create_mirror_view(hashes_);
  Kokkos::deep_copy(device_.exec(), host, hashes_);
  device_.fence();
  return {host.data(), host.data() + host.extent(0)};
}

template <class T>
void MemoryCheck<T>::keep(std::int64_t step) {
  const Region region(device_.timers(), "check memory");
  kept_ = hashes();
  kept_at_ = step;
}

template <class T>
void MemoryCheck<T>::require_unchanged() {
  if (kept_at_ == nothing) return;
  const Region region(device_.timers(), "check memory");
  const std::vector<std::uint64_t> now = hashes();
  std::string changed;
  for (std::size_t i = 0; i < now.size() && changed.empty(); ++i) {
    if (now[i] != kept_[i]) changed = pieces_[i].name;
  }
  const std::vector<int> ranks = ranks_where(!changed.empty(), grid_.world());
  if (ranks.empty()) return;
  const std::string tensor = text_of_rank(changed, ranks.front(), grid_.world());
  end_for_hardware({.ranks = ranks,
                    .step = kept_at_,
                    .what = "memory changed between two updates",
                    .expected = fmt::format("the {} that the update of step {} wrote", tensor, kept_at_),
                    .found = "other bits"},
                   config_, grid_);
}

NANOTRON_INSTANTIATE_CLASS(MemoryCheck)

}  // namespace nanotron::trainer
