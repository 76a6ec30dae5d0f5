#include "command_line.hpp"

#include <algorithm>

#include "../shared/command_line.hpp"

namespace nanotron::apps::plan {
namespace {

const Program program{
    .name = "nanotron_plan",
    .summary = "Finds the grids and options that train a deck fastest on a machine, without running it",
    .example = "nanotron_plan --ranks 512 --machine input/machines/h100.nml input/llama3_8b.deck",
    .notes =
        "Each grid is simulated: the program's own list of kernels, collectives and pipeline messages, on the machine "
        "of the file. One grid in detail: nanotron_hpc --plan --machine FILE DECK.\n",
    .exit_codes = {
        {ExitCode::ok, "finished"},
        {ExitCode::data_error, "the mean error of --validate is above its bound"},
        {ExitCode::deck_error, "the deck, the machine's file or the command line is wrong, or nothing fits"}}};

void check(const Options& o) {
  const char* expected = nullptr;
  const bool has_target = o.tokens > 0.0 && o.days > 0.0;
  if (o.validate.empty() && (o.deck.empty() || (o.ranks == 0 && !has_target)))
    expected = "--ranks N and a deck, --tokens N --days N and a deck, or --validate FILE";
  if ((o.tokens > 0.0) != (o.days > 0.0) || (has_target && o.ranks > 0))
    expected = "--tokens with --days, without --ranks";
  if (!o.csv.empty() && !o.validate.empty()) expected = "--csv without --validate";
  if (o.machines.size() != std::max<std::size_t>(1, o.validate.size()))
    expected = "one --machine, of --validate one each";
  if (expected == nullptr) return;
  fail(ExitCode::deck_error, {.what = "nothing to plan", .expected = expected, .change = "see nanotron_plan --help"});
}

}  // namespace

std::optional<Options> parse_command_line(int argc, char** argv, bool is_writer) {
  Options o;
  CLI::App app(description(program), program.name);
  app.add_option("--machine", o.machines,
                 "namelist file of the machine: from input/machines, or written by nanotron_bench --machine")
      ->type_name(file_value)
      ->required()
      ->allow_extra_args(false);
  app.add_option("--ranks", o.ranks, "number of ranks: GPUs, or processes on hosts")->check(CLI::Range(1, 1 << 20));
  app.add_option("--tokens", o.tokens, "instead of --ranks, with --days: the fewest nodes that train so many tokens")
      ->check(CLI::PositiveNumber);
  app.add_option("--days", o.days, "days of training that --tokens may take")->check(CLI::PositiveNumber);
  app.add_option(
         "--csv", o.csv,
         "write the table of grids, or the sizes that --tokens looked at, into this file: for nanotron-plot --sizes")
      ->type_name(file_value);
  app.add_option("--set", o.overrides, "overrides the deck; may be repeated")
      ->type_name(override_value)
      ->check(assignment())
      ->allow_extra_args(false);
  app.add_option("--write", o.write, "write the decks of the table into this folder: grid_01.deck is the fastest")
      ->type_name(folder_value);
  app.add_option(
         "--validate", o.validate,
         "instead of a search: compare with a table of published runs (CSV); may be repeated, with a --machine each")
      ->type_name(file_value)
      ->allow_extra_args(false);
  app.add_option("--max-error", o.max_error, "mean error in % above which --validate fails")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("deck", o.deck, "the input deck (a Fortran namelist file)")->type_name(deck_value);
  if (!parse(app, program, argc, argv, is_writer)) return std::nullopt;
  check(o);
  return o;
}

}  // namespace nanotron::apps::plan
