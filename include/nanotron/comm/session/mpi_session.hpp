#pragma once

// MPI from MPI_Init to MPI_Finalize, and how a program ends after an exception.

#include <mpi.h>

#include <exception>
#include <functional>
#include <string>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

/// Owns the MPI library: initialised with MPI_THREAD_MULTIPLE where MPI has it (MPI_THREAD_FUNNELED with
/// NANOTRON_MPI_THREADS=funneled), finalised in the destructor. One per process, made in main. MPI errors return codes,
/// which NANOTRON_CHECK_MPI turns into Error, and do not abort. Chooses how ranks wait (waiting.hpp).
class MpiSession {
 public:
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  MPI_Comm world() const { return MPI_COMM_WORLD; }

  /// Ends every rank of the job with this exit code.
  [[noreturn]] static void abort(ExitCode code);

  /// The same from any thread and while MPI is stuck: MPI_Abort has a few seconds, in a thread of its own, then this
  /// process exits on its own. MPI need not allow threads: if the call fails or never returns, nothing is lost.
  [[noreturn]] static void abort_beside(ExitCode code);
};

/// If an exception leaves its scope, ends the operations between ranks that GPUs have queued: they may wait for this
/// rank. Construct it after the owners of GPU memory, which CUDA frees only when the device is done.
class AbortOnException {
 public:
  AbortOnException() = default;
  ~AbortOnException();
  AbortOnException(const AbortOnException&) = delete;
  AbortOnException& operator=(const AbortOnException&) = delete;

 private:
  int before_ = std::uncaught_exceptions();
};

/// A thread of this process that may be inside MPI cannot be waited for. The program must end by an exception:
/// run_guarded() then ends with MPI_Abort, since no thread may meet MPI_Finalize. Any thread.
void leave_thread_behind();

/// Runs `program` on every rank of `world` and returns the exit code of this process.
///
/// A thrown Error gives its exit code, any other exception 71. If every rank throws within a few seconds
/// (a wrong deck, a non-finite loss), the lowest rank that has a message prints it, each distinct message
/// once, and all ranks return. If some rank does not throw, this rank prints its message with its number
/// and aborts the whole job with the exit code. The rank that prints a message passes it to `tell`, with the exit code.
///
/// Destructors that run during stack unwinding must not communicate: the other ranks may not be there.
/// The handles of comm/ leak instead; MPI_Finalize or the abort cleans up.
int run_guarded(MPI_Comm world, const std::function<int()>& program,
                const std::function<void(int, const std::string&)>& tell = {});

}  // namespace nanotron::comm
