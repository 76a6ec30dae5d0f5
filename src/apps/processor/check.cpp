// Ends a program on a processor that it is not compiled for, before the first instruction that this one lacks would do
// so without a word. Compiled for the oldest processor; functions of headers that other sources use too must not be
// called, since the linker may take those of the others.
#if defined(__x86_64__) || defined(__aarch64__)
#include <unistd.h>
#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdio>

#include "features.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::apps {
namespace {

#ifdef __aarch64__
struct Capability {
  const char* name;
  unsigned long vector, bits;
};
constexpr Capability capabilities[] = {{"atomics", AT_HWCAP, HWCAP_ATOMICS}, {"asimdrdm", AT_HWCAP, HWCAP_ASIMDRDM},
                                       {"asimddp", AT_HWCAP, HWCAP_ASIMDDP}, {"asimdhp", AT_HWCAP, HWCAP_ASIMDHP},
                                       {"bf16", AT_HWCAP2, HWCAP2_BF16},     {"i8mm", AT_HWCAP2, HWCAP2_I8MM},
                                       {"sve", AT_HWCAP, HWCAP_SVE},         {"sve2", AT_HWCAP2, HWCAP2_SVE2}};

bool processor_has(const char* feature) {
  for (const Capability& c : capabilities) {
    if (std::strcmp(c.name, feature) == 0) return (getauxval(c.vector) & c.bits) != 0;
  }
  return false;
}
#else
#define processor_has __builtin_cpu_supports
#endif

// Before those of C++, which are compiled for the newer processor.
[[gnu::constructor(101)]] void check_processor() {
#ifdef __x86_64__
  __builtin_cpu_init();
#endif
  char missing[512] = "", host[256] = "";
  const bool* needed = built_for_feature;
#define NANOTRON_CHECK_FEATURE(name, macro) \
  if (*needed++ && !processor_has(name)) std::strcat(missing, " " name);
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
