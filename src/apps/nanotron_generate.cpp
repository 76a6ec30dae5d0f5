// Generates text from a checkpoint:
// mpirun -np 2 nanotron_generate --checkpoint run/checkpoints --prompt "int main("

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/model/generation/generation.hpp"
#include "nanotron/tensor/kokkos_session.hpp"
#include "nanotron/trainer/checkpoint/checkpointing.hpp"
#include "nanotron_generate/command_line.hpp"
#include "nanotron_generate/prompt.hpp"

namespace nanotron::apps {
namespace {

constexpr index_t max_by_default = 256;

struct Work {
  deck::ModelConfig model;
  model::GenerationRequest request;
  index_t samples = 1;
  index_t capacity = 0;
};

void check_ids(const deck::ModelConfig& model, const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < model.vocab_size) continue;
    fail(ExitCode::deck_error, {.what = "the prompt has a token outside of the model's vocabulary",
                                .expected = fmt::format("ids from 0 to {}", model.vocab_size - 1),
                                .found = fmt::format("{}", id)});
  }
}

// Tokens of prompt and continuation together, or 0 for any number: as asked for, else as in training; and no more than
// the model has learned positions for.
index_t context_of(const GenerateOptions& options, const deck::ModelConfig& model, index_t trained_length) {
  const index_t asked = options.context > 0 ? options.context : trained_length;
  if (!model.has_learned_positions()) return asked;
  if (options.context > model.max_position_embeddings) {
    fail(ExitCode::deck_error, {.what = "--context exceeds the learned positions of the model",
                                .expected = fmt::format("at most {}", model.max_position_embeddings),
                                .found = fmt::format("{}", options.context),
                                .change = "a smaller --context"});
  }
  return asked > 0 ? std::min(asked, model.max_position_embeddings) : model.max_position_embeddings;
}

std::string longer_context(const deck::ModelConfig& model, index_t tokens) {
  if (model.has_learned_positions() && tokens > model.max_position_embeddings) return "";
  return fmt::format("; --context {} to exceed the sequence length of training", tokens);
}

Work plan_work(const GenerateOptions& options, const deck::ModelConfig& model, const Prompt& prompt,
               index_t trained_length) {
  check_ids(model, prompt.ids);
  const auto given = static_cast<index_t>(prompt.ids.size());
  const index_t context = context_of(options, model, trained_length);
  const index_t room = context > 0 ? context - given : max_by_default;
  const index_t wanted = options.new_tokens > 0 ? options.new_tokens : std::clamp<index_t>(room, 1, max_by_default);
  if (context > 0 && wanted > room) {
    const char* const of_training = options.context > 0 ? "" : ", the length of the sequences in training";
    const std::string shorter = "a shorter prompt or a smaller --max-new-tokens";
    fail(ExitCode::deck_error,
         {.what = "prompt and continuation do not fit into the context",
          .expected = fmt::format("at most {} tokens{}", context, context == trained_length ? of_training : ""),
          .found = fmt::format("{} of the prompt and {} new ones", given, wanted),
          .change = options.context > 0 ? "a larger --context, " + shorter
                                        : shorter + longer_context(model, given + wanted)});
  }
  return {.model = model,
          .request = {.prompt = prompt.ids, .new_tokens = wanted, .sampling = options.sampling, .eos = prompt.eos},
          .samples = options.samples,
          .capacity = given + wanted};
}

struct Answer {
  std::vector<std::vector<std::int32_t>> samples;
  double seconds = 0.0;
};

template <class T>
Answer answer_as(const Work& work, io::CheckpointReader& reader, comm::Group& tp) {
  Timers timers;
  Device device(timers);
  const model::GenerationSetup setup{
      .model = work.model, .sequences = work.samples, .capacity = work.capacity, .tp = &tp};
  Arena planning = Arena::planning();
  static_cast<void>(model::Generator<T>(setup, device, planning));
  Arena arena(planning.plan());
  model::Generator<T> generator(setup, device, arena);
  trainer::read_parameters(reader, generator.transformer());
  generator.transformer().refresh_compute_weights();
  const double begin = wall_seconds();
  Answer answer{generator.generate(work.request)};
  answer.seconds = wall_seconds() - begin;
  return answer;
}

void print(const GenerateOptions& options, const Work& work, const Answer& answer, const Prompt& prompt) {
  std::size_t tokens = 0;
  for (std::size_t s = 0; s < answer.samples.size(); ++s) {
    const std::vector<std::int32_t>& ids = answer.samples[s];
    tokens += ids.size();
    if (options.ids || !prompt.tokens) {
      fmt::print("{}\n", fmt::join(ids, ","));
    } else {
      if (work.samples > 1) fmt::print("--- sample {}\n", s);
      fmt::print("{}{}\n", prompt.text, prompt.tokens->decode(ids));
    }
  }
  fmt::print(stderr, "{} tokens after a prompt of {} in {:.3f} s: {:.0f} tokens/s\n", tokens,
             work.request.prompt.size(), answer.seconds, static_cast<double>(tokens) / answer.seconds);
}

void check_ranks(const deck::ModelConfig& model, int ranks) {
  if (ranks <= model.num_attention_heads) return;
  fail(ExitCode::deck_error, {.what = "more ranks than attention heads",
                              .expected = fmt::format("at most {} ranks", model.num_attention_heads),
                              .found = fmt::format("{}", ranks),
                              .change = "mpirun -np with fewer ranks"});
}

// Reads the checkpoint, continues the prompt and prints the result. Collective over world.
void generate(const GenerateOptions& options, const comm::Communicator& world) {
  Log log(world.rank() == 0, world.rank());
  log.set_quiet(true);
  io::CheckpointReader reader = io::CheckpointReader::at(world.get(), options.checkpoint, "--checkpoint", log);
  const io::CheckpointInfo& info = reader.info();
  check_ranks(info.model, world.size());
  const TrainedWith trained = trained_with(info);
  const Prompt prompt = make_prompt(options, trained, world);
  const Work work = plan_work(options, info.model, prompt, trained.sequence_length);

  comm::Group tp(comm::Communicator::duplicate(world.get()), comm::choose_transport(deck::Backend::automatic, world));
  const Answer answer = with_scalar_type(options.compute.value_or(info.master), [&]<class T>(std::type_identity<T>) {
    return answer_as<T>(work, reader, tp);
  });
  if (world.rank() == 0) print(options, work, answer, prompt);
}

}  // namespace

}  // namespace nanotron::apps

int main(int argc, char** argv) {
  using namespace nanotron;
  comm::MpiSession mpi(argc, argv);
  return comm::run_guarded(mpi.world(), [&] {
    const comm::Communicator world = comm::Communicator::duplicate(mpi.world());
    const auto options = apps::parse_generate_options(argc, argv, world.rank() == 0);
    if (options) {
      const KokkosSession kokkos(comm::gpu_of_rank(world));
      apps::generate(*options, world);
    }
    return static_cast<int>(ExitCode::ok);
  });
}
