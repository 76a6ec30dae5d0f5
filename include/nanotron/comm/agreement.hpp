#pragma once

// Makes all ranks agree on an error or a text.

#include <mpi.h>

#include <functional>
#include <string>

namespace nanotron::comm {

/// Runs `work` on every rank. If it throws on any, all ranks throw the error of the lowest such rank.
/// `work` must not wait for other ranks after anything that can fail on only some ranks. Collective.
void collectively(MPI_Comm world, const std::function<void()>& work);

/// Runs `make` on rank 0 only and returns its text on every rank. Its error is thrown on every rank.
/// Collective.
std::string text_of_root(MPI_Comm world, const std::function<std::string()>& make);

}  // namespace nanotron::comm
