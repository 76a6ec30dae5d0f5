// The keys of &output.
#include "nanotron/deck/keys/output.hpp"

#include "rows.hpp"

#define GROUP_NAME "output"
#define GROUP(c) (c).output

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> output_rows() {
  return {
    ENUM(console, {"progress", Console::progress}, {"quiet", Console::quiet}).says(
        "Console output: progress lines, or only warnings and the summary."),
    KEY(metrics_every).at_least(1).at_most(1e12).in("steps").says("Steps between rows of metrics.h5."),
    KEY(timers).says("Whether to print the time of each part of a step at the end."),
    KEY(peak_tflops).at_least(0).at_most(1e9).in("TFLOP/s").says(
        "Stated peak of a rank's device for GEMMs in the compute type, which mfu is measured against; 0: that of the "
        "data sheet for the GPUs that the program knows, on other devices mfu is not a number (NaN)."),
    KEY(blend_rows).at_least(0).at_most(1e9).in("files").says(
        "Rows of the table of a blend at the start and of --plan: the files with the most samples; 0: all files."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
