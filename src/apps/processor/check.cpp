// Ends a program on a processor that it is not compiled for, before the first instruction that this one lacks would do
// so without a word. Compiled for the oldest processor; functions of headers that other sources use too must not be
// called, since the linker may take those of the others.
#ifdef __x86_64__
#include <unistd.h>

#include <cstdio>

#include "features.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::apps {
namespace {

// Before those of C++, which are compiled for the newer processor.
[[gnu::constructor(101)]] void check_processor() {
  __builtin_cpu_init();
  char missing[512] = "", host[256] = "";
  const bool* needed = built_for_feature;
#define NANOTRON_CHECK_FEATURE(name, macro) \
  if (*needed++ && !__builtin_cpu_supports(name)) std::strcat(missing, " " name);
  NANOTRON_PROCESSOR_FEATURES(NANOTRON_CHECK_FEATURE)
  if (missing[0] == '\0') return;
  gethostname(host, sizeof host - 1);
  std::fprintf(stderr,
               "error: %s is compiled for a newer processor\n"
               "  found:    a processor without%s\n"
               "  where:    %s\n"
               "  change:   build on a node like this one, or for both kinds: -DNANOTRON_ARCH=<the older processor>\n"
               "            or portable (doc/install.md)\n",
               program_invocation_short_name, missing, host);
  _exit(static_cast<int>(ExitCode::system_error));
}

}  // namespace
}  // namespace nanotron::apps
#endif
