#pragma once

#include <memory>

#include "nanotron/nn/attention/denominator_term.hpp"

namespace nanotron::nn {

/// Attention sinks (kernels/attention/sinks.hpp) of the query heads from first_head on, counted in the whole model.
template <class T>
std::shared_ptr<const DenominatorTerm<T>> make_sinks(index_t first_head, Vector<const master_t<T>> logits,
                                                     Vector<master_t<T>> gradient);

}  // namespace nanotron::nn
