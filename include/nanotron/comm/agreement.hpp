#pragma once

// Errors and texts on which all ranks agree.

#include <mpi.h>

#include <functional>
#include <string>

namespace nanotron::comm {

/// Runs `work` on every rank and then agrees on the outcome: if it threw anywhere, all ranks throw
/// the error of the lowest such rank. `work` must not wait for other ranks after a step that can
/// fail on one alone. Collective.
void collectively(MPI_Comm world, const std::function<void()>& work);

/// What `make` returns on rank 0, on every rank. It runs there alone; its error is thrown on every rank.
/// Collective.
std::string text_of_root(MPI_Comm world, const std::function<std::string()>& make);

}  // namespace nanotron::comm
