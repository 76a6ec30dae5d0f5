#include "nanotron/trainer/start/gemm_algorithms.hpp"

#include <fmt/format.h>

#include <fstream>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/transport/nccl_memory.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

namespace nanotron::trainer {
namespace {

std::string text_of_file(const std::string& file) {
  std::ifstream in(file);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in) {
    fail(ExitCode::deck_error, {.what = "the file of GEMM algorithms cannot be read",
                                .where = whole_path(file),
                                .change = "make it with nanotron_bench --gemm-algorithms, or leave "
                                          "run%gemm_algorithms empty"});
  }
  return text;
}

}  // namespace

// A receive holds its thread blocks from when it is posted: that of the next input, and that of the next gradient.
void leave_multiprocessors(const deck::Config& config, Device& device) {
  if (config.parallel.pp == 1 || config.parallel.backend == deck::Backend::mpi) return;
  const auto asked = static_cast<int>(config.parallel.message_blocks);
  kernels::leave_multiprocessors(device, 2 * comm::blocks_of_messages(asked));
}

void use_gemm_algorithms(const deck::Config& config, Device& device, comm::Group& world, Log& log) {
  leave_multiprocessors(config, device);
  const std::string& file = config.run.gemm_algorithms;
  if (file.empty()) return;
  if (built_for == Processor::cpu) {
    log.warn("run%gemm_algorithms = '{}' is ignored: this build has no GPU", file);
    return;
  }
  const std::string text = comm::text_of_root(world.mpi(), [&] { return text_of_file(file); });
  comm::collectively(world.mpi(),
                     [&] { kernels::use_gemm_algorithms(device, kernels::read_gemm_algorithms(text, file), file); });
}

void report_gemm_algorithms(const deck::Config& config, const Device& device, comm::Group& world, Log& log) {
  const std::string& file = config.run.gemm_algorithms;
  if (file.empty()) return;
  const kernels::GemmAlgorithmCounts here = kernels::gemm_algorithm_counts(device);
  const auto most = [&](int count) { return comm::max(world, static_cast<std::int64_t>(count)); };
  const std::int64_t given = most(here.given), by_heuristic = most(here.by_heuristic), others = most(here.others);
  if (given + by_heuristic + others == 0) return;
  log.summary("GEMM algorithms: at most {} of a rank's GEMMs from {}, {} by the library's heuristic{}", given, file,
              by_heuristic, others == 0 ? "" : fmt::format(", {} of rocBLAS", others));
}

}  // namespace nanotron::trainer
