#include "parallel/reducers/layout_invariant/gradients_1d.hpp"

#include "nanotron/base/types.hpp"

namespace nanotron::parallel {
namespace {

// Which 1-D parameters of a section backward of each of its units completes: those of the unit's layer. Of those of no
// layer backward of the embedding completes the norm of the embedding; the others are of the final norm.
std::vector<std::vector<Range>> params_1d_by_number(const model::ParameterTable& table, const model::Section& section) {
  const index_t last = table.final_norm_source();
  const bool is_apart = table.is_shared() && table.is_of_end(last);
  std::vector<std::vector<Range>> params_1d(table.units.size() + 1);
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.is_1d) continue;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer);
      if (!section.params_1d.contains(begin)) continue;
      const bool is_of_embedding = spec.name.starts_with("model/embed_");
      const index_t number =
          spec.is_stacked
              ? table.unit_of(table.layer_unit(table.local_layer(spec.layer_numbers[static_cast<std::size_t>(layer)])),
                              section)
          : is_of_embedding ? table.embedding_unit()
          : is_apart        ? static_cast<index_t>(table.units.size())
                            : table.unit_of(last, table.dense());
      params_1d[static_cast<std::size_t>(number)].push_back({begin, begin + spec.local_size()});
    }
  }
  return params_1d;
}

}  // namespace

template <class T>
Gradients1d<T>::Gradients1d(const ReducerContext<T>& c, index_t samples_of_shard, int sequences,
                            const SequenceSums& sums)
    : model_(&c.model),
      data_(&c.groups.data),
      device_(&c.device),
      flat_(c.section.params_1d),
      samples_of_shard_(samples_of_shard),
      sequences_(sequences),
      sums_(sums),
      ranges_of_(params_1d_by_number(c.model.table(), c.section)) {
  constexpr auto kind = MemoryKind::gradients;
  const index_t micro_batches = c.config.data.global_batch_size / c.config.parallel.dp, each = sequences * flat_.size();
  kept_ = c.arena.template take<M>(kind, micro_batches * each);
  batch_shard_ = c.arena.template take<M>(kind, each);
  sum_ = c.arena.template take<M>(kind, flat_.size());
  gathered_ = c.arena.template take<M>(kind, data_->size() > 1 ? data_->size() * each : 0);
}

template <class T>
auto Gradients1d<T>::gradient_of(const Range& flat, index_t sequence) const -> Vector<M> {
  const nn::ParameterBuffers<T>& p = model_->parameters();
  return slice(p.gradient, p.layouts.gradient.at(flat.begin) + sequence * flat_.size(), flat.size());
}

template <class T>
auto Gradients1d<T>::kept(index_t micro_batch, index_t sequence) const -> Vector<M> {
  return slice(kept_, (micro_batch * sequences_ + sequence) * flat_.size(), flat_.size());
}

template <class T>
auto Gradients1d<T>::batch_shard(index_t sequence) const -> Vector<M> {
  return slice(batch_shard_, sequence * flat_.size(), flat_.size());
}

template <class T>
void Gradients1d<T>::start_step() {
  if (flat_.size() == 0) return;
  kernels::fill<M>(*device_, kept_, 0.0);
  for (index_t s = 0; s < sequences_; ++s) kernels::fill<M>(*device_, gradient_of(flat_, s), 0.0);
}

template <class T>
void Gradients1d<T>::set_apart(index_t number, index_t micro_batch) {
  if (flat_.size() == 0) return;
  for (const Range& r : ranges_of_[static_cast<std::size_t>(number)]) {
    for (index_t s = 0; s < sequences_; ++s) {
      const Vector<M> here = gradient_of(r, s);
      kernels::add<M>(*device_, here, slice(kept(micro_batch, s), r.begin - flat_.begin, r.size()));
      kernels::fill<M>(*device_, here, 0.0);
    }
  }
}

template <class T>
void Gradients1d<T>::sum(const model::PartialGradients<T>& partial, index_t micro_batches) {
  if (flat_.size() == 0) return;
  const nn::ParameterBuffers<T>& p = model_->parameters();
  const Vector<M> here = gradient_of(flat_, 0);
  kernels::fill<M>(*device_, sum_, 0.0);
  for (index_t first = 0; first < micro_batches; first += samples_of_shard_) {
    kernels::fill<M>(*device_, batch_shard_, 0.0);
    for (index_t i = 0; i < samples_of_shard_ * sequences_; ++i) {
      kernels::copy<M>(*device_, kept(first + i / sequences_, i % sequences_), here);
      partial.sum(flat_);
      kernels::add<M>(*device_, here, batch_shard(i % sequences_));
    }
    const bool is_alone = data_->size() == 1;
    if (!is_alone) {
      comm::all_gather<M>(*data_, batch_shard_.data(), elements_of(batch_shard_), gathered_.data(), device_->stream());
    }
    sums_.add_to(*device_, is_alone ? batch_shard_ : gathered_, sum_);
  }
  kernels::copy<M>(*device_, sum_, slice(p.gradient, p.layouts.reduced.at(flat_.begin), flat_.size()));
}

template <class T>
comm::StepTraffic Gradients1d<T>::traffic_of_round() const {
  const index_t bytes = sequences_ * flat_.size() * static_cast<index_t>(sizeof(M));
  return {.data_parallel = comm::all_gather_bytes(bytes, data_->size())};
}

NANOTRON_INSTANTIATE_CLASS(Gradients1d)

}  // namespace nanotron::parallel
