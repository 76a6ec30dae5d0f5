#pragma once

// Private to the nn layer.

#include <memory>

#include "nanotron/nn/moe/expert_exchange.hpp"

namespace nanotron::nn {

/// Rows that travel once to each node (parallel%ep_messages = 'by_node').
template <class T>
std::unique_ptr<ExpertExchange<T>> make_node_exchange(const ExchangeSize& size, const NodeGroups& groups, Arena& arena);

}  // namespace nanotron::nn
