#include "nanotron/nn/attention/heads.hpp"

#include "nanotron/base/error.hpp"

namespace nanotron::nn {
namespace {

HeadShard held(index_t query_heads, index_t key_heads, int parts, int index) {
  const index_t group = query_heads / key_heads;
  HeadShard heads{.group = group};
  if (key_heads >= parts) {
    heads.key = shard_range(key_heads, parts, index);
    heads.query = {heads.key.begin * group, heads.key.end * group};
  } else {
    heads.query = shard_range(query_heads, parts, index);
    heads.key = {heads.query.begin / group, (heads.query.end - 1) / group + 1};
  }
  return heads;
}

}  // namespace

HeadShard shard_heads(index_t query_heads, index_t key_heads, int parts, int index) {
  NANOTRON_REQUIRE(query_heads % key_heads == 0 && query_heads >= parts,
                   "{} query heads, {} key-value heads over {} ranks", query_heads, key_heads, parts);
  HeadShard heads = held(query_heads, key_heads, parts, index);
  heads.owned_key = heads.key;
  if (index > 0) {
    const Range below = held(query_heads, key_heads, parts, index - 1).key;
    heads.owned_key.begin = std::min(std::max(heads.key.begin, below.end), heads.key.end);
  }
  return heads;
}

}  // namespace nanotron::nn
