#pragma once

// The loop of an update whose rule is a function of one element. A rule:
//
//   struct Rule {
//     static constexpr int states = 2;
//     NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const;   // updates s, returns the new p
//   };
//
// It stands beside its optimizer, in src/optim.

#include <variant>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/optim/element_states.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/tensor/kernel_region.hpp"

namespace nanotron::kernels {
namespace element_update {

template <class M, class Rule, class States, class Store>
void run(Device& device, const char* label, const UpdateOperands<M>& o, const States& states, const Rule& rule,
         const Store& copy) {
  M* const parameter = o.p.data();
  const M* const gradient = o.g.data();
  const UpdateScalars* const decided = o.scalars.data();
  for_each_piece<M>(
      device, label, static_cast<index_t>(o.p.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t size) {
        if (!decided->updates) return;
        const M clip = static_cast<M>(decided->gradient_scale);
        const Store stored = copy;
        const States held = states;
        const Rule updated = rule;
        row.template for_each_chunk<M>(size, [=](const index_t at, const auto width) {
          constexpr int n = decltype(width)::value;
          const index_t i = begin + at;
          Chunk<M, n> p = load(parameter + i, width);
          const Chunk<M, n> g = load(gradient + i, width);
          Chunk<M, n> s[Rule::states];
          for_each<Rule::states>([&](const auto j) { s[j.value] = load(held.at[j.value] + i, width); });
          for (int k = 0; k < n; ++k) {
            M of_element[Rule::states];
            for_each<Rule::states>([&](const auto j) { of_element[j.value] = s[j.value][k]; });
            p.at[k] = updated(p[k], clip * g[k], of_element);
            for_each<Rule::states>([&](const auto j) { s[j.value].at[k] = of_element[j.value]; });
          }
          held.store_all(i, width, s);
          store(parameter + i, width, [&](const int k) { return p[k]; });
          stored(i, width, p);
        });
      });
}

// f(states), of the type that the operands have.
template <int count, class M, class F>
void with_states(const UpdateOperands<M>& o, const F& f) {
  const auto pointers = [&]<class S>(S*(&at)[count]) {
    for (int j = 0; j < count; ++j) at[j] = std::get<Vector<S>>(o.states[static_cast<std::size_t>(j)]).data();
  };
  if (std::holds_alternative<Vector<M>>(o.states.front())) {
    MasterStates<M, count> states{};
    pointers(states.at);
    return f(states);
  }
  if constexpr (!std::is_same_v<M, float>) {
    NANOTRON_REQUIRE(false, "states in bf16 of an update in fp64");
  } else {
    Bf16States<count> states{.at = {}, .noise = o.noise, .update = static_cast<std::uint32_t>(o.update)};
    pointers(states.at);
    f(states);
  }
}

template <class M>
double bytes_of_states(const UpdateOperands<M>& o) {
  double bytes = 0.0;
  for (const StateVector<M>& state : o.states) bytes += std::visit([](const auto& v) { return bytes_of(v); }, state);
  return bytes;
}

}  // namespace element_update

/// Queues the update of all elements by the rule. label: of the kernel.
template <class M, class Rule>
void update_elements(Device& device, const char* label, const UpdateOperands<M>& o, const Rule& rule) {
  const double of_states = element_update::bytes_of_states(o);
  const KernelRegion kernel(
      device, label, Work{.read = reads(o.p, o.g).bytes + of_states, .written = writes(o.p, o.copy).bytes + of_states});
  NANOTRON_REQUIRE(o.g.extent(0) == o.p.extent(0) && o.states.size() == Rule::states && o.update >= 1,
                   "{}: {} parameters, {} gradients, {} states, update {}", label, o.p.extent(0), o.g.extent(0),
                   o.states.size(), o.update);
  for (const StateVector<M>& state : o.states) {
    const std::size_t size = std::visit([](const auto& v) { return v.extent(0); }, state);
    NANOTRON_REQUIRE(size == o.p.extent(0), "{}: {} parameters, a state of {}", label, o.p.extent(0), size);
  }
  element_update::with_states<Rule::states>(o, [&](const auto& held) {
    with_copy(o.copy, o.p.extent(0),
              [&](const auto& copy) { element_update::run<M>(device, label, o, held, rule, copy); });
  });
}

}  // namespace nanotron::kernels
