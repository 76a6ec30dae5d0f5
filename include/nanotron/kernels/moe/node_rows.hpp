#pragma once

// Rows that travel once to each node with experts of their token (src/nn/moe/node_exchange.cpp). Consecutive experts
// are on a node. A node row is a token on its way to one node: with it travel k = top_k weights and k numbers of
// experts within the node, -1 where the expert of that assignment is elsewhere or has no row. In a message they are the
// values of the row, first the weights.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// For assign_rows(), which then numbers the node rows, sorted by node and then token: nodes(assignment) <- its node;
/// rows(assignment) <- 0 if it is the first one of its token to this node, else -1; sources <- 0. Assignments with
/// sent(assignment) < 0 have no row.
void mark_nodes(Device& device, index_t top_k, index_t experts_of_node, Vector<const std::int64_t> experts,
                Vector<const std::int64_t> sent, Vector<std::int64_t> nodes, Vector<std::int64_t> rows,
                Vector<std::int64_t> sources);

/// values (node rows x 2k) <- weights and experts of each node row; sources: the first assignment of each.
template <class M>
void gather_choices(Device& device, index_t top_k, index_t experts_of_node, Vector<const std::int64_t> experts,
                    Vector<const std::int64_t> sent, Vector<const std::int64_t> sources, Vector<const M> weights,
                    Vector<M> values);

/// The other side: for assignments (node rows x k) experts, weights, and rows as mark_routed() writes them for
/// assign_rows(). sources <- 0.
template <class M>
void read_choices(Device& device, index_t top_k, Vector<const M> values, Vector<std::int64_t> experts,
                  Vector<M> weights, Vector<std::int64_t> rows, Vector<std::int64_t> sources);

/// of_assignments <- what came back beside its node row, values (node rows x k), or 0. rows: from assign_rows().
template <class M>
void scatter_choices(Device& device, index_t top_k, index_t experts_of_node, Vector<const std::int64_t> experts,
                     Vector<const std::int64_t> sent, Vector<const std::int64_t> rows, Vector<const M> values,
                     Vector<M> of_assignments);

/// to (nodes, 1 + experts of a node) <- node rows and rows of each node, one message each.
void join_node_counts(Device& device, Vector<const std::int64_t> node_rows, Vector<const std::int64_t> rows,
                      Matrix<std::int64_t> to);
/// from (nodes, 1 + experts of a node), from the ranks of other nodes -> to (experts of a node, nodes): rows.
void split_node_counts(Device& device, Matrix<const std::int64_t> from, Vector<std::int64_t> to);

}  // namespace nanotron::kernels
