#include "command_line.hpp"

#include <fmt/core.h>

#include "../shared/command_line.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/deck/namelist/suggestions.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::apps {
namespace {

const Program program{.name = "nanotron_hpc",
                      .summary = "Trains a transformer on an MPI machine",
                      .example = "srun --mpi=pmix --kill-on-bad-exit=1 nanotron_hpc input.deck",
                      .notes = "",
                      .exit_codes = {{ExitCode::ok, "finished"},
                                     {ExitCode::stopped_early, "stopped early, run the same command again"},
                                     {ExitCode::deck_error, "the deck or command line is wrong"},
                                     {ExitCode::data_error, "data or checkpoint damaged"},
                                     {ExitCode::numerics_error, "more bad steps than run%max_nonfinite_steps"},
                                     {ExitCode::system_error, "the system failed"}}};

// The help of `topic`: a group of the deck, as "group" or "&group". All help without a topic, or for a word that
// resembles no group or key (such as the name of a deck).
std::string help_text(const CLI::App& app, std::string topic) {
  if (topic.empty()) return fitted(app.help());
  if (topic.front() == '&') topic.erase(0, 1);
  topic = deck::to_lower(topic);
  std::string names;
  for (const deck::NamelistGroup& group : deck::parameter_groups()) {
    if (group.name == topic) return fitted(deck::group_help(topic));
    names += (names.empty() ? "" : ", ") + group.name;
  }
  const std::string near = deck::suggest_group(topic, deck::parameter_groups());
  const deck::Suggestion key = deck::suggest_key(topic, "", deck::parameter_groups());
  if (near.empty() && key.key.empty()) return fitted(app.help());
  fail(ExitCode::deck_error, {.what = "--help: unknown group " + deck::quoted(topic),
                              .expected = "one of " + names,
                              .change = near.empty() ? "--help " + key.group + " has the key " + key.key
                                                     : "did you mean --help " + near + "?"});
}

// --evaluate and what belongs to it.
void add_evaluation(CLI::App& app, CommandLine& line, bool& evaluate, const std::vector<CLI::Option*>& excluded) {
  CLI::Option* const evaluates =
      app.add_flag("--evaluate", evaluate,
                   "print loss and perplexity of the deck's validation sets with the weights of checkpoint%resume; "
                   "write nothing");
  CLI::Option* const choices =
      app.add_option("--choices", line.choices,
                     "with --evaluate: print the accuracy on the multiple-choice questions of this file of "
                     "nanotron-choices instead")
          ->type_name(file_value)
          ->needs(evaluates);
  app.add_option("--results", line.results, "with --choices: write the log-likelihoods of each question, as JSON lines")
      ->type_name(file_value)
      ->needs(choices);
  for (CLI::Option* const other : excluded) evaluates->excludes(other);
}

// --plan and what belongs to it.
CLI::Option* add_planning(CLI::App& app, CommandLine& line, bool& plan) {
  CLI::Option* const plans =
      app.add_flag("--plan", plan, "print sizes, FLOPs and memory of the deck, without running it");
  app.add_option("--machine", line.machine, "with --plan: also the time of a step on the machine of this namelist file")
      ->type_name(file_value);
  app.add_option("--ranks", line.ranks,
                 "with --plan: for this number of ranks, to which degrees of 0 are fitted; also messages, bytes, "
                 "memory and files of the start")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(plans);
  return plans;
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, char** argv, bool is_writer) {
  CommandLine line;
  CLI::App app(description(program), program.name);
  app.set_help_flag();
  std::string topic;
  const CLI::Option* const help =
      app.add_option("-h,--help", topic, "print this and every key of the deck, or the keys of one group")
          ->type_name(group_value)
          ->expected(0, 1);
  bool check = false, plan = false, evaluate = false, build = false, defaults = false, markdown = false, python = false,
       man = false;
  CLI::Option* const checks =
      app.add_flag("--check", check, "check the deck, its grid and, if present, its data; write nothing");
  CLI::Option* const plans = add_planning(app, line, plan);
  add_evaluation(app, line, evaluate, {checks, plans});
  app.add_option("--set", line.overrides, "overrides the deck; may be repeated")
      ->type_name(override_value)
      ->check(assignment())
      ->allow_extra_args(false);
  app.add_option(
         "--status", line.status,
         "keep the state of the run in this file: state (starting, running, finished, stopped, or held: stopped "
         "by the file STOP), step and newest checkpoint; the job scripts read it")
      ->type_name(file_value);
  app.add_flag("--build-info", build, "print how the program was built");
  app.add_flag("--print-defaults", defaults, "print a deck with every parameter at its default");
  app.add_flag("--parameters-markdown", markdown, "print doc/input_parameters.md");
  app.add_flag("--parameters-python", python, "print tools/nanotron_tools/model_keys.py");
  app.add_flag("--parameters-man", man, "print nanotron_hpc(5), the manual page of the deck");
  app.add_option("deck", line.deck, "the input deck (a Fortran namelist file)")->type_name(deck_value);
  app.footer("\n" + deck::parameters_help());
  if (!parse(app, program, argc, argv, is_writer)) return std::nullopt;
  const auto say = [&](const std::string& text) -> std::optional<CommandLine> {
    if (is_writer) fmt::print("{}", text);
    return std::nullopt;
  };
  if (help->count() > 0) return say(help_text(app, topic));
  if (build) return say(to_text(build_provenance()));
  if (defaults) return say(deck::default_deck());
  if (markdown) return say(deck::parameters_markdown());
  if (python) return say(deck::parameters_python());
  if (man) return say(deck::parameters_man());
  if (line.deck.empty()) {
    fail(ExitCode::deck_error, {.what = "no input deck given",
                                .expected = "nanotron_hpc [options] input.deck",
                                .change = "see nanotron_hpc --help, or start from --print-defaults"});
  }
  if (!line.machine.empty() && !plan) {
    fail(ExitCode::deck_error,
         {.what = "--machine needs --plan", .change = "nanotron_hpc --plan --machine FILE input.deck"});
  }
  line.action = plan ? Action::plan : check ? Action::check : evaluate ? Action::evaluate : Action::train;
  return line;
}

}  // namespace nanotron::apps
