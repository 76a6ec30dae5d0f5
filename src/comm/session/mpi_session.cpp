#include "nanotron/comm/session/mpi_session.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/session/waiting.hpp"

namespace nanotron::comm {
namespace {

struct Failure {
  int code = 0;  // 0: none
  std::string message;
};
using Tell = std::function<void(int, const std::string&)>;

// How long a failed rank waits for the others to fail as well. All ranks find a wrong deck before anything
// else, but not at the same time.
double patience_seconds(int code) { return code == static_cast<int>(ExitCode::deck_error) ? 10.0 : 2.0; }

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash | 1u;
}

void print(const std::string& text) {
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fputc('\n', stderr);
  std::fflush(stderr);
}

// All-gathers the hashes of the messages; false when some rank does not join within patience_seconds.
bool gather_failures(MPI_Comm failures, const Failure& failure, std::vector<std::uint64_t>& hashes) {
  static std::uint64_t mine;  // MPI may read it after this call
  mine = hash_of(failure.message);
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Iallgather(&mine, 1, MPI_UINT64_T, hashes.data(), 1, MPI_UINT64_T, failures, &request) != MPI_SUCCESS) {
    return false;
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_seconds(failure.code));
  int complete = 0;
  while (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return complete != 0;
}

// If all ranks failed: prints and returns on all of them. Otherwise aborts the job.
void report(MPI_Comm failures, const Failure& failure, const Tell& tell) {
  int rank = 0, size = 1;
  MPI_Comm_rank(failures, &rank);
  MPI_Comm_size(failures, &size);
  const auto print_and_tell = [&](const std::string& text) {
    print(text);
    if (tell) tell(failure.code, text);
  };
  static std::vector<std::uint64_t> hashes;
  hashes.assign(static_cast<std::size_t>(size), 0);
  if (size > 1 && !gather_failures(failures, failure, hashes)) {
    print_and_tell(fmt::format("[rank {}] {}", rank, failure.message));
    // Some launchers drop what is still in the output pipe when the job is aborted.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    MpiSession::abort(static_cast<ExitCode>(failure.code));
  }
  for (int before = 0; before < rank; ++before) {
    if (hashes[static_cast<std::size_t>(before)] == hash_of(failure.message)) return;
  }
  print_and_tell(rank == 0 ? failure.message : fmt::format("[rank {}] {}", rank, failure.message));
}

std::atomic<bool> has_thread_behind{false};  // of the process

// NANOTRON_MPI_THREADS: for an MPI library that is slow, or wrong, with threads.
int wanted_threads() {
  const char* const word = std::getenv("NANOTRON_MPI_THREADS");
  const std::string_view chosen = word != nullptr ? word : "multiple";
  if (chosen != "multiple" && chosen != "funneled")
    print(fmt::format("warning: NANOTRON_MPI_THREADS: expected multiple or funneled, found '{}'; using multiple",
                      chosen));
  return chosen == "funneled" ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE;
}

}  // namespace

AbortOnException::~AbortOnException() {
  if (std::uncaught_exceptions() > before_) detail::abort_device_transports();
}

MpiSession::MpiSession(int& argc, char**& argv) {
  open_standard_streams();
  detail::prepare_environment();
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, wanted_threads(), &provided) != MPI_SUCCESS) {
    fail(ExitCode::system_error, {.what = "MPI could not be started",
                                  .expected = "",
                                  .found = "",
                                  .where = "MPI_Init_thread",
                                  .change = "start the program with the mpirun or srun of its MPI"});
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  choose_waiting(MPI_COMM_WORLD);
}

MpiSession::~MpiSession() { MPI_Finalize(); }

void MpiSession::abort(ExitCode code) {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

void MpiSession::abort_beside(ExitCode code) {
  std::packaged_task<void()> freeing(detail::abort_device_transports);
  const std::future<void> freed = freeing.get_future();
  std::thread(std::move(freeing)).detach();
  freed.wait_for(std::chrono::seconds(2));  // it may wait for the device itself
  std::thread([code] { MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code)); }).detach();
  std::this_thread::sleep_for(std::chrono::seconds(3));
  ::_exit(static_cast<int>(code));
}

void leave_thread_behind() { has_thread_behind = true; }

int run_guarded(MPI_Comm world, const std::function<int()>& program, const Tell& tell) {
  MPI_Comm failures = MPI_COMM_NULL;
  NANOTRON_CHECK_MPI(MPI_Comm_dup(world, &failures));
  MPI_Comm_set_errhandler(failures, MPI_ERRORS_RETURN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit returns an error
  Failure failure;
  int code = 0;
  try {
    code = program();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fail(ExitCode::system_error,
           {.what = "standard output could not be written", .change = "the disk or the program that reads it"});
    }
  } catch (const Error& error) {
    failure = {static_cast<int>(error.exit_code()), error.what()};
  } catch (const std::exception& error) {
    failure = {static_cast<int>(ExitCode::system_error), fmt::format("error: {}", error.what())};
  } catch (...) {
    failure = {static_cast<int>(ExitCode::system_error), "error: an unknown exception"};
  }
  if (failure.code != 0) {
    report(failures, failure, tell);
    code = failure.code;
    if (has_thread_behind) {
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the rank that tells the reason has to come to it
      MpiSession::abort(static_cast<ExitCode>(code));
    }
  }
  MPI_Comm_free(&failures);
  return code;
}

}  // namespace nanotron::comm
