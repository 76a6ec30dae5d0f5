#include "command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "nanotron/base/provenance.hpp"
#include "nanotron/deck/namelist/suggestions.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::apps {
namespace {

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

// A hint for the first unexpected argument: a similar option of this program, or a key of the deck. Empty without one.
std::string meant_by(const CLI::App& app, const std::string& argument) {
  if (!argument.starts_with("-")) {
    const auto is_override = [](const std::string& word) { return word.find_first_of(".%") < word.find('='); };
    const CLI::Option* const deck = app.get_option_no_throw("deck");
    for (const std::string& word : {deck != nullptr && deck->count() > 0 ? deck->as<std::string>() : "", argument}) {
      if (word.find('=') != std::string::npos && is_override(word)) {
        return fmt::format("{0} needs a --set of its own: --set {0};", word);
      }
    }
    return "";
  }
  std::string name = argument.substr(0, argument.find('='));
  name.erase(0, name.find_first_not_of('-'));
  const std::vector<std::string> options = options_of(app);
  const bool overrides = std::find(options.begin(), options.end(), "set") != options.end();
  std::string near = deck::nearest_word(name, options);
  for (const auto& [theirs, ours] : {std::pair{"dry-run", "check"}, {"validate", "check"}}) {
    if (name == theirs && std::find(options.begin(), options.end(), ours) != options.end()) near = ours;
  }
  if (!near.empty()) return "did you mean --" + near + "?";
  if (!overrides || name.empty()) return "";
  std::replace(name.begin(), name.end(), '-', '_');
  const deck::Suggestion key = deck::suggest_key(name, "", deck::parameter_groups());
  if (key.key.empty()) return key.hint;
  return fmt::format("a key of the deck is given with --set {}.{}=...", key.group, key.key);
}

}  // namespace

std::string description(const Program& program) {
  std::string text = fmt::format("{}: {}\n{}", program.summary, program.example, program.notes);
  std::string line;
  for (const auto& [code, meaning] : program.exit_codes) {
    const std::string item = fmt::format("{} {}", static_cast<int>(code), meaning);
    if (line.empty() || line.size() + item.size() > 76) {
      text += line.empty() ? "Exit codes: " : line + ";\n";
      line = item;
    } else {
      line += "; " + item;
    }
  }
  return text + line + (line.empty() ? "" : ".");
}

bool parse(CLI::App& app, const Program& program, int argc, char** argv, bool is_writer) {
  for (const auto& [key, value] : build_provenance()) {
    if (key == "version") app.set_version_flag("--version", app.get_name() + " " + value, "print the version");
  }
  app.add_flag_callback(
      "--man", [&] { throw CLI::CallForVersion(man_page(app, program), 0); }, "print the manual page, for man");
  app.add_option_function<std::string>(
         "--completion", [&](const std::string& shell) { throw CLI::CallForVersion(completion(app, shell), 0); },
         "print a shell completion script for this program")
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh"}));
  const std::string see = fmt::format("see {} --help", app.get_name());
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (is_writer) std::cout << fitted(app.help());
    return false;
  } catch (const CLI::ValidationError& error) {
    throw Error(ExitCode::deck_error, fmt::format("error: {}\n  change:   {}", error.what(), see));
  } catch (const CLI::Success& text) {
    if (is_writer) app.exit(text);
    return false;
  } catch (const CLI::ParseError& error) {
    // Report a misspelt option before what is missing because of it.
    const std::vector<std::string> extra = app.remaining();
    if (extra.empty()) throw Error(ExitCode::deck_error, fmt::format("error: {}\n  change:   {}", error.what(), see));
    const bool option = extra.front().starts_with("-");
    const std::string meant = meant_by(app, extra.front());
    fail(ExitCode::deck_error, {.what = fmt::format("{} {} was not expected", option ? "the option" : "the argument",
                                                    deck::quoted(extra.front())),
                                .change = meant.empty() ? see : fmt::format("{} {}", meant, see)});
  }
  return true;
}

}  // namespace nanotron::apps
