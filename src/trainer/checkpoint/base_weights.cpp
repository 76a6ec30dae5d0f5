#include "trainer/checkpoint/base_weights.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/files/read_only_file.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "nanotron/model/adapters/adapters.hpp"
#include "nanotron/trainer/checkpoint/state_tensors.hpp"
#include "nanotron/trainer/data/training_stages.hpp"

namespace nanotron::trainer {
namespace {

constexpr const char* base_key = ", \"base\": ";

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return out + '"';
}

std::string adapters_text(const deck::LoraConfig& lora, const std::string& hash) {
  return fmt::format("{{\"rank\": {}, \"alpha\": {}, \"targets\": {}, \"base_hash\": \"{}\"{}{}}}", lora.rank,
                     lora.alpha, json_string(lora.targets), hash, base_key, json_string(whole_path(lora.base)));
}

// All but the path.
std::string compared(const std::string& adapters) { return adapters.substr(0, adapters.rfind(base_key)); }

// Of the manifest, which has a hash of each block of the file.
std::string hash_of(const io::CheckpointReader& reader, MPI_Comm world) {
  std::uint64_t hash = 0;
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  comm::collectively(world, [&] {
    if (rank != 0) return;
    const auto text = files::text_of(reader.folder() / io::manifest_file_name, std::size_t{1} << 28);
    if (text) hash = data::block_hash({text->data(), text->size()});
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(&hash, 1, MPI_UINT64_T, 0, world));
  return fmt::format("{:016x}", hash);
}

model::ParameterTable frozen_table(const model::ParameterTable& table) {
  model::ParameterTable frozen = table;
  std::erase_if(frozen.specs, [](const nn::ParameterSpec& spec) { return !spec.is_frozen; });
  return frozen;
}

template <class T>
void read_frozen(io::CheckpointReader& reader, model::Transformer<T>& model) {
  using M = master_t<T>;
  const nn::ParameterBuffers<T>& p = model.parameters();
  const model::ParameterTable frozen = frozen_table(model.table());
  const auto read_master = [&](const model::ParameterTable& table) {
    reader.read(state_tensors<M>(table, p.layouts.master, p.master.data(), Part::held), {}, scalar_type_of<M>);
  };
  if constexpr (std::is_same_v<T, M>) {
    read_master(frozen);
  } else {
    model::ParameterTable of_1d = frozen, of_2d = frozen;
    std::erase_if(of_1d.specs, [](const nn::ParameterSpec& spec) { return !spec.is_1d; });
    std::erase_if(of_2d.specs, [](const nn::ParameterSpec& spec) { return spec.is_1d; });
    read_master(of_1d);
    reader.read(state_tensors<T>(of_2d, p.layouts.frozen, p.frozen.data(), Part::held), {}, scalar_type_of<T>);
  }
}

}  // namespace

model::ParameterTable trained_table(const model::ParameterTable& table) {
  model::ParameterTable trained = table;
  std::erase_if(trained.specs, [](const nn::ParameterSpec& spec) { return spec.is_frozen; });
  return trained;
}

template <class T>
std::string read_base(const deck::Config& config, MPI_Comm world, model::Transformer<T>& model, Log& log) {
  if (!model.table().has_frozen()) return {};
  const deck::LoraConfig& lora = config.lora;
  if (lora.base == model::initial_base) return adapters_text(lora, model::initial_base);
  auto reader = io::CheckpointReader::find(world, lora.base, lora.base, log);
  if (!reader) {
    fail(ExitCode::data_error, {.what = "there is no checkpoint with the frozen weights",
                                .found = fmt::format("lora%base = '{}'", lora.base),
                                .where = whole_path(lora.base),
                                .change = "--set lora.base=<a step folder>"});
  }
  reader->require_model(model_of_checkpoint(config, reader->info()));
  if (!reader->info().adapters.empty()) {
    fail(ExitCode::deck_error, {.what = "lora%base has adapters alone, not the weights of a model",
                                .where = reader->folder().string(),
                                .change = "name the checkpoint that it was trained on, or merge it: nanotron-convert "
                                          "merge"});
  }
  read_frozen(*reader, model);
  log.info("frozen weights from {}", reader->folder().string());
  return adapters_text(lora, hash_of(*reader, world));
}

void require_adapters(const io::CheckpointReader& checkpoint, const std::string& adapters) {
  const std::string& found = checkpoint.info().adapters;
  if (compared(found) == compared(adapters)) return;
  const auto said = [](const std::string& text) { return text.empty() ? "all weights, no adapters" : text; };
  fail(ExitCode::deck_error,
       {.what = "the checkpoint does not have what this run trains",
        .expected = said(adapters),
        .found = said(found),
        .where = checkpoint.folder().string(),
        .change = found.empty() ? "adapters begin from lora%base: give the run an output_dir of its own"
                                : "correct &lora; for all weights, merge: nanotron-convert merge"});
}

#define NANOTRON_INSTANTIATE(T) \
  template std::string read_base(const deck::Config&, MPI_Comm, model::Transformer<T>&, Log&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
