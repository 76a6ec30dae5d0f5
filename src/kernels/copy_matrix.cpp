#include "nanotron/kernels/copy_matrix.hpp"

#include "nanotron/base/error.hpp"

namespace nanotron::kernels {

template <class T>
void copy_matrix(Device& device, MatrixRef<const T> from, MatrixRef<T> to) {
  NANOTRON_REQUIRE(from.rows == to.rows && from.columns == to.columns,
                   "copy_matrix: {} x {} into {} x {}", from.rows, from.columns, to.rows, to.columns);
  using Policy = Kokkos::TeamPolicy<ExecutionSpace>;
  const index_t columns = from.columns;
  Kokkos::parallel_for(
      "copy_matrix", Policy(device.exec(), static_cast<int>(from.rows), Kokkos::AUTO),
      KOKKOS_LAMBDA(const Policy::member_type& team) {
        const index_t row = team.league_rank();
        const T* const source = from.data + row * from.leading;
        T* const target = to.data + row * to.leading;
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, columns),
                             [&](const index_t c) { target[c] = source[c]; });
      });
}

template void copy_matrix<double>(Device&, MatrixRef<const double>, MatrixRef<double>);
template void copy_matrix<float>(Device&, MatrixRef<const float>, MatrixRef<float>);
template void copy_matrix<bf16>(Device&, MatrixRef<const bf16>, MatrixRef<bf16>);

}  // namespace nanotron::kernels
