#include "command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>

#include "../shared/command_line.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::apps::bench {
namespace {

const Program program{
    .name = "nanotron_bench",
    .summary = "Measures the speed of a deck on this machine against the speed of the hardware",
    .example = "mpirun -np 2 nanotron_bench --deck input/llama_30m.deck --set parallel.tp=2",
    .notes =
        "  gemm         GEMM rate: square matrices and the deck's own shapes\n"
        "  kernels      every other kernel, next to a copy of as many bytes\n"
        "  collectives  algbw and busbw (as nccl-tests define them) of the tp and dp groups\n"
        "  overlap      GEMMs overlapped with all-gather and reduce-scatter, as with tp_mode = 'reduce_scatter'\n"
        "  pipeline     bubbles of the pipeline schedules over all ranks, with delays instead of computation\n"
        "  data         reading tokens, with hashes of blocks of several sizes and without\n"
        "  step         training steps: share of the GEMM rate, where the time goes, communication\n"
        "All ranks work at once. Tokens are synthetic; a token file is opened only where the deck does not set "
        "model%vocab_size.\n",
    .exit_codes = {}};

constexpr const char* default_deck = "input/llama_30m.deck";

// Looks in the working directory, in the data of the installation, and in the folders above the program (the source
// tree of a build).
std::string find_default_deck() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (fs::exists(default_deck, ignored)) return default_deck;
  const fs::path installed = program.parent_path() / NANOTRON_DATA_FROM_BIN / default_deck;
  if (fs::exists(installed, ignored)) return installed.lexically_normal();
  for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / default_deck, ignored)) return folder / default_deck;
  }
  fail(ExitCode::deck_error, {.what = "no deck to measure",
                              .expected = fmt::format("{} in this folder, in {} next to {}, or in a folder above it",
                                                      default_deck, NANOTRON_DATA_FROM_BIN, program.string()),
                              .change = "give one: --deck input.deck"});
}

// The values of precision%compute.
CLI::Validator compute_type() {
  const deck::Parameter& row = deck::parameter("precision", "compute");
  std::map<std::string, ScalarType> types;
  for (const std::string& value : row.legal_values) {
    deck::Config config;
    row.set(config, deck::Scalar(value));
    types.emplace(value, config.precision.compute);
  }
  return CLI::CheckedTransformer(types).description(fmt::format("{{{}}}", fmt::join(row.legal_values, ",")));
}

void add_options(CLI::App& app, Options& o) {
  app.add_option("--deck", o.deck, "the deck that is measured")
      ->type_name(deck_value)
      ->default_str(fmt::format("{} of the installation or the source tree", default_deck));
  app.add_option("--set", o.overrides, "overrides the deck; may be repeated")
      ->type_name(override_value)
      ->check(assignment())
      ->allow_extra_args(false);
  app.add_option("--only", o.only, "what to measure, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"gemm", "kernels", "collectives", "overlap", "pipeline", "data", "step"}));
  app.add_option("--types", o.types, "compute types, separated by commas and measured in turn (default: the deck's)")
      ->delimiter(',')
      ->transform(compute_type());
  app.add_option("--rounds", o.rounds, "how often the GEMM rate and the steps are measured in turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", o.steps, "training steps per round")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", o.seconds, "per measurement of a kernel or collective")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", o.json, "also write the measurements to this file")->type_name(file_value);
  app.add_option("--gemm-algorithms", o.gemm_algorithms,
                 "GPUs only, and nothing else: run a step of the deck in each type, measure the library's candidates "
                 "for each GEMM and write the fastest to this file, for run%gemm_algorithms")
      ->type_name(file_value);
  app.add_option("--machine", o.machine,
                 "nothing else: measure GEMMs, kernels and collectives of these ranks and write them to this file, for "
                 "nanotron_hpc --plan --machine and nanotron_plan")
      ->type_name(file_value);
}

}  // namespace

std::optional<Options> parse_command_line(int argc, char** argv, bool is_writer) {
  Options options;
  CLI::App app(description(program), program.name);
  add_options(app, options);
  std::string name = program.name, help = "--help";
  char* asks[] = {name.data(), help.data()};
  const bool says_nothing = argc < 2;
  if (!parse(app, program, says_nothing ? 2 : argc, says_nothing ? asks : argv, is_writer)) return std::nullopt;
  if (options.deck.empty()) options.deck = find_default_deck();
  return options;
}

}  // namespace nanotron::apps::bench
