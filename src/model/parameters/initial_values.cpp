#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::model {

using nn::Initial;
using nn::ParameterSpec;

namespace {

// Writes elements `from` of the local matrix of one layer to `out`.
template <class M>
void initialise_part(const ParameterSpec& spec, index_t layer, std::int64_t seed, const Range& from, M* out) {
  const std::uint32_t states = stream_id(spec.name);
  const LogicalIndex logical = spec.logical_index(layer);
  const Initial initial = spec.initial;
  const double deviation = spec.deviation;
  const index_t begin = from.begin;
  Kokkos::parallel_for(
      "initialise", kernels::RangePolicy(from.begin, from.end), KOKKOS_LAMBDA(const index_t i) {
        const auto index = static_cast<std::uint64_t>(logical(i));
        if (initial == Initial::uniform) {
          const double u = uniform(static_cast<std::uint64_t>(seed), states, index, 0);
          out[i - begin] = static_cast<M>(static_cast<float>(deviation * (2.0 * u - 1.0)));
          return;
        }
        if (initial != Initial::normal) {
          out[i - begin] = initial == Initial::ones    ? static_cast<M>(1.0F)
                           : initial == Initial::value ? static_cast<M>(deviation)
                                                       : static_cast<M>(0.0F);
          return;
        }
        out[i - begin] =
            static_cast<M>(static_cast<float>(deviation * normal(static_cast<std::uint64_t>(seed), states, index, 0)));
      });
}

}  // namespace

template <class M>
void initialise(const ParameterTable& table, std::int64_t seed, const Vector<M>& master, const nn::BufferLayout& held) {
  for (const ParameterSpec& spec : table.specs) {
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t offset = spec.offset_of(layer);
      for (const nn::BufferLayout::Part& part : held.within({offset, offset + spec.local_size()})) {
        const Range from{part.range.begin - offset, part.range.end - offset};
        initialise_part(spec, layer, seed, from, master.data() + part.at);
      }
    }
  }
  Kokkos::fence();
}

#define NANOTRON_INSTANTIATE(M) \
  template void initialise<M>(const ParameterTable&, std::int64_t, const Vector<M>&, const nn::BufferLayout&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
