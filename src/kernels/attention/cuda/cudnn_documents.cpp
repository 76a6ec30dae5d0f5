#include "kernels/attention/cuda/cudnn_documents.hpp"

#include <cmath>
#include <limits>

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels::cudnn {
namespace {

NANOTRON_FUNCTION bool is_diagonal(const AttentionShape& s) { return s.query_position == s.key_position; }

// Where the documents of a sequence begin, by position.
NANOTRON_FUNCTION const std::int32_t* starts_of(const AttentionShape& s, index_t sequence) {
  return s.document_starts + sequence * s.document_stride;
}

// The position is a document of its own.
NANOTRON_FUNCTION bool is_single(const AttentionShape& s, index_t sequence, index_t position) {
  const std::int32_t* const starts = starts_of(s, sequence);
  return starts[position] == position && (position + 1 == s.document_stride || starts[position + 1] > position);
}

// The piece has a first position here of a document of two or more.
NANOTRON_FUNCTION bool begins_document(const AttentionShape& s, index_t sequence, index_t query) {
  const index_t position = s.query_position + query;
  const bool is_first = query == 0 || starts_of(s, sequence)[position] == position;
  return is_first && !is_single(s, sequence, position);
}

// Queries of one document from `query` on.
NANOTRON_FUNCTION index_t queries_from(const AttentionShape& s, index_t sequence, index_t query) {
  const std::int32_t* const starts = starts_of(s, sequence) + s.query_position;
  index_t inside = query, end = s.query_length;
  while (inside + 1 < end) {
    const index_t middle = (inside + end) / 2;
    (starts[middle] == starts[query] ? inside : end) = middle;
  }
  return end - query;
}

// Of a document in a piece: its first query and key, and how many there are.
struct Span {
  index_t sequence, query, queries, key, keys;
};

NANOTRON_FUNCTION void write(const AttentionShape& s, const DocumentTable& table, index_t i, const Span& d) {
  const index_t query = d.sequence * s.query_row_stride() + d.query, key = d.sequence * s.key_row_stride() + d.key;
  const index_t packed_query = d.sequence * s.query_length + d.query, packed_key = d.sequence * s.key_length + d.key;
  // In the order of Ragged.
  const index_t first[] = {query, key, key, query, query, packed_query, packed_query, packed_key};
  for (index_t t = 0; t < fused::ragged_tensors; ++t)
    table.offsets[t * table.pitch + i] = first[t] * table.row_stride[t];
  if (i == table.max_documents) return;
  table.query_lengths[i] = static_cast<std::int32_t>(d.queries);
  table.key_lengths[i] = static_cast<std::int32_t>(d.keys);
}

// After the last row.
NANOTRON_FUNCTION Span end_of(const AttentionShape& s) { return {s.batch - 1, s.query_length, 0, s.key_length, 0}; }

// One team counts them in order.
void write_diagonal(Device& device, const AttentionShape& shape, const DocumentTable& all) {
  const AttentionShape s = shape;
  const DocumentTable table = all;
  constexpr index_t parts = 1024;
  const index_t positions = s.batch * s.query_length, each = (positions + parts - 1) / parts;
  Kokkos::parallel_for(
      kept_label<DocumentTable>("attention_documents"), team_policy(device, 1, 512),
      KOKKOS_LAMBDA(const TeamPolicy::member_type& team) {
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, table.max_documents + 1),
                             [&](const index_t i) { write(s, table, i, end_of(s)); });
        team.team_barrier();
        Kokkos::parallel_scan(Kokkos::TeamThreadRange(team, parts), [&](const index_t part, index_t& i, bool is_last) {
          const index_t end = (part + 1) * each < positions ? (part + 1) * each : positions;
          for (index_t at = part * each; at < end; ++at) {
            const index_t sequence = at / s.query_length, query = at % s.query_length;
            if (!begins_document(s, sequence, query)) continue;
            if (is_last) {
              if (i >= table.max_documents) Kokkos::abort("attention: more documents than were counted");
              const index_t length = queries_from(s, sequence, query);
              write(s, table, i, {sequence, query, length, query, length});
            }
            ++i;
          }
        });
      });
}

void write_earlier(Device& device, const AttentionShape& shape, const DocumentTable& all) {
  const AttentionShape s = shape;
  const DocumentTable table = all;
  for_each_element(
      device, "attention_documents", table.max_documents + 1, KOKKOS_LAMBDA(const index_t sequence) {
        if (sequence == s.batch) return write(s, table, sequence, end_of(s));
        const Range keys = s.keys_of(sequence, 0);
        const index_t queries = keys.size() > 0 ? queries_from(s, sequence, 0) : 0;
        write(s, table, sequence, {sequence, 0, queries, keys.begin, keys.size()});
      });
}

}  // namespace

void write_documents(Device& device, const AttentionShape& shape, const DocumentTable& table) {
  is_diagonal(shape) ? write_diagonal(device, shape, table) : write_earlier(device, shape, table);
}

void pack_statistics(Device& device, const AttentionShape& shape, const HeadStatistics& statistics) {
  const AttentionShape s = shape;
  const HeadStatistics heads = statistics;
  for_each_element(
      device, "attention_documents_lse", s.batch * s.query_heads * s.query_length, KOKKOS_LAMBDA(const index_t at) {
        const index_t i = at % s.query_length, n = at / s.query_length;
        const index_t sequence = n / s.query_heads, h = n % s.query_heads;
        heads.rows[(sequence * s.query_length + i) * s.query_heads + h] =
            heads.lse[(sequence * heads.all_heads + h) * s.query_row_stride() + i];
      });
}

