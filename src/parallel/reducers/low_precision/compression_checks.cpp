#include "nanotron/parallel/checks.hpp"

#include "nanotron/deck/checks/phrases.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/layout_checks.hpp"

namespace nanotron::parallel {

using namespace deck::phrases;

void check_compression(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.compression == deck::Compression::none) return;
  if (p.zero_stage > 0 && f.is_valid({"parallel.compression", "parallel.zero_stage"})) {
    f.error({"parallel.compression", "parallel.zero_stage"},
            "compression is for the gradient all-reduce, which zero_stage = " + text(p.zero_stage) + " does not have",
            "compression = 'none', or zero_stage = 0");
  }
  refuse_layout(c, f, "parallel.compression", "compression", "compression = 'none'");
}

}  // namespace nanotron::parallel
