#include "nanotron/trainer/start/choose_bucket.hpp"

#include "nanotron/comm/collectives.hpp"
#include "nanotron/parallel/reducers/all_reduce/bucket_size.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

void choose_bucket(deck::Config& config, comm::ProcessGrid& grid, Log& log) {
  if (config.parallel.bucket_mb > 0.0) return;
  if (grid.data_parallel().size() == 1) {
    config.parallel.bucket_mb = deck::ParallelConfig{}.bucket_mb;  // no gradient all-reduce
    return;
  }
  Timers timers;
  Device device(timers);
  const parallel::AllReduceSpeed here = parallel::measure_all_reduce(grid.data_parallel(), device);
  const parallel::AllReduceSpeed slowest{.latency = comm::max(grid.world(), here.latency),
                                         .bytes_per_second = comm::min(grid.world(), here.bytes_per_second)};
  const std::size_t element = config.precision.compute == ScalarType::fp64 ? sizeof(double) : sizeof(float);
  const double bytes =
      static_cast<double>(comm::max(grid.world(), model::parameter_table_of(transformer_setup(config, grid)).size *
                                                      static_cast<std::int64_t>(element)));
  config.parallel.bucket_mb = parallel::bucket_megabytes(slowest, bytes);
  log.info(
      "all-reduce over {} data-parallel ranks: {:.1f} us and {:.2f} GB/s; "
      "for {:.0f} MiB of gradients bucket_mb = {}",
      grid.data_parallel().size(), 1e6 * slowest.latency, slowest.bytes_per_second / 1e9, bytes / 1048576.0,
      config.parallel.bucket_mb);
}

}  // namespace nanotron::trainer
