#include "nanotron/io/checkpoint_checks.hpp"

#include <fmt/format.h>

namespace nanotron::io {
namespace {

// Open MPI 4.1 ends the process where the name of a file of MPI-IO has more than 244 bytes, of which
// `/step_<13 digits>.partial/checkpoint.h5` takes 41.
constexpr std::size_t longest_directory = 200;

}  // namespace

void check_checkpoint(const deck::Config& c, deck::Findings& f) {
  if (c.checkpoint.resume.empty()) {
    f.error({"checkpoint.resume"}, "resume is empty", "'auto', 'none' or the path of a checkpoint");
  }
  const std::size_t length = deck::checkpoint_directory(c).size();
  if (length > longest_directory && f.trusted({"run.output_dir", "checkpoint.directory"})) {
    f.error({"checkpoint.directory", "run.output_dir"},
            fmt::format("the folder of checkpoints has a name of {} bytes", length),
            fmt::format("at most {}, which is what MPI-IO takes", longest_directory),
            "a shorter path, one relative to where the run is started, or a symbolic link");
  }
}

}  // namespace nanotron::io
