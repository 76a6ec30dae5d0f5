#include "nanotron/comm/collectives.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/collective_records.hpp"
#include "comm/transport/host_data.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::comm {
using namespace detail;
namespace {

template <class T, class Combine>
T combine_in_rank_order(Group& group, T value, MPI_Datatype type, Combine combine) {
  if (group.size() == 1) return value;
  const Recording recording(group, "host value", sizeof(T), Call::value);
  const Clock clock(group, &OperationNames::value, sizeof(T));
  if (group.is_planned()) return value;
  constexpr int few = 64;
  T kept[few];
  std::vector<T> many(group.size() > few ? static_cast<std::size_t>(group.size()) : 0);
  T* values = group.size() > few ? many.data() : kept;
  NANOTRON_CHECK_TRANSFER(MPI_Allgather(&value, 1, type, values, 1, type, group.mpi()));
  T result = values[0];
  for (int r = 1; r < group.size(); ++r) result = combine(result, values[r]);
  return result;
}

// Of integers, for which the order makes no difference.
template <class T>
T combine(Group& group, T value, MPI_Datatype type, MPI_Op op) {
  if (group.size() == 1) return value;
  const Recording recording(group, "host value", sizeof(T), Call::value);
  const Clock clock(group, &OperationNames::value, sizeof(T));
  if (!group.is_planned()) NANOTRON_CHECK_TRANSFER(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, op, group.mpi()));
  return value;
}

constexpr auto add = [](auto a, auto b) { return a + b; };
constexpr auto larger = [](auto a, auto b) { return std::max(a, b); };
constexpr auto smaller = [](auto a, auto b) { return std::min(a, b); };

}  // namespace

template <class T>
void all_reduce(Group& group, T* data, std::size_t n, ReduceOp op, const Stream& stream) {
  if (group.size() == 1 || n == 0) return;
  const Recording recording = Recording::of_bulk(group, "all_reduce", n * sizeof(T),
                                                 alike(Call::all_reduce, n * sizeof(T), type_code<T>, detail_of(op)));
  const Clock clock(group, &OperationNames::all_reduce, n * sizeof(T));
  const Watched watched(group, data, n * sizeof(T));
  group.channel().all_reduce(data, n, data_type<T>, op, stream);
}

template <class T>
void all_gather(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, n * sizeof(T), stream);
  if (n == 0) return;
  const Recording recording =
      Recording::of_bulk(group, "all_gather", n * sizeof(T), alike(Call::all_gather, n * sizeof(T), type_code<T>));
  const Clock clock(group, &OperationNames::all_gather, n * sizeof(T));
  const Watched watched(group, send, n * sizeof(T));
  group.channel().all_gather(send, n, recv, data_type<T>, stream);
}

template <class T>
void reduce_scatter(Group& group, T* send, T* recv, std::size_t n, ReduceOp op, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, n * sizeof(T), stream);
  if (n == 0) return;
  const std::size_t bytes = n * sizeof(T) * static_cast<std::size_t>(group.size());
  const Recording recording = Recording::of_bulk(group, "reduce_scatter", bytes,
                                                 alike(Call::reduce_scatter, bytes, type_code<T>, detail_of(op)));
  const Clock clock(group, &OperationNames::reduce_scatter, bytes);
  const Watched watched(group, send, bytes);
  group.channel().reduce_scatter(send, recv, n, data_type<T>, op, stream);
}

template <class T>
void broadcast(Group& group, T* data, std::size_t n, int root, const Stream& stream) {
  if (group.size() == 1 || n == 0) return;
  const Recording recording =
      Recording::of_bulk(group, "broadcast", n * sizeof(T), alike(Call::broadcast, n * sizeof(T), type_code<T>, root));
  const Clock clock(group, &OperationNames::broadcast, n * sizeof(T));
  const Watched watched(group, data, group.rank() == root ? n * sizeof(T) : 0);
  group.channel().broadcast(data, n, data_type<T>, root, stream);
}

template <class T>
void all_to_all(Group& group, const T* send, std::span<const std::size_t> send_counts, T* recv,
                std::span<const std::size_t> recv_counts, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, send_counts[0] * sizeof(T), stream);
  const std::size_t n = std::accumulate(send_counts.begin(), send_counts.end(), std::size_t{0});
  const Recording recording =
      Recording::of_bulk(group, "all_to_all", n * sizeof(T), alike(Call::all_to_all, 0, type_code<T>));
  const Clock clock(group, &OperationNames::all_to_all, n * sizeof(T));
  const Watched watched(group, send, n * sizeof(T));
  group.channel().all_to_all(send, send_counts, recv, recv_counts, data_type<T>, stream);
}

void barrier(Group& group) {
  if (group.size() == 1) return;
  const Recording recording(group, "barrier", 0, Call::barrier);
  const Clock clock(group, &OperationNames::value, 0);
  NANOTRON_CHECK_TRANSFER(MPI_Barrier(group.mpi()));
}

double sum(Group& group, double value) { return combine_in_rank_order(group, value, MPI_DOUBLE, add); }

double max(Group& group, double value) { return combine_in_rank_order(group, value, MPI_DOUBLE, larger); }

double min(Group& group, double value) { return combine_in_rank_order(group, value, MPI_DOUBLE, smaller); }

std::int64_t sum(Group& group, std::int64_t value) { return combine(group, value, MPI_INT64_T, MPI_SUM); }

std::uint64_t sum(Group& group, std::uint64_t value) { return combine(group, value, MPI_UINT64_T, MPI_SUM); }

std::int64_t max(Group& group, std::int64_t value) { return combine(group, value, MPI_INT64_T, MPI_MAX); }

std::int64_t min(Group& group, std::int64_t value) { return combine(group, value, MPI_INT64_T, MPI_MIN); }

std::int64_t max_and_check_call_order(Group& world, std::int64_t value) {
  if (world.size() == 1) return value;
  constexpr int bits = 4;  // of the value
  constexpr std::uint64_t mask = (1U << bits) - 1;
  NANOTRON_REQUIRE(value >= 0 && value <= static_cast<std::int64_t>(mask), "a value of {}", value);
  // In the upper bits a weighted sum of the hashes of operations, modulo 2^60: 0 where all ranks of all groups agree.
  const std::uint64_t mine = flight_recorder().take_proof() << bits | static_cast<std::uint64_t>(value);
  const std::uint64_t all = combine_in_rank_order(world, mine, MPI_UINT64_T, [](std::uint64_t a, std::uint64_t b) {
    return ((a >> bits) + (b >> bits)) << bits | std::max(a & mask, b & mask);
  });
  if (all >> bits != 0) flight_recorder().wait_for_verdict(FlightRecorder::Found::by_proof);
  return static_cast<std::int64_t>(all);
}

#define NANOTRON_INSTANTIATE(T)                                                                                 \
  template void all_reduce<T>(Group&, T*, std::size_t, ReduceOp, const Stream&);                                \
  template void all_gather<T>(Group&, const T*, std::size_t, T*, const Stream&);                                \
  template void reduce_scatter<T>(Group&, T*, T*, std::size_t, ReduceOp, const Stream&);                        \
  template void broadcast<T>(Group&, T*, std::size_t, int, const Stream&);                                      \
  template void all_to_all<T>(Group&, const T*, std::span<const std::size_t>, T*, std::span<const std::size_t>, \
                              const Stream&);
NANOTRON_FOR_MESSAGE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::comm
