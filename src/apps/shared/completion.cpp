#include "command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::apps {
namespace {

// `text` with every `mark` replaced.
std::string filled(std::string text, const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [mark, value] : values) {
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + value.size())) {
      text.replace(at, mark.size(), value);
    }
  }
  return text;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

// The words of "SOMETHING:{a,b,c}", separated by spaces; empty for other types.
std::string legal_values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return filled(type.substr(begin + 1, end - begin - 1), {{",", " "}});
}

std::string groups() {
  std::vector<std::string> names;
  for (const deck::NamelistGroup& group : deck::parameter_groups()) names.push_back(group.name);
  return joined(names, " ");
}

std::string keys() {
  std::vector<std::string> names;
  for (const deck::Parameter& p : deck::parameters()) names.push_back(p.group + "." + p.name);
  return joined(names, " ");
}

// Branches of a shell's case over keys of the deck that have a few legal values: `row` with @KEY@ and @VALUES@.
std::string branches_of_keys(const std::string& row) {
  std::string out;
  for (const deck::Parameter& p : deck::parameters()) {
    const bool logical = p.type == deck::ValueType::logical;
    if (p.legal_values.empty() && !logical) continue;
    out += filled(row, {{"@KEY@", p.group + "." + p.name},
                        {"@VALUES@", logical ? ".true. .false." : joined(p.legal_values, " ")}});
  }
  return out;
}

// `head` is what stands before the part of the word that is completed.
constexpr const char* bash_script = R"script(# shellcheck shell=bash
# Completion of @NAME@ for bash; made by `@NAME@ --completion bash`.
_@NAME@() {
  local line="${COMP_LINE:0:COMP_POINT}" whole word option="" list="" files="" head="" before=()
  whole="${line##*[[:space:]]}" word="$whole"
  read -ra before <<< "${line%"$whole"}"
  if [[ $whole == --*=* ]]; then
    option="${whole%%=*}" head="${whole%%=*}=" word="${whole#*=}"
  elif [ "${#before[@]}" -gt 1 ]; then
    option="${before[-1]}"
  fi
  case "$option" in
@OPTIONS@    *)
      if [[ $word == -* ]]; then list="@NAMES@"; else files="@POSITIONAL@"; fi ;;
  esac
  if [ "$files" = deck ]; then
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen -d -P "$head" -- "$word"; compgen -f -X '!*.deck' -P "$head" -- "$word"
      compgen -f -X '!*.nml' -P "$head" -- "$word")
  elif [ -n "$files" ]; then
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen "$files" -P "$head" -- "$word")
  else
    head+="${word%"${word##*,}"}" word="${word##*,}"
    mapfile -t COMPREPLY < <(compgen -P "$head" -W "$list" -- "$word")
  fi
  # bash takes '=' for the end of a word, and inserts what follows it.
  if [[ $whole == *=* && $COMP_WORDBREAKS == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${whole%=*}="}"); fi
}
complete -F _@NAME@ @NAME@
)script";

constexpr const char* bash_overrides = R"script(
      if [[ $word == *=* ]]; then
        case "${word%%=*}" in
@KEYS@        esac
        head+="${word%%=*}=" word="${word#*=}"
      else
        list="@ALL@" && compopt -o nospace 2> /dev/null
      fi)script";

std::string bash_action(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == file_value) return " files=-f";
  if (type == folder_value) return " files=-d";
  if (type == deck_value) return " files=deck";
  if (type == group_value) return fmt::format(" list=\"{}\"", groups());
  if (type == override_value) {
    const std::string all = filled(keys() + " ", {{" ", "= "}});
    return filled(bash_overrides,
                  {{"@KEYS@", branches_of_keys("          @KEY@) list=\"@VALUES@\" ;;\n")}, {"@ALL@", all}});
  }
  return fmt::format(" list=\"{}\"", legal_values_of(option));
}

std::string bash(const CLI::App& app) {
  std::string options, positional;
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) positional = option->get_type_name() == deck_value ? "deck" : "-f";
    for (const std::string& name : names_of(*option)) names.push_back(name);
    if (option->get_positional() || option->get_items_expected_max() == 0) continue;
    options += fmt::format("    {}){} ;;\n", joined(names_of(*option), " | "), bash_action(*option));
  }
  return filled(bash_script, {{"@OPTIONS@", options},
                              {"@POSITIONAL@", positional},
                              {"@NAMES@", joined(names, " ")},
                              {"@NAME@", app.get_name()}});
}

constexpr const char* zsh_script = R"script(#compdef @NAME@
# Completion of @NAME@ for zsh; made by `@NAME@ --completion zsh`.
_@NAME@_set() {
  local -a values
  if compset -P '*='; then
    case "${IPREFIX%=}" in
@KEYS@    esac
    compadd -a values
  else
    values=(@ALL@)
    compadd -S '=' -q -a values
  fi
}

_@NAME@() {
  _arguments -s -S@OPTIONS@
}

_@NAME@ "$@"
)script";

std::string zsh_action(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == file_value) return "_files";
  if (type == folder_value) return "_files -/";
  if (type == deck_value) return "_files -g \"*.(deck|nml)\"";
  if (type == group_value) return fmt::format("({})", groups());
  const std::string legal_values = legal_values_of(option);
  if (legal_values.empty()) return " ";
  return option.get_delimiter() == '\0' ? fmt::format("({})", legal_values) : "_values -s , value " + legal_values;
}

std::string zsh(const CLI::App& app) {
  std::string options;
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string> names = names_of(*option);
    const std::string type = option->get_type_name();
    std::string value;
    if (option->get_items_expected_max() > 0) {
      const std::string optional = option->get_items_expected_min() == 0 ? "::" : ":";
      value = optional + "value:" + (type == override_value ? "_" + app.get_name() + "_set" : zsh_action(*option));
    }
    const std::string says =
        filled(option->get_description(), {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
    if (option->get_positional()) options += fmt::format(" \\\n    '{}'", value);
    for (const std::string& name : names) {
      const std::string others = type == override_value ? "*" : fmt::format("({})", joined(names, " "));
      const bool equals = name.starts_with("--") && value.starts_with(":") && !value.starts_with("::");
      options += fmt::format(" \\\n    '{}{}{}[{}]{}'", others, name, equals ? "=" : "", says, value);
    }
  }
  const std::string branches = branches_of_keys("      *@KEY@) values=(@VALUES@) ;;\n");
  return filled(zsh_script,
                {{"@KEYS@", branches}, {"@ALL@", keys()}, {"@OPTIONS@", options}, {"@NAME@", app.get_name()}});
}

}  // namespace

std::string completion(const CLI::App& app, const std::string& shell) {
  std::string script = shell == "bash" ? bash(app) : zsh(app);
  script.pop_back();  // the program ends what it prints by a new line
  return script;
}

}  // namespace nanotron::apps
