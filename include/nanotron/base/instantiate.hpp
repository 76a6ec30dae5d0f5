#pragma once

// Explicit instantiation of a class template, in one line. Functions: NANOTRON_FOR_COMPUTE_TYPES of base/types.hpp.

#include "nanotron/base/types.hpp"

/// For the types of weights and activations.
#define NANOTRON_INSTANTIATE_CLASS(name) \
  template class name<double>;           \
  template class name<float>;            \
  template class name<nanotron::bf16>;

/// For the types of master weights.
#define NANOTRON_INSTANTIATE_MASTER_CLASS(name) \
  template class name<double>;                  \
  template class name<float>;
