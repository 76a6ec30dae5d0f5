#include "nanotron/trainer/program.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "nanotron/base/error.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/base/resident.hpp"
#include "nanotron/kernels/matrix_rate.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/trainer/trainer.hpp"

namespace nanotron::trainer {
namespace {

constexpr double mib = 1024.0 * 1024.0;

std::string broadcast_text(MPI_Comm world, const std::string& text) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  auto size = static_cast<std::int64_t>(text.size());
  NANOTRON_CHECK_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, 0, world));
  std::string received = text;
  received.resize(static_cast<std::size_t>(size));
  NANOTRON_CHECK_MPI(MPI_Bcast(received.data(), static_cast<int>(size), MPI_CHAR, 0, world));
  return received;
}

// Runs on rank 0; an error there is thrown on every rank. The others wait for the text.
template <class Read>
std::string read_on_root(MPI_Comm world, Read read) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  std::string text;
  int code = 0;
  if (rank == 0) {
    try {
      text = read();
    } catch (const Error& error) {
      text = error.what();
      code = static_cast<int>(error.exit_code());
    }
  }
  NANOTRON_CHECK_MPI(MPI_Bcast(&code, 1, MPI_INT, 0, world));
  text = broadcast_text(world, text);
  if (code != 0) throw Error(static_cast<ExitCode>(code), text);
  return text;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) {
    fail(ExitCode::system_error, {.what = fmt::format("cannot write {}", path.string()),
                                  .change = "check run%output_dir, its permissions and the free space"});
  }
}

// The size of the vocabulary, where the deck leaves it to the token file.
void complete_vocabulary(deck::Config& config) {
  if (config.model.vocab_size != 0) return;
  const data::TokenFile tokens(config.data.path);
  config.model.vocab_size = tokens.vocab_size();
  if (tokens.vocab_size() == 0) {
    fail(ExitCode::deck_error, {.what = "the size of the vocabulary is not known",
                                .expected = "model%vocab_size in the deck, or the attribute vocab_size in the token file",
                                .found = "neither",
                                .where = tokens.path()});
  }
}

std::int64_t named_ranks(const deck::ParallelConfig& p) {
  std::int64_t product = 1;
  for (const std::int64_t degree : {p.dp, p.tp, p.pp, p.cp}) product *= std::max<std::int64_t>(degree, 1);
  return product;
}

struct Tokens {
  data::TokenFile training;
  std::optional<data::TokenFile> validation;

  explicit Tokens(const deck::Config& config) : training(config.data.path) {
    training.require_vocab_size(config.model.vocab_size);
    if (config.data.validation_path.empty()) return;
    validation.emplace(config.data.validation_path);
    validation->require_vocab_size(config.model.vocab_size);
  }
};

Loaders make_loaders(const deck::Config& config, const Tokens& tokens, const comm::ProcessGrid& grid) {
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  const auto loader = [&](const data::TokenFile& file, data::Split split) {
    return data::BatchLoader(config.data, seed, file, split, grid.dp_rank(), grid.shape().dp);
  };
  Loaders loaders{loader(tokens.training, data::Split::training), std::nullopt};
  if (tokens.validation || config.data.validation_fraction > 0.0) {
    loaders.validation.emplace(
        loader(tokens.validation ? *tokens.validation : tokens.training, data::Split::validation));
  }
  return loaders;
}

std::string model_summary(const deck::Config& c) {
  const model::ParameterTable table = model::make_parameter_table(c.model, 1, 0);
  const double flops = model::training_flops_per_token(c.model, c.data.sequence_length);
  return fmt::format(
      "model: {} layers, hidden {}, {} heads ({} key-value) of {}, ffn {}, vocabulary {}: {:.2f} M parameters\n"
      "batch: {} sequences of {} tokens a step ({} a micro-batch), {:.2f} MFLOP a token, {:.3f} TFLOP a step\n"
      "compute: {}, recompute {}",
      c.model.num_hidden_layers, c.model.hidden_size, c.model.num_attention_heads,
      c.model.num_key_value_heads, c.model.head_dim, c.model.intermediate_size, c.model.vocab_size,
      static_cast<double>(table.logical_parameters()) / 1e6, c.data.global_batch_size,
      c.data.sequence_length, c.data.micro_batch_size, flops / 1e6,
      flops * static_cast<double>(tokens_per_step(c)) / 1e12, name_of(c.precision.compute),
      c.parallel.recompute == deck::Recompute::none        ? "none"
      : c.parallel.recompute == deck::Recompute::selective ? "selective"
                                                           : "full");
}

template <class T>
double machine_rate(Device& device, comm::Group& world) {
  comm::barrier(world);
  return comm::sum(world, kernels::matrix_rate<T>(device, 1024, 0.3));
}

