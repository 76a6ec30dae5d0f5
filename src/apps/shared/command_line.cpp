#include "shared/command_line.hpp"

#include <fmt/core.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/provenance.hpp"

namespace nanotron::apps {

bool parse(CLI::App& app, int argc, char** argv, bool speaks) {
  for (const auto& [key, value] : build_provenance()) {
    if (key == "version") app.set_version_flag("--version", app.get_name() + " " + value, "print the version");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& text) {
    if (speaks) app.exit(text);
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(ExitCode::deck_error,
                fmt::format("error: {}\n  change:   see {} --help", error.what(), app.get_name()));
  }
  return true;
}

}  // namespace nanotron::apps
