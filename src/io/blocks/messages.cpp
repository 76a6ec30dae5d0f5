#include "messages.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#include "nanotron/base/error.hpp"

namespace nanotron::io {

void BlockingWaiting::exchange_sizes(MPI_Comm world, std::span<const std::int64_t> sent,
                                     std::span<std::int64_t> received) {
  NANOTRON_CHECK_MPI(MPI_Alltoall(sent.data(), 1, MPI_INT64_T, received.data(), 1, MPI_INT64_T, world));
}

void BlockingWaiting::wait_for(std::span<MPI_Request> requests) {
  NANOTRON_CHECK_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

void BackgroundWaiting::exchange_sizes(MPI_Comm world, std::span<const std::int64_t> sent,
                                       std::span<std::int64_t> received) {
  MPI_Request request = MPI_REQUEST_NULL;
  NANOTRON_CHECK_MPI(MPI_Ialltoall(sent.data(), 1, MPI_INT64_T, received.data(), 1, MPI_INT64_T, world, &request));
  wait_for({&request, 1});
}

void BackgroundWaiting::wait_for(std::span<MPI_Request> requests) {
  constexpr auto shortest = std::chrono::microseconds(20), longest = std::chrono::microseconds(1000);
  for (auto pause = shortest;; pause = std::min(2 * pause, longest)) {
    int done = 0;
    NANOTRON_CHECK_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done != 0) return;
    std::this_thread::sleep_for(pause);
  }
}

std::vector<std::vector<std::byte>> exchange_messages(MPI_Comm world,
                                                      const std::vector<std::vector<std::byte>>& outgoing,
                                                      Waiting& waiting) {
  const std::size_t ranks = outgoing.size();
  std::vector<std::int64_t> sent(ranks), received(ranks);
  std::ranges::transform(outgoing, sent.begin(), [](const auto& message) { return std::ssize(message); });
  waiting.exchange_sizes(world, sent, received);
  std::vector<std::vector<std::byte>> incoming(ranks);
  std::vector<MPI_Request> requests;
  requests.reserve(2 * ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) incoming[rank].resize(static_cast<std::size_t>(received[rank]));
  const auto post = [&](auto call, auto* data, std::size_t bytes, std::size_t rank) {
    if (bytes == 0) return;
    NANOTRON_REQUIRE(bytes <= INT_MAX, "a message of {} bytes", bytes);
    NANOTRON_CHECK_MPI(
        call(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(rank), 0, world, &requests.emplace_back()));
  };
  for (std::size_t rank = 0; rank < ranks; ++rank) post(MPI_Irecv, incoming[rank].data(), incoming[rank].size(), rank);
  for (std::size_t rank = 0; rank < ranks; ++rank) post(MPI_Isend, outgoing[rank].data(), outgoing[rank].size(), rank);
  waiting.wait_for(requests);
  return incoming;
}

}  // namespace nanotron::io
