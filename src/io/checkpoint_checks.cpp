#include "nanotron/io/checkpoint_checks.hpp"

namespace nanotron::io {

void check_checkpoint(const deck::Config& c, deck::Findings& f) {
  if (c.checkpoint.resume.empty()) {
    f.error({"checkpoint.resume"}, "resume is empty", "'auto', 'none' or the path of a checkpoint");
  }
}

}  // namespace nanotron::io
