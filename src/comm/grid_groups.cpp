#include "nanotron/comm/grid_groups.hpp"

namespace nanotron::comm {

bool has_group(const GridShape& shape, GroupKind kind) {
  const bool is_of_experts =
      kind == GroupKind::expert_data || kind == GroupKind::expert_shard || kind == GroupKind::expert_replicate;
  return kind != GroupKind::world && (shape.ep > 1 || !is_of_experts);
}

bool has_bulk_channel(const GridShape& shape, const GridCoordinate& at, GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return false;
    case GroupKind::replicate:
    case GroupKind::expert_replicate:
      return shape.shards > 1;
    case GroupKind::ep:
      return shape.ep > 1;
    case GroupKind::ep_across:
    case GroupKind::ep_within:
      return shape.has_parts_of_ep();
    case GroupKind::cp_all_to_all:
    case GroupKind::cp_ring:
      return shape.has_parts_of_cp();
    case GroupKind::embedding:
      return has_embedding_group(shape, at);
    default:
      return true;
  }
}

bool has_embedding_group(const GridShape& shape, const GridCoordinate& at) {
  return shape.ties_embedding && shape.pp > 1 && (at.pp == 0 || at.pp == shape.pp - 1);
}

}  // namespace nanotron::comm
