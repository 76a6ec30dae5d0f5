#include "benches.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/order/sample_order.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "repeat.hpp"
#include "report.hpp"

namespace nanotron::apps::bench {
namespace {

// Seconds to read one sequence of the file, in the order of shuffle = 'global'; the file is in the system's cache.
Spread seconds_of_sequence(const data::TokenFile& file, index_t length, double budget) {
  const index_t all = (file.size() - 1) / length, at_once = std::min<index_t>(all, 256);
  const data::SampleOrder order(1, all, deck::Shuffle::global);
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(length)), targets(inputs.size());
  std::vector<double> seconds;
  index_t sample = 0;
  const auto batch = [&] {
    const double begin = wall_seconds();
    for (index_t i = 0; i < at_once; ++i)
      file.read_with_next(order.sequence_of(sample++) * length, length, inputs.data(), targets.data());
    return (wall_seconds() - begin) / static_cast<double>(at_once);
  };
  batch();
  const double end = wall_seconds() + budget;
  while (wall_seconds() < end || seconds.size() < 3) seconds.push_back(batch());
  return spread_of(std::move(seconds));
}

}  // namespace

void measure_data(const Bench& bench, const std::vector<ScalarType>&) {
  const deck::DataConfig& data = bench.config.data;
  const auto sequences = static_cast<double>(data.global_batch_size / bench.config.parallel.dp);
  Table table{
      .key = "data",
      .title = fmt::format("Reading {:g} sequences of {} tokens a step on a rank", sequences, data.sequence_length),
      .columns = {{"hashes of blocks of", "block"},
                  {"us/sequence", "microseconds", 2},
                  {"min", "least", 2},
                  {"max", "most", 2},
                  {"ms/step", "milliseconds_per_step", 4},
                  {"MB/s", "megabytes_per_second", 0}},
      .rows = {},
      .note = "at random offsets of a file in the page cache; compare with ms/step below"};
  comm::collectively(bench.grid.world().mpi(), [&] {
    if (bench.grid.world().rank() != 0) return;
    const index_t sizes[] = {0, 1024, 16384, 65536, data::hash_block};
    for (const index_t block : sizes) {
      if (block > 0) data::add_hashes(data.path, block);
      const data::TokenFile file(data.path,
                                 block > 0 ? data::TokenFile::Hashes::compared : data::TokenFile::Hashes::ignored);
      const Spread s = seconds_of_sequence(file, data.sequence_length, bench.options.seconds);
      const auto bytes = static_cast<double>((data.sequence_length + 1) * file.arrays().front()->width());
      table.rows.push_back({block > 0 ? fmt::format("{}", block) : "none", 1e6 * s.median, 1e6 * s.min, 1e6 * s.max,
                            1e3 * s.median * sequences, bytes / s.median / 1e6});
    }
  });
  bench.report.add(table);
}

}  // namespace nanotron::apps::bench
