#pragma once

// The states of an optimizer or of an average, on the host.

#include <variant>
#include <vector>

#include "nanotron/optim/optimizer.hpp"
#include "support/device_values.hpp"

namespace nanotron::test {

/// One list for each state, its values in M.
template <class M>
std::vector<std::vector<double>> state_values(const std::vector<optim::Moment<M>>& states) {
  std::vector<std::vector<double>> all;
  for (const optim::Moment<M>& state : states) {
    std::visit(
        [&](const auto& v) {
          all.emplace_back();
          for (const auto x : values_of(v)) all.back().push_back(static_cast<double>(static_cast<M>(x)));
        },
        state.values);
  }
  return all;
}

}  // namespace nanotron::test
