#include "benches.hpp"

#include <fmt/format.h>

#include <fstream>
#include <numeric>

#include "nanotron/comm/communicator.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"

namespace nanotron::apps::bench {
namespace {

using kernels::GemmAlgorithms;

// Of the GEMMs of one step, its update included.
template <class T>
GemmAlgorithms measured(const Bench& bench, const deck::Config& config) {
  Timers timers;
  Log log(false);
  Device device(timers, trainer::gemm_mode_of(config));
  trainer::leave_multiprocessors(config, device);
  kernels::measure_gemm_algorithms(device);
  const trainer::TokenFiles files(config);
  trainer::Loaders loaders = trainer::make_loaders(config, files, bench.grid.coordinate());
  Arena arena(trainer::plan_step(config, bench.grid.coordinate()).memory);
  trainer::Trainer<T> trainer(config, {}, bench.grid, device, arena, loaders, log);
  trainer.train_step();
  device.fence();
  return kernels::measured_gemm_algorithms(device);
}

// The texts of all ranks, on rank 0.
std::vector<std::string> gathered(const std::string& mine, const comm::Group& world) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(ranks), begins(ranks);
  NANOTRON_CHECK_MPI(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, world.mpi()));
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
  std::string all(static_cast<std::size_t>(begins.back() + lengths.back()), '\0');
  NANOTRON_CHECK_MPI(
      MPI_Gatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR, 0, world.mpi()));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    texts.push_back(all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(lengths[r])));
  }
  return texts;
}

// Of a GEMM that several ranks measured, what the lowest one found.
GemmAlgorithms merged(const std::vector<std::string>& texts, const std::string& file) {
  GemmAlgorithms all;
  for (const std::string& text : texts) {
    GemmAlgorithms of_rank = kernels::read_gemm_algorithms(text, file);
    if (!all.library.empty() && all.library != of_rank.library) {
      fail(ExitCode::deck_error, {.what = "a file of GEMM algorithms is for one model of GPU",
                                  .expected = all.library,
                                  .found = of_rank.library,
                                  .change = "measure each model of GPU separately, into its own file"});
    }
    all.library = of_rank.library;
    all.of.merge(of_rank.of);
  }
  return all;
}

}  // namespace

void write_gemm_algorithms(const Bench& bench, const std::vector<ScalarType>& types) {
  deck::Config config = bench.config;
  GemmAlgorithms mine;
  for (const ScalarType type : types) {
    config.precision.compute = type;
    GemmAlgorithms of_type =
        with_scalar_type(type, [&]<class T>(std::type_identity<T>) { return measured<T>(bench, config); });
    mine.library = of_type.library;
    mine.of.merge(of_type.of);
  }
  const comm::Group& world = bench.grid.world();
  const std::vector<std::string> texts = gathered(kernels::text_of(mine), world);
  comm::collectively(world.mpi(), [&] {
    if (world.rank() != 0) return;
    const std::string& file = bench.options.gemm_algorithms;
    const GemmAlgorithms all = merged(texts, file);
    std::ofstream out(file);
    out << kernels::text_of(all) << std::flush;
    if (!out) fail(ExitCode::system_error, {.what = "the GEMM algorithms cannot be written", .where = file});
    bench.report.line(fmt::format("{}: the algorithms of {} GEMMs, of {}", file, all.of.size(), all.library));
  });
}

}  // namespace nanotron::apps::bench
