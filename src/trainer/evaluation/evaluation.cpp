#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "loaded_model.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "nanotron/trainer/start/measured_keys.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/run_resources.hpp"

namespace nanotron::trainer {
namespace {

// "validation loss 2.1019, perplexity 8.182, 3.0324 bits per token, 4096 targets"
std::string text_of(const std::string& name, const MeanLoss& mean) {
  return fmt::format("validation{}{}: loss {:.6f} nats per token, perplexity {:.6g}, {:.6f} bits per token, {} targets",
                     name.empty() ? "" : " ", name, mean.loss, std::exp(mean.loss), mean.loss / std::numbers::ln2,
                     mean.targets);
}

template <class T>
void evaluate_as(const deck::Config& config, comm::ProcessGrid& grid, Loaders& loaders, io::CheckpointReader& reader,
                 Log& log) {
  std::vector<std::string> names = deck::validation_set_names(config.data);
  names.resize(loaders.validation.size());  // one set may have none
  with_loaded_model<T>(config, grid, reader, log, [&](const LoadedModel<T>& m) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const MeanLoss mean = mean_loss(m.device, grid, m.state, m.schedule, m.tokens, loaders.validation[i],
                                      config.data.global_batch_size);
      if (mean.targets == 0)
        fail(ExitCode::data_error, {.what = "no target of the validation data counts in the loss",
                                    .expected = "/loss_mask = 1 for at least one target",
                                    .where = names[i]});
      log.summary("{}", text_of(names[i], mean));
    }
  });
}

}  // namespace

io::CheckpointReader open_for_evaluation(const deck::Config& config, comm::Group& world, Log& log) {
  const std::filesystem::path directory = deck::checkpoint_directory(config);
  if (config.checkpoint.resume != "none") {
    auto reader = io::CheckpointReader::find(world.mpi(), directory, config.checkpoint.resume, log);
    if (reader) {
      reader->require_model(model_of_checkpoint(config, reader->info()));
      log.info("{} (step {}, {} tokens seen)", reader->folder().string(), reader->info().state.step,
               reader->info().state.tokens_seen);
      return std::move(*reader);
    }
  }
  fail(ExitCode::data_error, {.what = "there is no checkpoint to evaluate",
                              .found = fmt::format("checkpoint%resume = '{}'", config.checkpoint.resume),
                              .where = whole_path(directory),
                              .change = "--set checkpoint.resume=<a step folder, or a folder of them>"});
}

ExitCode evaluate(const deck::Config& of_deck, MPI_Comm world) {
  deck::Config config = config_of_checkpoint(of_deck, world);
  comm::ProcessGrid grid = make_grid(world, config);
  Log log(grid.world().rank() == 0, grid.world().rank());
  const std::unique_ptr<TokenFiles> files = open_token_files(config, world, log);
  fill_weights(*files, config);
  Loaders loaders = make_loaders(config, *files, grid.coordinate());
  if (loaders.validation.empty()) {
    fail(ExitCode::deck_error, {.what = "there is nothing to evaluate",
                                .expected = "data%validation_path, or data%validation_fraction > 0",
                                .found = "neither",
                                .change = "--set data.validation_path=<a token file>"});
  }
  io::CheckpointReader reader = open_for_evaluation(config, grid.world(), log);
  comm::collectively(world, [&] {
    compare_tokenizers(loaders.tokenizer, reader.info().tokenizer,
                       fmt::format("the checkpoint {}", reader.folder().string()), config.data, log);
  });
  choose_pipeline_cut(config, grid);
  with_scalar_type(config.precision.compute,
                   [&]<class T>(std::type_identity<T>) { evaluate_as<T>(config, grid, loaders, reader, log); });
  return ExitCode::ok;
}

}  // namespace nanotron::trainer
