#include "nanotron/kernels/moe/node_rows.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// The first assignment of the token of i that goes to the same node; i has a row.
NANOTRON_FUNCTION index_t first_to_node(index_t i, index_t top_k, index_t experts_of_node, const std::int64_t* experts,
                                        const std::int64_t* sent) {
  const std::int64_t node = experts[i] / experts_of_node;
  index_t first = i / top_k * top_k;
  while (first < i && (sent[first] < 0 || experts[first] / experts_of_node != node)) ++first;
  return first;
}

}  // namespace

void mark_nodes(Device& device, index_t top_k, index_t experts_of_node, Vector<const std::int64_t> experts,
                Vector<const std::int64_t> sent, Vector<std::int64_t> nodes, Vector<std::int64_t> rows,
                Vector<std::int64_t> sources) {
  const KernelRegion kernel(device, "mark_nodes", reads(experts, sent), writes(nodes, rows, sources));
  const auto all = static_cast<index_t>(sources.extent(0));
  for_each_element(
      device, "mark_nodes", static_cast<index_t>(rows.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const bool has_row = sent.data()[i] >= 0;
        nodes.data()[i] = has_row ? experts.data()[i] / experts_of_node : 0;
        rows.data()[i] = has_row && first_to_node(i, top_k, experts_of_node, experts.data(), sent.data()) == i ? 0 : -1;
        if (i < all) sources.data()[i] = 0;
      });
}

template <class M>
void gather_choices(Device& device, index_t top_k, index_t experts_of_node, Vector<const std::int64_t> experts,
                    Vector<const std::int64_t> sent, Vector<const std::int64_t> sources, Vector<const M> weights,
                    Vector<M> values) {
  const KernelRegion kernel(device, "gather_choices", reads(sources, values), writes(values));
  for_each_element(
      device, "gather_choices", static_cast<index_t>(sources.extent(0)), KOKKOS_LAMBDA(const index_t row) {
        const index_t first = sources.data()[row], begin = first / top_k * top_k;
        const std::int64_t node = experts.data()[first] / experts_of_node;
        M* const to = values.data() + row * 2 * top_k;
        for (index_t j = 0; j < top_k; ++j) {
          const std::int64_t expert = experts.data()[begin + j];
          const bool is_here = sent.data()[begin + j] >= 0 && expert / experts_of_node == node;
          to[j] = is_here ? weights.data()[begin + j] : M(0);
          to[top_k + j] = is_here ? static_cast<M>(expert % experts_of_node) : M(-1);
        }
      });
}

template <class M>
void read_choices(Device& device, index_t top_k, Vector<const M> values, Vector<std::int64_t> experts,
                  Vector<M> weights, Vector<std::int64_t> rows, Vector<std::int64_t> sources) {
  const KernelRegion kernel(device, "read_choices", reads(values), writes(experts, weights, rows, sources));
  const auto all = static_cast<index_t>(sources.extent(0)), n = static_cast<index_t>(experts.extent(0));
  for_each_element(
      device, "read_choices", n > all ? n : all, KOKKOS_LAMBDA(const index_t i) {
        if (i < all) sources.data()[i] = 0;
        if (i >= n) return;
        const M* const from = values.data() + i / top_k * 2 * top_k + i % top_k;
        const auto expert = static_cast<std::int64_t>(from[top_k]);
        weights.data()[i] = from[0];
        experts.data()[i] = expert;
        rows.data()[i] = expert < 0 ? -1 : 0;
      });
}

template <class M>
void scatter_choices(Device& device, index_t top_k, index_t experts_of_node, Vector<const std::int64_t> experts,
                     Vector<const std::int64_t> sent, Vector<const std::int64_t> rows, Vector<const M> values,
                     Vector<M> of_assignments) {
  const KernelRegion kernel(device, "scatter_choices", reads(experts, sent, rows, of_assignments),
                            writes(of_assignments));
  for_each_element(
      device, "scatter_choices", static_cast<index_t>(of_assignments.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        M value = M(0);
        if (sent.data()[i] >= 0) {
          const index_t first = first_to_node(i, top_k, experts_of_node, experts.data(), sent.data());
          value = values.data()[rows.data()[first] * top_k + i % top_k];
        }
        of_assignments.data()[i] = value;
      });
}

void join_node_counts(Device& device, Vector<const std::int64_t> node_rows, Vector<const std::int64_t> rows,
                      Matrix<std::int64_t> to) {
  const KernelRegion kernel(device, "join_node_counts", reads(node_rows, rows), writes(to));
  const auto columns = static_cast<index_t>(to.extent(1)), nodes = static_cast<index_t>(to.extent(0));
  NANOTRON_REQUIRE(static_cast<index_t>(rows.extent(0)) == nodes * (columns - 1), "{} experts on {} nodes",
                   rows.extent(0), nodes);
  for_each_element(
      device, "join_node_counts", nodes * columns, KOKKOS_LAMBDA(const index_t i) {
        const index_t node = i / columns, c = i % columns;
        to.data()[i] = c == 0 ? node_rows.data()[node] : rows.data()[node * (columns - 1) + c - 1];
      });
}

void split_node_counts(Device& device, Matrix<const std::int64_t> from, Vector<std::int64_t> to) {
  const KernelRegion kernel(device, "split_node_counts", reads(from), writes(to));
  const auto columns = static_cast<index_t>(from.extent(1)), nodes = static_cast<index_t>(from.extent(0));
  for_each_element(
      device, "split_node_counts", nodes * (columns - 1), KOKKOS_LAMBDA(const index_t i) {
        const index_t expert = i / nodes, node = i % nodes;
        to.data()[i] = from.data()[node * columns + 1 + expert];
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                                       \
  template void gather_choices<M>(Device&, index_t, index_t, Vector<const std::int64_t>, Vector<const std::int64_t>,  \
                                  Vector<const std::int64_t>, Vector<const M>, Vector<M>);                            \
  template void read_choices<M>(Device&, index_t, Vector<const M>, Vector<std::int64_t>, Vector<M>,                   \
                                Vector<std::int64_t>, Vector<std::int64_t>);                                          \
  template void scatter_choices<M>(Device&, index_t, index_t, Vector<const std::int64_t>, Vector<const std::int64_t>, \
                                   Vector<const std::int64_t>, Vector<const M>, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
