#pragma once

// The groups of a grid in the flight recorder (base/flight_recorder.hpp), in the grid's words: "tp group 3".

#include <mpi.h>

#include <string>

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// Registers all groups of the grid, and the lanes of their messages, with the recorder. Collective over the world.
void record_groups(ProcessGrid& grid);

/// The recorder's number for the ranks of a communicator, for MPI calls outside of groups; 0 while the recorder is off.
/// Looked up once for each communicator.
int recorded_ranks(MPI_Comm communicator);

/// The error of a background operation that a transport of GPU memory reports; empty: none. Callable from any thread.
std::string asynchronous_error();

/// A call of MPI that waits for all ranks of a communicator, to the end of the scope.
class RecordedCall {
 public:
  RecordedCall(MPI_Comm communicator, const char* name)
      : recorded_(flight_recorder().begin(recorded_ranks(communicator), name, 0, FlightRecorder::Kind::blocking)) {}
  /// A call that waits for unknown ranks.
  explicit RecordedCall(const char* name)
      : recorded_(flight_recorder().begin(0, name, 0, FlightRecorder::Kind::blocking)) {}
  ~RecordedCall() { flight_recorder().end(recorded_); }
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

 private:
  Recorded recorded_;
};

}  // namespace nanotron::comm
