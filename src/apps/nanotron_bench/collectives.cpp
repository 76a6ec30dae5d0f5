#include "benches.hpp"

#include <fmt/format.h>

namespace nanotron::apps::bench {
namespace {

constexpr double giga = 1e9;

struct Message {
  std::size_t bytes;
  const char* what;
};

// Bandwidths as nccl-tests define them: algbw = size / time, busbw = algbw times the factor of a ring. size is the
// output of a rank for all_gather, its input for reduce_scatter and all_reduce.
class CollectiveBench {
 public:
  CollectiveBench(const Bench& bench, Table& table) : bench_(bench), table_(table), device_(timers_) {}

  template <class T>
  void run(comm::Group& group, const char* name, const Message& message) {
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t piece = std::max<std::size_t>(1, message.bytes / sizeof(T) / ranks);
    const Kokkos::View<T*, MemorySpace> data("data",
                                             piece * ranks);  // zeros: sums stay zero
    const Kokkos::View<T*, MemorySpace> other("other", piece * ranks);
    const auto& stream = device_.stream();
    const double copy = copy_rate(bench_, device_, 2.0 * static_cast<double>(data.size() * sizeof(T)));
    const double ring = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    const auto row = [&](const char* what, double factor, auto&& work) {
      const Spread s = seconds_of(device_, bench_.grid.world(), bench_.options.seconds / 2, work);
      const double seconds = comm::max(group, s.median);
      const double algbw = static_cast<double>(data.size() * sizeof(T)) / seconds / giga;
      table_.rows.push_back({name, std::int64_t{group.size()}, what, name_of(scalar_type_of<T>),
                             static_cast<double>(data.size() * sizeof(T)) / 1024.0, message.what, seconds * 1e6,
                             s.min * 1e6, s.max * 1e6, algbw, algbw * factor, copy / giga});
    };
    row("all_reduce", 2.0 * ring,
        [&] { comm::all_reduce(group, data.data(), data.size(), comm::ReduceOp::sum, stream); });
    row("all_gather", ring, [&] { comm::all_gather(group, data.data(), piece, other.data(), stream); });
    row("reduce_scatter", ring,
        [&] { comm::reduce_scatter(group, data.data(), other.data(), piece, comm::ReduceOp::sum, stream); });
  }

  template <class T>
  void run_all(comm::Group& group, const char* name, const Message& own) {
    if (group.size() == 1) return;
    for (const std::size_t kib : {4, 64, 1024, 16384}) run<T>(group, name, {kib << 10, ""});
    run<T>(group, name, own);
  }

 private:
  const Bench& bench_;
  Table& table_;
  Timers timers_;
  Device device_;
};

}  // namespace

void measure_collectives(const Bench& bench, const std::vector<ScalarType>& types) {
  Table table{.key = "collectives",
              .title = fmt::format("Collectives: tp by {}, dp by {}", bench.grid.tp().path(),
                                   bench.grid.data_parallel().path()),
              .columns = {{"group", "group"},
                          {"ranks", "ranks"},
                          {"operation", "operation"},
                          {"type", "type"},
                          {"KiB", "kib"},
                          {"message", "message"},
                          {"us", "us"},
                          {"min", "us_least"},
                          {"max", "us_most"},
                          {"algbw GB/s", "algbw", 2},
                          {"busbw GB/s", "busbw", 2},
                          {"copy GB/s", "copy_gbs"}},
              .rows = {},
              .note = "copy: bytes read and written by a copy of the message, all ranks at once"};
  CollectiveBench collectives(bench, table);
  const model::LocalSizes s = bench.sizes();
  const auto gradient = static_cast<std::size_t>(bench.table().size);
  const auto bucket = static_cast<std::size_t>(bench.config.parallel.bucket_mb * 1024 * 1024);
  for (const ScalarType type : types) {
    with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
      const auto activations = static_cast<std::size_t>(s.tokens * s.hidden) * sizeof(T);
      collectives.run_all<T>(bench.grid.tp(), "tp", {activations, "activations"});
    });
  }
  const bool wide = std::ranges::find(types, ScalarType::fp64) != types.end();
  const bool narrow = types.size() > 1 || !wide;
  if (wide) {
    collectives.run_all<double>(bench.grid.data_parallel(), "dp",
                                {std::min(bucket, gradient * sizeof(double)), "bucket"});
  }
  if (narrow) {
    collectives.run_all<float>(bench.grid.data_parallel(), "dp",
                               {std::min(bucket, gradient * sizeof(float)), "bucket"});
  }
  if (table.rows.empty()) return bench.report.line("\nCollectives: one rank in every group, nothing to measure");
  bench.report.add(table);
}

}  // namespace nanotron::apps::bench
