#include "nanotron/nn/attention/heads.hpp"

#include <numeric>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::nn {
namespace {

HeadShard held(index_t query_heads, index_t key_heads, int shards, int parts, int index) {
  const index_t group = query_heads / key_heads;
  HeadShard heads{.group = group};
  if (key_heads >= shards) {
    heads.key = shard_range(key_heads, shards, parts, index);
    heads.query = {heads.key.begin * group, heads.key.end * group};
  } else {
    heads.query = shard_range(query_heads, shards, parts, index);
    heads.key = {heads.query.begin / group, (heads.query.end - 1) / group + 1};
  }
  return heads;
}

}  // namespace

HeadShard shard_heads(index_t query_heads, index_t key_heads, int shards, int parts, int index) {
  NANOTRON_REQUIRE(query_heads % key_heads == 0 && query_heads >= shards,
                   "{} query heads, {} key-value heads in {} shards", query_heads, key_heads, shards);
  HeadShard heads = held(query_heads, key_heads, shards, parts, index);
  heads.owned_key = heads.key;
  if (index > 0) {
    const Range below = held(query_heads, key_heads, shards, parts, index - 1).key;
    heads.owned_key.begin = std::min(std::max(heads.key.begin, below.end), heads.key.end);
  }
  return heads;
}

index_t heads_of_piece(index_t query_heads, index_t key_heads, int shards) {
  index_t piece = query_heads / key_heads;
  for (int shard = 0; shard < shards; ++shard)
    piece = std::gcd(piece, shard_heads(query_heads, key_heads, shards, shards, shard).query.size());
  return piece;
}

}  // namespace nanotron::nn
