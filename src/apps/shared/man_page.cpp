#include "command_line.hpp"

#include <fmt/format.h>

#include <cctype>
#include <sstream>

#include "nanotron/base/man_page.hpp"

namespace nanotron::apps {
namespace {

std::string synopsis(const CLI::App& app) {
  std::string required, positional;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      positional += fmt::format(" [{}]", man::italic(option->get_name()));
    } else if (option->get_required()) {
      required += fmt::format(" {} {}", man::bold(option->get_name()), man::italic(option->get_type_name()));
    }
  }
  return fmt::format(".SH SYNOPSIS\n{}{} [{}]...{}\n", man::bold(app.get_name()), required, man::italic("option"),
                     positional);
}

// Paragraphs of one line, and lines of "  word   meaning" as a list.
std::string notes(const Program& program) {
  std::string out;
  std::istringstream lines(program.notes);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      const std::size_t end = line.find(' ', 2);
      out += man::item(man::bold(line.substr(2, end - 2)), line.substr(line.find_first_not_of(' ', end)));
    } else {
      out += fmt::format(".PP\n{}\n", man::text(line));
    }
  }
  return out;
}

std::string options(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    std::string tag;
    for (const std::string& name : option->get_snames()) tag += (tag.empty() ? "" : ", ") + man::bold("-" + name);
    for (const std::string& name : option->get_lnames()) tag += (tag.empty() ? "" : ", ") + man::bold("--" + name);
    if (option->get_items_expected_max() > 0) tag += " " + man::italic(option->get_type_name());
    const std::string preset = option->get_default_str();
    out += man::item(tag, option->get_description() + (preset.empty() ? "" : fmt::format(" (default: {})", preset)));
  }
  return out;
}

}  // namespace

std::string man_page(const CLI::App& app, const Program& program) {
  std::string summary = program.summary;
  summary.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(summary.front())));
  std::string page =
      man::head(program.name, 1, summary) + synopsis(app) +
      fmt::format(".SH DESCRIPTION\n{}.\n{}.SH OPTIONS\n{}", man::text(program.summary), notes(program), options(app));
  if (!program.exit_codes.empty()) page += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : program.exit_codes) {
    page += man::item(man::bold(fmt::format("{}", static_cast<int>(code))), meaning);
  }
  page += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n.SH SEE ALSO\n", man::text(program.example));
  for (const char* other : {"nanotron_hpc", "nanotron_generate", "nanotron_bench", "nanotron_plan"}) {
    if (program.name != other) page += fmt::format(".BR {} (1),\n", other);
  }
  return page + ".BR nanotron_hpc (5)";
}

}  // namespace nanotron::apps
