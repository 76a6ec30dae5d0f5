#include "messages.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "nanotron/base/error.hpp"

namespace nanotron::io {

std::vector<std::vector<std::byte>> exchange_messages(MPI_Comm world,
                                                      const std::vector<std::vector<std::byte>>& outgoing) {
  const std::size_t ranks = outgoing.size();
  std::vector<std::int64_t> sent(ranks), received(ranks);
  std::ranges::transform(outgoing, sent.begin(), [](const auto& message) { return std::ssize(message); });
  NANOTRON_CHECK_MPI(MPI_Alltoall(sent.data(), 1, MPI_INT64_T, received.data(), 1, MPI_INT64_T, world));
  std::vector<std::vector<std::byte>> incoming(ranks);
  std::vector<MPI_Request> requests;
  const auto post = [&](auto call, auto* data, std::size_t bytes, std::size_t rank) {
    if (bytes == 0) return;
    NANOTRON_REQUIRE(bytes <= INT_MAX, "a message of {} bytes", bytes);
    NANOTRON_CHECK_MPI(
        call(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(rank), 0, world, &requests.emplace_back()));
  };
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    incoming[rank].resize(static_cast<std::size_t>(received[rank]));
    post(MPI_Irecv, incoming[rank].data(), incoming[rank].size(), rank);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) post(MPI_Isend, outgoing[rank].data(), outgoing[rank].size(), rank);
  NANOTRON_CHECK_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
  return incoming;
}

}  // namespace nanotron::io
