#include "nanotron/model/layers/partial_gradients.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {

template <class T>
PartialGradients<T>::PartialGradients(const Transformer<T>& model, const Section& section, Device& device, Arena& arena)
    : model_(&model), device_(&device), pieces_(pieces_of(section)) {
  index_t largest = 0;
  for (const Piece& piece : pieces_) largest = std::max(largest, piece.rows > 0 ? piece.elements : 0);
  whole_ = arena.take<M>(MemoryKind::workspace, largest);
}

template <class T>
std::vector<typename PartialGradients<T>::Piece> PartialGradients<T>::pieces_of(const Section& section) const {
  std::vector<Piece> all;
  for (const nn::ParameterSpec& spec : model_->table().specs) {
    if (!spec.gradient_is_partial || spec.is_frozen || spec.replicas != section.replicas) continue;
    const bool is_whole = spec.partition == nn::Partition::replicated;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer);
      all.push_back({.flat = {begin, begin + spec.local_size()},
                     .elements = is_whole ? spec.local_size() : spec.rows * spec.columns,
                     .rows = is_whole ? 0 : spec.rows,
                     .first = is_whole ? 0 : spec.local.begin});
    }
  }
  std::ranges::sort(all, {}, [](const Piece& piece) { return piece.flat.begin; });

  std::vector<index_t> units;  // where they begin
  for (index_t u = section.units.begin; u < section.units.end; ++u) {
    units.push_back(model_->table().unit(u).range.begin);
  }
  std::vector<Piece> joined;
  for (const Piece& next : all) {
    const bool begins =
        joined.empty() || joined.back().flat.end != next.flat.begin || joined.back().rows + next.rows > 0;
    if (begins || section.params_1d.contains(next.flat.begin) || std::ranges::binary_search(units, next.flat.begin)) {
      joined.push_back(next);
    } else {
      joined.back().flat.end = next.flat.end;
      joined.back().elements += next.elements;
    }
  }
  return joined;
}

template <class T>
comm::StepTraffic PartialGradients<T>::traffic(const Range& range) const {
  index_t elements = 0;
  for (const Piece& piece : pieces_) elements += range.contains(piece.flat.begin) ? piece.elements : 0;
  const int ranks = model_->tensor_parallel().size();
  return {.tensor_parallel = comm::all_reduce_bytes(elements * static_cast<index_t>(sizeof(M)), ranks)};
}

template <class T>
void PartialGradients<T>::sum(const Range& range) const {
  if (model_->tensor_parallel().size() == 1) return;
  const nn::ParameterBuffers<T>& p = model_->parameters();
  for (const Piece& piece : pieces_) {
    if (range.contains(piece.flat.begin)) sum(piece, p.gradient.data() + p.layouts.gradient.at(piece.flat.begin));
  }
}

template <class T>
void PartialGradients<T>::sum(const Piece& piece, M* local) const {
  comm::Group& tp = model_->tensor_parallel();
  const auto elements = static_cast<std::size_t>(piece.elements);
  if (piece.rows == 0) {
    comm::all_reduce(tp, local, elements, comm::ReduceOp::sum, device_->stream());
    return;
  }
  const index_t columns = piece.elements / piece.rows, rows = piece.flat.size() / columns;
  const MatrixRef<M> mine(local, rows, columns);
  const Vector<M> whole(whole_.data(), piece.elements);
  const MatrixRef<M> part = MatrixRef<M>(whole.data(), piece.rows, columns).row_block(piece.first, rows);
  kernels::fill<M>(*device_, whole, 0.0);
  kernels::copy_matrix<M>(*device_, mine, part);
  comm::all_reduce(tp, whole.data(), elements, comm::ReduceOp::sum, device_->stream());
  kernels::copy_matrix<M>(*device_, part, mine);
}

NANOTRON_INSTANTIATE_CLASS(PartialGradients)

}  // namespace nanotron::model