// Runs of one type, behind the set-up that all types share.
template <class T>
ExitCode train_as(const deck::Config& config, comm::ProcessGrid& grid, Loaders& loaders, Log& log,
                  double start) {
  Timers timers;
  Device device(timers);
  const double rate = machine_rate<T>(device, grid.world());
  const std::size_t resident_before = resident_bytes();
  const GridPlace place{grid.shape().dp, grid.shape().tp, grid.tp_rank()};
  const MemoryPlan plan = plan_memory(config, place, grid.tp());
  const std::size_t staging = grid.tp().staging_bytes() + grid.dp().staging_bytes();
  log.info("memory of rank 0, besides {:.0f} MiB of program and libraries and {:.0f} MiB to stage messages:\n{}",
           static_cast<double>(resident_before) / mib, static_cast<double>(staging) / mib, plan.table());
  log.info("matrix products: {} {}, {:.1f} GFLOP/s on all ranks together", name_of(config.precision.compute),
           kernels::gemm_library<T>(), rate / 1e9);

  Arena arena(plan);
  Trainer<T> trainer(config, grid, device, arena, loaders, log);
  trainer.resume();
  StopConditions stop(config.run, start);
  std::unique_ptr<io::MetricsFile> metrics;
  if (log.speaks()) {
    metrics = std::make_unique<io::MetricsFile>(
        std::filesystem::path(config.run.output_dir) / "metrics.h5", trainer.step(), build_provenance());
  }
  const auto tokens = static_cast<double>(tokens_per_step(config));
  Progress progress(config,
                    {.tokens = tokens,
                     .flops = tokens * model::training_flops_per_token(config.model, config.data.sequence_length),
                     .machine_rate = rate},
                    std::move(metrics), log);

  const double begin = wall_seconds();
  timers.reset();
  const StopReason reason = trainer.run(stop, progress);
  if (config.output.timers) log.info("{}", timers.table(wall_seconds() - begin));
  log.info("peak resident memory of rank 0: {:.0f} MiB, planned {:.0f} MiB",
           static_cast<double>(peak_resident_bytes()) / mib,
           static_cast<double>(resident_before + staging + plan.total()) / mib);
  if (reason == StopReason::none) {
    log.info("finished: {} steps, {:.1f} s", trainer.step(), wall_seconds() - start);
    return ExitCode::ok;
  }
  log.info("stopped after step {} of {}: {}; the same command goes on from here", trainer.step(),
           config.run.steps, describe(reason));
  return ExitCode::stopped_early;
}

void prepare_run_directory(const deck::Config& config, comm::Group& world, Log& log) {
  read_on_root(world.mpi(), [&] {
    std::error_code error;
    std::filesystem::create_directories(config.run.output_dir, error);
    if (error) {
      fail(ExitCode::system_error, {.what = fmt::format("cannot make the run directory: {}", error.message()),
                                    .where = config.run.output_dir,
                                    .change = "run%output_dir"});
    }
    log.open(std::filesystem::path(config.run.output_dir) / "run.log");
    write_text(std::filesystem::path(config.run.output_dir) / "deck.nml", deck::canonical_deck(config));
    return std::string();
  });
}

}  // namespace

deck::Config load_config(MPI_Comm world, const std::string& path,
                         const std::vector<std::string>& overrides, GridRanks ranks) {
  const std::string text = read_on_root(world, [&] { return deck::read_deck_file(path); });
  deck::Config config = deck::read_deck_text(text, path, overrides);
  int world_size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &world_size));
  deck::resolve(config, ranks == GridRanks::of_world ? world_size : named_ranks(config.parallel));
  complete_vocabulary(config);
  return config;
}

comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config) {
  const comm::Communicator all = comm::Communicator::duplicate(world);
  const comm::GridShape shape{.dp = static_cast<int>(config.parallel.dp),
                              .pp = static_cast<int>(config.parallel.pp),
                              .cp = static_cast<int>(config.parallel.cp),
                              .tp = static_cast<int>(config.parallel.tp),
                              .order = config.parallel.order};
  return comm::ProcessGrid(all, shape, comm::choose_transport(config.parallel.backend, all));
}

std::string describe_plan(const deck::Config& config, MPI_Comm world) {
  comm::Group alone(comm::Communicator::duplicate(world), comm::Transport::mpi);
  const GridPlace place{.dp_size = static_cast<int>(config.parallel.dp),
                        .tp_size = static_cast<int>(config.parallel.tp)};
  const MemoryPlan plan = plan_memory(config, place, alone);
  return fmt::format("{}\ngrid: dp {} x pp {} x cp {} x tp {} = {} ranks\nmemory of the largest rank:\n{}",
                     model_summary(config), config.parallel.dp, config.parallel.pp, config.parallel.cp,
                     config.parallel.tp, deck::grid_size(config.parallel), plan.table());
}

ExitCode train(const deck::Config& config, MPI_Comm world, double start) {
  comm::ProcessGrid grid = make_grid(world, config);
  Log log(grid.world().rank() == 0, grid.world().rank());
  log.set_quiet(config.output.console == deck::Console::quiet);
  prepare_run_directory(config, grid.world(), log);
  log.info("{}{}", to_text(build_provenance()), to_text(run_provenance(world)));
  log.info("{}", model_summary(config));
  log.info("{}", grid.placement());
  log.info("data: {}; tensor-parallel group by {}, replicas by {}", config.data.path, grid.tp().path(),
           grid.dp().path());

  const Tokens tokens(config);
  if (tokens.training.unigram_entropy()) {
    log.info("unigram entropy of the data: {:.4f} nats a token", *tokens.training.unigram_entropy());
  }
  Loaders loaders = make_loaders(config, tokens, grid);
  return with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    return train_as<T>(config, grid, loaders, log, start);
  });
}

}  // namespace nanotron::trainer
