#include "nanotron/nn/attention/attention.hpp"

#include "nanotron/base/types.hpp"

namespace nanotron::nn {

template <class T>
kernels::AttentionShape AttentionGeometry<T>::shape(index_t batch, index_t query_length, index_t key_length) const {
  return {.batch = batch,
          .query_length = query_length,
          .key_length = key_length,
          .query_heads = heads.query.size(),
          .key_heads = heads.key.size(),
          .head_dim = head_dim,
          .first_query_head = heads.query.begin,
          .first_key_head = heads.key.begin,
          .group = heads.group,
          .query_position = key_length - query_length,
          .document_stride = document_stride,
          .window = window,
          .backward = backward,
          .scores = scores,
          .mask = mask};
}

NANOTRON_INSTANTIATE_CLASS(AttentionGeometry)

}  // namespace nanotron::nn
