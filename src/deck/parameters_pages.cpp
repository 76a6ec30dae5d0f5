// The parameter table as reference pages: doc/input_parameters.md and nanotron_hpc(5).
#include "nanotron/base/man_page.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/parameters.hpp"

namespace nanotron::deck {
namespace {

std::string type_word(const Parameter& p) {
  switch (p.type) {
    case ValueType::integer:
      return "integer";
    case ValueType::real:
      return "real";
    case ValueType::logical:
      return "logical";
    case ValueType::string:
      return "string";
  }
  return "";
}

std::string cell(std::string text) {  // '|' and '<' mean something in a Markdown table
  std::string out;
  for (char c : text) out += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

}  // namespace

std::string parameters_markdown() {
  std::string out =
      "# Input parameters\n\n"
      "<!-- Made by `nanotron_hpc --parameters-markdown`; edit src/deck/parameters.cpp instead. -->\n\n"
      "The deck is a Fortran namelist file: groups `&name ... /` of `key = value`, comments after `!`,\n"
      "names in any case. A wrong deck ends the run with exit code 78 and all of its mistakes.\n"
      "`nanotron_hpc --check deck` reads a deck and stops; `--set group.key=value` replaces a value;\n"
      "`--print-defaults` writes a deck of all keys. How this differs from a Fortran program's `read`\n"
      "is in [deck_differences.md](deck_differences.md).\n";
  std::string group;
  for (const Parameter& p : parameters()) {
    if (p.group != group) {
      out += "\n## &" + p.group + "\n\n| Key | Type | Default | Legal | Unit | Meaning |\n";
      out += "|---|---|---|---|---|---|\n";
      group = p.group;
    }
    const std::string standard = p.required ? "required" : "`" + spelled(p.get(Config{})) + "`";
    out += "| `" + p.name + "` | " + type_word(p) + " | " + cell(standard) + " | " + cell(legal_values(p)) + " | " +
           p.unit + " | " + cell(p.sentence) + " |\n";
  }
  return out;
}

std::string parameters_man() {
  std::string out = man::head("nanotron_hpc", 5, "the deck: groups and keys of the input of nanotron_hpc(1)");
  out += ".SH SYNOPSIS\n.nf\n&run\n  steps = 1000\n/\n&parallel\n  tp = 2\n/\n.fi\n.SH DESCRIPTION\n" +
         man::text(
             "The deck is a Fortran namelist file: groups '&name ... /' of 'key = value', comments after '!', names in "
             "any case. A wrong deck ends the run with exit code 78 and all of its mistakes. '--check' reads a deck "
             "and stops, '--set group.key=value' replaces a value, '--print-defaults' writes a deck of all keys.\n");
  std::string group;
  for (const Parameter& p : parameters()) {
    if (p.group != group) out += ".SH &" + p.group + "\n";
    group = p.group;
    std::string facts = type_word(p) + (p.required ? ", required" : ", default " + spelled(p.get(Config{})));
    if (const std::string legal = legal_values(p); !legal.empty()) facts += ", " + legal;
    if (!p.unit.empty()) facts += " [" + p.unit + "]";
    out += man::item(man::bold(p.name) + "  " + man::text(facts), p.sentence);
  }
  return out + ".SH SEE ALSO\n.BR nanotron_hpc (1)\n";
}

}  // namespace nanotron::deck