// Without keys: out = 0, lse = lowest. Of one position: out = v, lse = q . k / sqrt(head_dim).
void finish_forward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                    MatrixRef<const bf16> v, MatrixRef<bf16> out, const HeadStatistics& statistics) {
  const AttentionShape s = shape;
  const HeadStatistics heads = statistics;
  const auto scale = static_cast<float>(s.scores.scale_or(1.0 / std::sqrt(static_cast<double>(s.head_dim))));
  const bf16 *const q_at = q.data, *const k_at = k.data, *const v_at = v.data;
  bf16* const out_at = out.data;
  const index_t q_leading = q.leading, k_leading = k.leading, v_leading = v.leading, out_leading = out.leading;
  constexpr float lowest = std::numeric_limits<float>::lowest();
  for_each_row_of<bf16>(
      device, "attention_documents_forward", s.batch * s.query_length, s.query_heads * s.head_dim,
      KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t sequence = at / s.query_length, i = at % s.query_length, d = s.head_dim;
        float* const lse = heads.lse + sequence * heads.all_heads * s.query_row_stride() + i;
        const index_t stride = s.query_row_stride(), query = sequence * stride + i;
        if (s.keys_of(sequence, i).size() == 0) {
          row.for_each(s.query_heads, [=](const index_t h) { lse[h * stride] = lowest; });
          bf16* const to = out_at + query * out_leading;
          row.template for_each_chunk<bf16>(s.query_heads * d, [=](const index_t c, const auto width) {
            store(to + c, width, [](int) { return 0.0F; });
          });
        } else if (!is_single(s, sequence, s.query_position + i)) {
          const float* const from = heads.rows + at * s.query_heads;
          row.for_each(s.query_heads, [=](const index_t h) { lse[h * stride] = from[h]; });
        } else {
          const index_t key = sequence * s.key_row_stride() + i, group = s.query_heads / s.key_heads;
          for (index_t h = 0; h < s.query_heads; ++h) {
            const bf16* const a = q_at + query * q_leading + h * d;
            const bf16* const b = k_at + key * k_leading + h / group * d;
            const float score = row.template sum<float>(
                d, [=](const index_t c) { return static_cast<float>(a[c]) * static_cast<float>(b[c]); });
            const bf16* const from = v_at + key * v_leading + h / group * d;
            bf16* const to = out_at + query * out_leading + h * d;
            row.for_each(d, [=](const index_t c) { to[c] = from[c]; });
            row.for_each(1, [=](const index_t) { lse[h * stride] = score * scale; });
          }
        }
      });
}

// Of one position p = 1 and ds = 0: dq = dk = 0, dv = sum of dout over the heads of a group. First rows of queries,
// then of keys.
void finish_backward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> dout,
                     const DocumentGradients& gradients) {
  const AttentionShape s = shape;
  const bf16 *const packed_dq = gradients.packed_dq, *const packed_dk = gradients.packed_dk,
                    *const packed_dv = gradients.packed_dv, *const dout_at = dout.data;
  bf16 *const dq_at = gradients.dq.data, *const dk_at = gradients.dk.data, *const dv_at = gradients.dv.data;
  const index_t dq_leading = gradients.dq.leading, dk_leading = gradients.dk.leading, dv_leading = gradients.dv.leading,
                dout_leading = dout.leading;
  for_each_row_of<bf16>(
      device, "attention_documents_backward", s.batch * (s.query_length + s.key_length), s.query_heads * s.head_dim,
      KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t queries = s.batch * s.query_length;
        const auto copy = [&](const bf16* from, bf16* to, const index_t n, const bool is_there) {
          row.template for_each_chunk<bf16>(n, [=](const index_t c, const auto width) {
            const auto x = load(from + c, width);
            store(to + c, width, [&](const int j) { return is_there ? x[j] : 0.0F; });
          });
        };
        const index_t length = at < queries ? s.query_length : s.key_length, n = at < queries ? at : at - queries;
        const index_t sequence = n / length, i = n % length, d = s.head_dim;
        if (at < queries) {
          const bool is_there = s.keys_of(sequence, i).size() > 0 && !is_single(s, sequence, s.query_position + i);
          copy(packed_dq + n * s.query_heads * d, dq_at + (sequence * s.query_row_stride() + i) * dq_leading,
               s.query_heads * d, is_there);
          return;
        }
        const index_t key = sequence * s.key_row_stride() + i, columns = s.key_heads * d;
        bf16* const dk = dk_at + key * dk_leading;
        bf16* const dv = dv_at + key * dv_leading;
        const Range seen = s.keys_of(sequence, 0);
        const bool is_there = is_diagonal(s) ? !is_single(s, sequence, s.key_position + i) : seen.contains(i);
        copy(packed_dk + n * columns, dk, columns, is_there);
        if (is_there || !is_diagonal(s)) return copy(packed_dv + n * columns, dv, columns, is_there);
        const index_t group = s.query_heads / s.key_heads;
        const bf16* const from = dout_at + (sequence * s.query_row_stride() + i) * dout_leading;
        row.for_each(columns, [=](const index_t c) {
          float sum = 0.0F;
          for (index_t h = 0; h < group; ++h) sum += static_cast<float>(from[(c / d * group + h) * d + c % d]);
          dv[c] = bf16(sum);
        });
      });
}

}  // namespace nanotron::kernels::cudnn
