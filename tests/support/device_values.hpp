#pragma once

// Tests do not reach into the device's memory: they copy.

#include <algorithm>
#include <type_traits>
#include <vector>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::test {

/// What a view holds after the work that is queued on the space. Waits for that alone: between ranks that wait for each
/// other in posted receives, a wait for the whole device would be forever.
template <class View, class T = typename View::non_const_value_type>
std::vector<T> values_of(const View& view, const ExecutionSpace& exec = ExecutionSpace()) {
  const auto host = Kokkos::create_mirror(view);
  Kokkos::deep_copy(exec, host, view);
  exec.fence();
  return {host.data(), host.data() + host.size()};
}

/// Values: as many as the view has elements. Waits until they are there.
template <class View, class Values>
void set_values(const View& view, const Values& values, const ExecutionSpace& exec = ExecutionSpace()) {
  const auto host = Kokkos::create_mirror(view);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(exec, view, host);
  exec.fence();
}

/// One element.
template <class View>
auto value_at(const View& view, index_t at) {
  return values_of(Vector<const typename View::non_const_value_type>(view.data() + at, 1)).front();
}
template <class View>
void set_value(const View& view, index_t at, typename View::non_const_value_type value) {
  set_values(Vector<typename View::non_const_value_type>(view.data() + at, 1), std::vector{value});
}

}  // namespace nanotron::test
