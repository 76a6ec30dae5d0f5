#pragma once

// MPI from MPI_Init to MPI_Finalize, and how a program ends when something is thrown.

#include <mpi.h>

#include <functional>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

/// Owns the MPI library: initialised with MPI_THREAD_FUNNELED, finalised in the destructor. One per
/// process, made in main. Errors return codes (NANOTRON_CHECK_MPI turns them into Error) and do not abort. Chooses how
/// ranks wait (waiting.hpp).
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  MPI_Comm world() const { return MPI_COMM_WORLD; }

  /// Ends every rank of the job with this exit code.
  [[noreturn]] static void abort(ExitCode code);
};

/// Runs `program` on every rank of `world` and returns the exit code of this process.
///
/// A thrown Error gives its exit code, any other std::exception 71. When every rank has thrown within a
/// few seconds (a wrong deck, a non-finite loss), each distinct message is printed once, by the lowest
/// rank that has it, and all ranks return. When some rank is still at work, the message is printed with
/// this rank's number and the whole job is ended with the exit code.
///
/// Destructors that run while an exception passes must not communicate: the other ranks are not there.
/// The handles of comm/ keep to this (they leak instead; MPI_Finalize or the abort cleans up).
int run_guarded(MPI_Comm world, const std::function<int()>& program);

}  // namespace nanotron::comm
