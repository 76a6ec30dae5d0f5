#include "nanotron/trainer/checkpoint/checkpointing.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "nanotron/optim/lr_schedule.hpp"
#include "nanotron/trainer/data/run_data.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "trainer/checkpoint/base_weights.hpp"
#include "trainer/checkpoint/resume.hpp"

namespace nanotron::trainer {
namespace {

optim::LrSchedule rate_under(const deck::Config& config) {
  return {config.schedule, config.optimizer.learning_rate, config.run.steps};
}

// Which runs have the same bits (doc/reproducibility.md), "layout-4 compute=bf16 moments=master tensor_shards=4 ...":
// the version of the order of operations in this type, which grows with each change of the program that changes a bit,
// the types and the parts of sums. Empty without precision%reproducible = 'layout': the bits are those of one grid,
// machine and build.
std::string bits_class(const deck::Config& config) {
  if (config.precision.reproducible != deck::Reproducible::layout) return {};
  const deck::SumShards shards = deck::sum_shards(config);
  const int version = config.precision.compute == ScalarType::bf16 ? 4 : 3;
  return fmt::format("layout-{} compute={} moments={} tensor_shards={} context_shards={} batch_shards={}", version,
                     name_of(config.precision.compute),
                     config.precision.moments == deck::MomentType::bf16 ? "bf16" : "master", shards.tensor,
                     shards.context, shards.batch);
}

// A warning when a checkpoint of class `before` continues in another one, else empty.
std::string change_of_bits(const std::string& before, const std::string& now) {
  if (before == now) return {};
  const auto named = [](const std::string& bits) { return bits.empty() ? "of one grid and machine" : bits; };
  return fmt::format(
      "the bits of this run are no longer those of the run that wrote the checkpoint: they were {}, now they are {} "
      "(precision%reproducible, compute, moments, *_shards)",
      named(before), named(now));
}

std::string rate_jump(const std::string& deck_before, const deck::Config& config, std::int64_t step) {
  const std::optional<deck::Config> before = deck::config_of(deck_before);
  if (!before || step == 0) return "";
  const optim::LrSchedule was = rate_under(*before), is = rate_under(config);
  if (was(step) == is(step)) return "";
  return fmt::format(
      "the learning rate jumps from {:.4g} in step {} to {:.4g} in step {}, for which the checkpoint's deck has "
      "{:.4g}: "
      "schedule, rate or run%steps have changed; with schedule%decay_steps the curve does not depend on run%steps",
      was(step - 1), step, is(step), step + 1, was(step));
}

// About what this rank writes.
template <class T>
std::size_t written_bytes(comm::ProcessGrid& grid, const TrainingState<T>& state) {
  const auto replicas = static_cast<std::size_t>(written_parts(grid)[comm::ReplicaSet::data_parallel].replicas);
  const nn::BufferLayout owned = model::owned_layout(state.model.table(), state.sharding);
  const auto elements_in = [](const nn::BufferLayout& written) {
    std::size_t elements = 0;
    for (const nn::BufferLayout::Part& part : written.parts()) elements += static_cast<std::size_t>(part.range.size());
    return elements;
  };
  std::size_t bytes = elements_in(state.model.parameters().layouts.master.common(owned)) * sizeof(master_t<T>);
  for (const auto& moment : state.moments()) {
    if (moment.are_weights) continue;
    const auto size = std::visit([]<class S>(const Vector<S>&) { return sizeof(S); }, moment.values);
    bytes += elements_in(moment.part_of(owned)) * size;
  }
  bytes /= replicas;
  for (const parallel::PersistentState<master_t<T>>& section : state.reducers.persistent_state())
    for (const auto& values : section.values) bytes += values.values.size() * sizeof(master_t<T>);
  return bytes;
}

}  // namespace

template <class T>
std::size_t checkpoint_workspace(const deck::Config& config, comm::ProcessGrid& grid, const TrainingState<T>& state) {
  constexpr auto assembled = static_cast<std::size_t>(io::held_blocks * io::manifest_block_bytes);
  constexpr auto held = static_cast<std::size_t>(io::blocks_in_memory * io::manifest_block_bytes);
  const std::size_t copied = config.checkpoint.neighbour_every_steps > 0 ? 4 * assembled : 0;  // own and partner's
  return 2 * assembled + static_cast<std::size_t>(io::staging_bytes()) +                       // sent, received
         held + (config.checkpoint.asynchronous ? written_bytes(grid, state) : 0) + copied;
}

template <class T>
std::size_t neighbour_bytes(const deck::Config& config, comm::ProcessGrid& grid, const TrainingState<T>& state) {
  constexpr auto pieces = 2 * io::kept_generations, block = static_cast<std::size_t>(io::copy_block_bytes);
  return config.checkpoint.neighbour_every_steps > 0 ? pieces * (written_bytes(grid, state) + block) : 0;
}

template <class T>
void read_parameters(io::CheckpointReader& reader, model::Transformer<T>& model) {
  require_adapters(reader, {});
  read_trained(reader, model, {});
}

Parts written_parts(comm::ProcessGrid& grid) {
  return Parts::of_each([&](comm::ReplicaSet replicas) {
    const comm::Group& replicate = grid.data_groups(replicas).replicate;
    return Part{Part::Of::owned, replicate.rank(), replicate.size()};
  });
}

template <class T>
Checkpointing<T>::Checkpointing(const deck::Config& config, const Provenance& provenance,
                                const data::TokenizerId& tokenizer, const std::vector<io::DataFile>& data,
                                comm::ProcessGrid& grid, Device& device, TrainingState<T>& state,
                                io::NeighbourCopies* copies, Log& log)
    : config_(config),
      provenance_(provenance),
      tokenizer_(tokenizer),
      data_(data),
      grid_(grid),
      device_(device),
      state_(state),
      copies_(copies),
      log_(log),
      writer_(grid.world().mpi(), deck::checkpoint_directory(config), config.checkpoint.keep_last, log),
      persistent_(state.reducers.persistent_state(), grid),
      moments_(state.moments()) {
  if (config_.checkpoint.asynchronous)
    with_contents({}, [&](const io::CheckpointContents& contents) { writer_.reserve(contents); });
}

template <class T>
void Checkpointing<T>::restore_base() {
  const auto is_as_read = [&] { return std::int64_t{base_bits(state_.model, device_) == base_bits_}; };
  if (!adapters_.empty() && comm::min(grid_.world(), is_as_read()) == 1) return;
  adapters_ = read_base(config_, grid_.world().mpi(), state_.model, log_);
  base_bits_ = base_bits(state_.model, device_);
}

template <class T>
io::CheckpointState Checkpointing<T>::restore(std::optional<io::CheckpointReader> checkpoint) {
  restore_base();
  const bool is_given = checkpoint.has_value();
  auto found = is_given ? std::move(checkpoint) : newest_state(grid_.world().mpi(), config_, copies_, log_);
  if (found && !read_into(*found)) {
    if (is_given)
      fail(ExitCode::deck_error, {.what = "the copies on the hosts have a different precision",
                                  .where = found->folder().string(),
                                  .change = "name a checkpoint with checkpoint%resume"});
    log_.warn("the copies on the hosts have a different precision: resuming from the newest checkpoint");
    found.reset();
    if (auto file = newest_state(grid_.world().mpi(), config_, nullptr, log_))
      read_into(found.emplace(std::move(*file)));
  }
  if (state_.pairs.exist()) {
    start_ = {.deck = found ? found->info().deck : "",
              .weights = identity_of(config_, found ? &*found : nullptr, adapters_)};
  }
  // Moves other checkpoints aside and removes copies: only after all reads.
  if (copies_ != nullptr) copies_->keep_only(found ? &*found : nullptr);
  if (!found) {
    writer_.start_fresh();
    return {.seed = config_.run.seed};
  }
  const io::CheckpointInfo& info = found->info();
  if (found->is_of_copies())
    writer_.continue_at(info.state.step);
  else
    writer_.continue_from(found->folder(), info.state.step);

  log_.info("resumed from {}{} (step {}, {} tokens seen{})", found->is_of_copies() ? "copies on the hosts, " : "",
            found->folder().string(), info.state.step, info.state.tokens_seen,
            info.has_optimizer ? "" : "; no optimizer state in it: moments start at zero");
  if (info.has_optimizer && !has_our_moments(info)) {
    log_.warn("optimizer%name is '{}', was '{}': moments and update count start at zero", state_.optimizer->name(),
              info.optimizer);
  }
  hugging_face_ = info.hugging_face;
  io::CheckpointState counters = info.state;
  counters.seed = config_.run.seed;
  return counters;
}

template <class T>
bool Checkpointing<T>::read_into(io::CheckpointReader& reader) {
  const io::CheckpointInfo& info = reader.info();
  reader.require_model(model_of_checkpoint(config_, info));
  require_adapters(reader, adapters_);
  comm::collectively(grid_.world().mpi(), [&] {
    compare_tokenizers(tokenizer_, info.tokenizer, fmt::format("the checkpoint {}", reader.folder().string()),
                       config_.data, log_);
    compare_data(info, data_, deck::whole_run(config_), reader.folder().string(), log_);
  });
  if (const std::string text = rate_jump(info.deck, deck::whole_run(config_), info.state.step); !text.empty())
    log_.warn("{}", text);
  if (const std::string text = change_of_bits(info.bits, bits_class(config_)); !text.empty()) log_.warn("{}", text);
  const bool with_moments = has_our_moments(info);
  std::vector<io::StateGroup> moments =
      moment_groups(Part::held, [](const optim::Moment<M>& moment) { return moment.layout; });
  if (!with_moments) std::erase_if(moments, [](const io::StateGroup& group) { return !group.or_parameters; });
  if (!reader.has_types_of(moments, scalar_type_of<M>)) return false;
  read_trained(reader, state_.model, moments);
  read_compression(reader);
  state_.optimizer->set_steps(with_moments ? info.state.adam_step : 0);
  return true;
}

template <class T>
bool Checkpointing<T>::has_our_moments(const io::CheckpointInfo& info) const {
  return info.has_optimizer && info.optimizer == state_.optimizer->name();
}

template <class T>
template <class Layout>
std::vector<io::StateGroup> Checkpointing<T>::moment_groups(const Parts& part, const Layout& layout) {
  const model::ParameterTable& table = state_.model.table();
  std::vector<io::StateGroup> groups;
  for (const optim::Moment<M>& moment : moments_) {
    if (moment.are_weights) continue;
    std::visit(
        [&]<class S>(const Vector<S>& values) {
          groups.push_back({moment.name, scalar_type_of<S>,
                            moment_tensors<S>(moment.tensors(table), layout(moment), values.data(), part),
                            moment.or_weights});
        },
        moment.values);
  }
  return groups;
}

template <class T>
void Checkpointing<T>::read_compression(io::CheckpointReader& reader) {
  const std::string& layout = reader.info().compression_layout;
  if (layout.empty() && persistent_.layout().empty()) return;
  if (layout != persistent_.layout()) {
    const auto said = [](const std::string& text) { return text.empty() ? "nothing" : text; };
    log_.warn("the error feedback of compressed gradients starts at zero: the checkpoint has {}, this run needs {}",
              said(layout), said(persistent_.layout()));
    return;
  }
  reader.read_compression(persistent_.tensors(), scalar_type_of<M>);
}

// The part of `layout` that this rank owns and writes: a shard group writes each element once.
template <class T>
nn::BufferLayout Checkpointing<T>::owned_part(const nn::BufferLayout& layout) const {
  return layout.common(model::owned_layout(state_.model.table(), state_.sharding));
}

template <class T>
template <class Write>
void Checkpointing<T>::with_contents(io::CheckpointState counters, const Write& write) {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  const Parts part = written_parts(grid_);
  const auto of_state = state_.weights_to_use();
  const auto parameters =
      state_tensors<M>(trained_table(state_.model.table()), owned_part(of_state ? of_state->layout : p.layouts.master),
                       of_state ? std::get<Vector<M>>(of_state->values).data() : p.master.data(), part);
  const nn::BufferLayout owned = model::owned_layout(state_.model.table(), state_.sharding);
  const auto moments = moment_groups(part, [&](const optim::Moment<M>& moment) { return moment.part_of(owned); });
  const auto carried = persistent_.tensors();
  counters.adam_step = state_.optimizer->steps();
  write({.parameters = parameters,
         .optimizer = state_.optimizer->name(),
         .moments = moments,
         .compression = carried,
         .compression_layout = persistent_.layout(),
         .master = scalar_type_of<M>,
         .state = counters,
         .model = config_.model,
         .tokenizer = tokenizer_,
         .data = data_,
         .deck = deck::canonical_deck(deck::whole_run(config_)),
         .bits = bits_class(config_),
         .hugging_face = hugging_face_,
         .adapters = adapters_,
         .provenance = provenance_});
}

template <class T>
SavedCheckpoint Checkpointing<T>::save(const io::CheckpointState& counters) {
  const double begin = wall_seconds();
  with_contents(counters, [&](const io::CheckpointContents& contents) { writer_.write(contents); });
  const double seconds = wall_seconds() - begin;
  return {counters.step, seconds, seconds};
}

template <class T>
std::optional<std::filesystem::path> Checkpointing<T>::copy(const io::CheckpointState& counters) {
  bool good = false;
  with_contents(counters, [&](const io::CheckpointContents& contents) { good = copies_->write(contents); });
  return good ? std::optional(copies_->folder_of(counters.step)) : std::nullopt;
}

template <class T>
void Checkpointing<T>::start(const io::CheckpointState& counters) {
  pending_since_ = wall_seconds();
  with_contents(counters, [&](const io::CheckpointContents& contents) { writer_.start(contents); });
  pending_ = {.step = counters.step, .waited = wall_seconds() - pending_since_};
}

template <class T>
void Checkpointing<T>::finish_copy() {
  const double begin = wall_seconds();
  writer_.finish_copy();
  pending_.waited += wall_seconds() - begin;
}

template <class T>
double Checkpointing<T>::seconds_under_way() const {
  return writer_.is_writing() ? wall_seconds() - pending_since_ : 0.0;
}

template <class T>
std::optional<SavedCheckpoint> Checkpointing<T>::advance() {
  const double begin = wall_seconds();
  const bool published = writer_.advance();
  pending_.waited += wall_seconds() - begin;
  pending_.taken = wall_seconds() - pending_since_;
  return published ? std::optional(pending_) : std::nullopt;
}

template <class T>
std::optional<SavedCheckpoint> Checkpointing<T>::finish() {
  const NotedRegion region("checkpoint");
  const double begin = wall_seconds();
  const bool published = writer_.finish();
  pending_.waited += wall_seconds() - begin;
  pending_.taken = wall_seconds() - pending_since_;
  return published ? std::optional(pending_) : std::nullopt;
}

#define NANOTRON_INSTANTIATE(T) \
  template std::size_t checkpoint_workspace(const deck::Config&, comm::ProcessGrid&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T) \
  template std::size_t neighbour_bytes(const deck::Config&, comm::ProcessGrid&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T) template void read_parameters(io::CheckpointReader&, model::Transformer<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_CLASS(Checkpointing)

}  // namespace nanotron::trainer
