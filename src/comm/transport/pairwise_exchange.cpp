#include <fmt/core.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/transport/host_data.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"

namespace nanotron::comm {

void check_transfer(int status, const char* call, const char* file, int line) {
  if (status == MPI_SUCCESS) return;
  try {
    detail::check_mpi(status, call, file, line);
  } catch (const Error& error) {
    if (!flight_recorder().is_on()) throw;
    fmt::print(stderr, "warning: {}\n", reason(error));
    std::fflush(stderr);
    flight_recorder().wait_for_verdict(FlightRecorder::Found::by_library);
  }
}

namespace {

constexpr int tag = 2, started_tag = 3;                      // 0 and 1 are lane 0 of mpi_messages.cpp
constexpr std::uint64_t started = std::uint64_t{1} << 63;    // in tickets
constexpr std::size_t mpi_max_bytes = std::size_t{1} << 30;  // an MPI count is an int

struct Part {
  std::size_t begin, bytes;
};

Part part_of(std::span<const std::size_t> counts, int rank, std::size_t size) {
  return {std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0}) * size,
          counts[static_cast<std::size_t>(rank)] * size};
}

}  // namespace

void pairwise_exchange(MPI_Comm comm, const void* send, std::span<const std::size_t> send_counts, void* recv,
                       std::span<const std::size_t> recv_counts, DataType type, std::size_t most) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(comm, &rank));
  const int size = static_cast<int>(send_counts.size());
  const std::size_t max_bytes = std::min(most, mpi_max_bytes / bytes_of(type)) * bytes_of(type);
  for (int round = 0; round < size; ++round) {
    const int to = (rank + round) % size, from = (rank - round + size) % size;
    const Part out = part_of(send_counts, to, bytes_of(type)), in = part_of(recv_counts, from, bytes_of(type));
    const auto* const source = static_cast<const std::byte*>(send) + out.begin;
    auto* const target = static_cast<std::byte*>(recv) + in.begin;
    if (to == rank) {
      if (out.bytes > 0) std::memcpy(target, source, out.bytes);
      continue;
    }
    for (std::size_t at = 0; at < std::max(out.bytes, in.bytes); at += max_bytes) {
      const std::size_t sent = out.bytes > at ? std::min(max_bytes, out.bytes - at) : 0;
      const std::size_t received = in.bytes > at ? std::min(max_bytes, in.bytes - at) : 0;
      MPI_Status status{};
      NANOTRON_CHECK_TRANSFER(MPI_Sendrecv(source + std::min(at, out.bytes), static_cast<int>(sent), MPI_BYTE,
                                           sent > 0 ? to : MPI_PROC_NULL, tag, target + std::min(at, in.bytes),
                                           static_cast<int>(received), MPI_BYTE, received > 0 ? from : MPI_PROC_NULL,
                                           tag, comm, &status));
      int came = 0;
      NANOTRON_CHECK_MPI(MPI_Get_count(&status, MPI_BYTE, &came));
      NANOTRON_REQUIRE(came == static_cast<int>(received), "rank {} of an all-to-all sent {} bytes to rank {}, not {}",
                       from, came, rank, received);
    }
  }
}

std::uint64_t StartedExchanges::start(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                      std::span<const std::size_t> recv_counts, DataType type, std::size_t most) {
  if (free_.empty()) {
    free_.push_back(running_.size());
    running_.emplace_back();
  }
  const std::uint64_t place = free_.back();
  free_.pop_back();
  post(running_[place], send, send_counts, recv, recv_counts, type,
       std::min(most, mpi_max_bytes / bytes_of(type)) * bytes_of(type));
  return started | place;
}

void StartedExchanges::post(Running& running, const void* send, std::span<const std::size_t> send_counts, void* recv,
                            std::span<const std::size_t> recv_counts, DataType type, std::size_t max_bytes) const {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(comm_, &rank));
  const int size = static_cast<int>(send_counts.size());
  running.messages.clear();
  running.received.clear();
  const auto in_messages = [&](const Part& part, const auto& message) {
    for (std::size_t at = 0; at < part.bytes; at += max_bytes) {
      running.messages.push_back(MPI_REQUEST_NULL);
      message(part.begin + at, std::min(max_bytes, part.bytes - at), &running.messages.back());
    }
  };
  for (int round = 1; round < size; ++round) {
    const int from = (rank - round + size) % size;
    in_messages(part_of(recv_counts, from, bytes_of(type)), [&](std::size_t at, std::size_t n, MPI_Request* request) {
      running.received.push_back(n);
      NANOTRON_CHECK_TRANSFER(MPI_Irecv(static_cast<std::byte*>(recv) + at, static_cast<int>(n), MPI_BYTE, from,
                                        started_tag, comm_, request));
    });
  }
  for (int round = 1; round < size; ++round) {
    const int to = (rank + round) % size;
    in_messages(part_of(send_counts, to, bytes_of(type)), [&](std::size_t at, std::size_t n, MPI_Request* request) {
      NANOTRON_CHECK_TRANSFER(MPI_Isend(static_cast<const std::byte*>(send) + at, static_cast<int>(n), MPI_BYTE, to,
                                        started_tag, comm_, request));
    });
  }
  const Part mine = part_of(send_counts, rank, bytes_of(type));
  if (mine.bytes > 0) {
    std::memcpy(static_cast<std::byte*>(recv) + part_of(recv_counts, rank, bytes_of(type)).begin,
                static_cast<const std::byte*>(send) + mine.begin, mine.bytes);
  }
}

bool StartedExchanges::test(std::uint64_t ticket) {
  Running& running = running_[ticket & ~started];
  statuses_.resize(running.messages.size());
  int done = 0;
  NANOTRON_CHECK_TRANSFER(
      MPI_Testall(static_cast<int>(running.messages.size()), running.messages.data(), &done, statuses_.data()));
  if (done == 0) return false;
  for (std::size_t i = 0; i < running.received.size(); ++i) {
    int came = 0;
    NANOTRON_CHECK_MPI(MPI_Get_count(&statuses_[i], MPI_BYTE, &came));
    NANOTRON_REQUIRE(came == static_cast<int>(running.received[i]),
                     "a message of an all-to-all has {} bytes, and not {}", came, running.received[i]);
  }
  free_.push_back(ticket & ~started);
  return true;
}

}  // namespace nanotron::comm
