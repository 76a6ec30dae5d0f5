// ranks: 1
// A random mask of attention's probabilities.
#include "unit/kernels/attention/attention_check.hpp"

namespace nanotron::test {
namespace {

TYPED_TEST_SUITE(Attention, ScalarTypes);

// A random mask of the probabilities: whole sequences with documents and a window, mapped scores, a shard that cuts a
// group, pieces of a sequence.
TYPED_TEST(Attention, RandomMask) {
  const index_t length = 211;
  const auto starts = document_starts(length);
  kernels::RandomMask mask = kernels::random_mask(0.3, kernels::MaskSite::probabilities, 2, 17);
  mask.samples = {.first = 40, .at_once = 1, .shards = 3, .shard = 1, .before = 2};
  for (const Way way : ways<TypeParam>) {
    SCOPED_TRACE(static_cast<int>(way));
    AttentionShape s = shape_of(2, length, length, 4, 2, 32);
    s.first_query_head = 2, s.first_key_head = 1;
    s.mask = mask;
    this->check(s, way);
    s.window = 50;
    this->check(s, way, &starts);
    s.scores = {.scale = 0.3, .cap = 2.0, .alibi_heads = 6};
    this->check(s, way, &starts);
    AttentionShape cut = shape_of(2, 150, 150, 3, 2, 16);
    cut.group = 2, cut.first_query_head = 3, cut.first_key_head = 1;
    cut.mask = mask;
    this->check(cut, way);
    AttentionShape pieces = shape_of(2, 130, 201, 2, 1, 24);
    pieces.query_rows = 140;
    pieces.key_rows = 210;
    pieces.query_position = 150;
    pieces.key_position = 90;
    pieces.mask = mask;
    this->check(pieces, way);
  }
}

}  // namespace
}  // namespace nanotron::test
