// metrics.h5 that a run finds as it resumes: opened, or moved aside with a warning; no bytes keep the run from
// starting. Where two pieces of the file share bytes, which HDF5 allows, a later row may damage another: data_error.
#include <array>
#include <optional>

#include "fuzz.hpp"
#include "nanotron/io/metrics/metrics_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nanotron;
  static const fuzz::Folder folder;
  static const io::MetricsStart start{.provenance = {{"program", "fuzz"}},
                                      .deck = "&run /\n",
                                      .title = "fuzz",
                                      .validation_sets = {"a"},
                                      .sample_cursor = 6,
                                      .keeps_starts = true,
                                      .lineage = {{"hosts", "1"}}};
  std::filesystem::create_directories(folder.path());
  const auto path = fuzz::write(folder / "metrics.h5", {reinterpret_cast<const char*>(data), size});
  Log silent(false);
  for (const std::int64_t resumed : {3, 0}) {
    if (resumed == 0 && size % 2 == 0) break;  // slow: moves the file aside, and takes its starts over
    std::optional<io::MetricsFile> metrics;
    fuzz::ends_well({}, [&] { metrics.emplace(path, resumed, start, silent); });
    fuzz::ends_well({ExitCode::data_error}, [&] {
      metrics->append({.step = resumed + 1, .loss = 1.0});
      metrics->append_validation(resumed + 1, std::array{2.0});
      metrics->append_bad_step({.step = resumed + 2, .first_sample = 8, .samples = 2});
      metrics->append_checkpoint(resumed + 1, 1.0);
      metrics->update_start({.last_step = resumed + 1});
      metrics->flush();
      metrics->drop_after(resumed);
    });
  }
  folder.empty();
  return 0;
}
