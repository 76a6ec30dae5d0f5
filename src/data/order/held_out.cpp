#include "nanotron/data/order/held_out.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

constexpr index_t max_pieces = 256;

// The r with floor(r n / pieces) <= i < floor((r+1) n / pieces).
index_t piece_of(index_t i, index_t n, index_t pieces) { return ((i + 1) * pieces - 1) / n; }

}  // namespace

HeldOut::HeldOut(index_t all, index_t held_out)
    : training_(all - held_out), held_out_(held_out), pieces_(std::min(held_out, max_pieces)) {
  NANOTRON_REQUIRE(held_out >= 0 && training_ >= 0 && all <= (index_t{1} << 54), "{} of {} sequences", held_out, all);
}

index_t HeldOut::training(index_t k) const {
  return held_out_ == 0 ? k : k + piece_of(k, training_, pieces_) * held_out_ / pieces_;
}

index_t HeldOut::validation(index_t v) const { return v + (piece_of(v, held_out_, pieces_) + 1) * training_ / pieces_; }

}  // namespace nanotron::data
