#include "trainer/checkpoint/base_weights.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/data/files/read_only_file.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/kernels/reduction/content_hash.hpp"
#include "nanotron/model/adapters/adapters.hpp"
#include "nanotron/trainer/checkpoint/state_tensors.hpp"
#include "nanotron/trainer/data/training_stages.hpp"

namespace nanotron::trainer {
namespace {

std::string adapters_text(const deck::LoraConfig& lora, const std::string& hash) {
  const nlohmann::ordered_json all = {{"rank", lora.rank},
                                      {"alpha", lora.alpha},
                                      {"targets", lora.targets},
                                      {"base_hash", hash},
                                      {"base", whole_path(lora.base)}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // of bytes in paths that are no UTF-8
}

// All but the path, which may be another one of the same weights.
nlohmann::json compared(const std::string& text) {
  nlohmann::json all = nlohmann::json::parse(text, nullptr, false);
  if (all.is_object()) all.erase("base");
  return all;
}

bool are_equal(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a == b;
  return compared(a) == compared(b);
}

// What the table lacks is not read, and not written.
template <class Keep>
model::ParameterTable only(const model::ParameterTable& table, const Keep& keep) {
  model::ParameterTable some = table;
  std::erase_if(some.specs, [&](const nn::ParameterSpec& spec) { return !keep(spec); });
  return some;
}

template <class T>
void read_frozen(io::CheckpointReader& reader, model::Transformer<T>& model) {
  using M = master_t<T>;
  const nn::ParameterBuffers<T>& p = model.parameters();
  using Spec = nn::ParameterSpec;
  const model::ParameterTable frozen = only(model.table(), [](const Spec& spec) { return spec.is_frozen; });
  const auto read_master = [&](const model::ParameterTable& table) {
    reader.read(state_tensors<M>(table, p.layouts.master, p.master.data(), Part::held), {}, scalar_type_of<M>);
  };
  if constexpr (std::is_same_v<T, M>) {
    read_master(frozen);
  } else {
    read_master(only(frozen, [](const Spec& spec) { return spec.is_1d; }));
    const model::ParameterTable of_2d = only(frozen, [](const Spec& spec) { return !spec.is_1d; });
    reader.read(state_tensors<T>(of_2d, p.layouts.frozen, p.frozen.data(), Part::held), {}, scalar_type_of<T>);
  }
}

}  // namespace

model::ParameterTable trained_table(const model::ParameterTable& table) {
  return only(table, [](const nn::ParameterSpec& spec) { return !spec.is_frozen; });
}

template <class T>
std::string read_base(const deck::Config& config, MPI_Comm world, model::Transformer<T>& model, Log& log) {
  if (!model.table().has_frozen()) return {};
  const deck::LoraConfig& lora = config.lora;
  if (lora.base == model::initial_base) return adapters_text(lora, model::initial_base);
  io::CheckpointReader reader = io::CheckpointReader::at(world, lora.base, "lora%base", log);
  reader.require_model(model_of_checkpoint(config, reader.info()));
  if (!reader.info().adapters.empty()) {
    fail(ExitCode::deck_error, {.what = "lora%base has adapters alone, not the weights of a model",
                                .where = reader.folder().string(),
                                .change = "name the checkpoint that it was trained on, or merge it: nanotron-convert "
                                          "merge"});
  }
  read_frozen(reader, model);
  log.info("frozen weights from {}", reader.folder().string());
  return adapters_text(lora, fmt::format("{:016x}", reader.manifest_hash()));
}

template <class T>
std::uint64_t base_bits(const model::Transformer<T>& model, Device& device) {
  std::uint64_t hash = 0;
  if (!model.table().has_frozen()) return hash;
  model.parameters().for_each_stored([&]<class U>(const nn::BufferLayout& layout, const Vector<U>& values) {
    for (const nn::BufferLayout::Part& part : layout.within(model.table().dense().flat))
      hash = 3 * hash + kernels::content_hash<U>(device, Vector<const U>(values.data() + part.at, part.range.size()));
  });
  return hash;
}

template <class T>
void read_trained(io::CheckpointReader& reader, model::Transformer<T>& model, std::span<const io::StateGroup> moments) {
  using M = master_t<T>;
  const nn::ParameterBuffers<T>& p = model.parameters();
  reader.read(state_tensors<M>(trained_table(model.table()), p.layouts.master, p.master.data(), Part::held), moments,
              scalar_type_of<M>);
}

void require_adapters(const io::CheckpointReader& checkpoint, const std::string& adapters) {
  const std::string& found = checkpoint.info().adapters;
  if (are_equal(found, adapters)) return;
  const auto said = [](const std::string& text) { return text.empty() ? "all weights, no adapters" : text; };
  fail(ExitCode::deck_error,
       {.what = "the checkpoint does not have what this run trains",
        .expected = said(adapters),
        .found = said(found),
        .where = checkpoint.folder().string(),
        .change = found.empty() ? "adapters begin from lora%base: give the run an output_dir of its own"
                                : "correct &lora; for all weights, merge: nanotron-convert merge"});
}

std::string identity_of(const deck::Config& config, const io::CheckpointReader* checkpoint,
                        const std::string& adapters) {
  const std::string of_adapters = adapters.empty() ? "" : ", adapters " + compared(adapters).dump(-1, ' ', true);
  if (checkpoint != nullptr) return "checkpoint " + fmt::format("{:016x}", checkpoint->manifest_hash()) + of_adapters;
  std::string model;
  for (const deck::Parameter& p : deck::parameters()) {
    if (deck::is_stored(p, config)) model += p.name + "=" + deck::spelled(p.get(config)) + " ";
  }
  return fmt::format("run%seed {} of model {:016x}{}", config.run.seed, data::block_hash({model.data(), model.size()}),
                     of_adapters);
}

#define NANOTRON_INSTANTIATE(T)                                                                \
  template std::string read_base(const deck::Config&, MPI_Comm, model::Transformer<T>&, Log&); \
  template std::uint64_t base_bits(const model::Transformer<T>&, Device&);                     \
  template void read_trained(io::CheckpointReader&, model::Transformer<T>&, std::span<const io::StateGroup>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
