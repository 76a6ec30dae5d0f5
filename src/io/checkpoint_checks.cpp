#include "nanotron/io/checkpoint_checks.hpp"

namespace nanotron::io {

void check_checkpoint(const deck::Config& c, deck::Findings& f) {
  if (c.checkpoint.resume.empty()) {
    f.error({"checkpoint.resume"}, "resume is empty", "'auto', 'none' or the path of a checkpoint");
  }
  if (c.checkpoint.every_minutes > 0.0 && c.checkpoint.node_mtbf > 0.0) {
    f.error({"checkpoint.node_mtbf", "checkpoint.every_minutes"},
            "node_mtbf chooses the minutes between checkpoints, which every_minutes gives", "one of the two");
  }
}

}  // namespace nanotron::io
