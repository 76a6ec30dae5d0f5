// Gradient reduction over the data-parallel group in an order that does not depend on the grid
// (precision%reproducible = 'layout'). The global batch is split into deck::SumShards::batch shards of neighbouring
// sequences. dp rank i mod d computes shard i in round i / d, one sequence per micro-batch, and adds up their gradients
// in order: g_i. Then
//
//   gradient = ((g_0 + g_1) + g_2) + ...        each g_i: a binary tree over the c cp ranks (tensor/sum_order.hpp)
//
// After a round, an all-to-all gives every rank its part of all ranks' gradients of a unit (with ZeRO a part of its
// shard); it adds them to its sum. After the last round the parts are all-gathered over the data-parallel group, with
// ZeRO over the replicate group.
//
// With compression = 'bf16' each g_i of a 2-D parameter is rounded to bf16 once, whether it is sent or not, and added
// in the master type. With c = 1 it is rounded before it is sent. With c > 1 the addends of g_i travel unrounded.
//
// A rank that is alone in the group lets the GEMMs of most layers add to the sum itself (UnitGradients::in_sums).
//
// Experts that receive tokens of several sequences at once have one gradient for each; they are added one by one.
//
// A token embedding that both ends of the model use has two sums, H over the g_i of the last stage and E over those of
// the first, and then H + E: the order in which a pipeline adds them, where these stages are on different ranks.

#include <algorithm>
#include <memory>

#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "parallel/reducers/layout_invariant/gradients_1d.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {
namespace {

template <class T>
index_t samples_of_shard(const ReducerContext<T>& c) {
  return c.config.data.global_batch_size / deck::sum_shards(c.config).batch;
}

// Ranks of the section's group that share a sequence: cp, or fewer for experts, whose group is smaller than dp x cp.
template <class T>
int context_of(const ReducerContext<T>& c) {
  const auto data = static_cast<int>(c.config.parallel.dp * c.config.parallel.cp);
  return std::max(1, static_cast<int>(c.config.parallel.cp) / (data / c.groups.data.size()));
}

template <class T>
class LayoutInvariantReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit LayoutInvariantReducer(const ReducerContext<T>& context);

 private:
  // number: of a unit, or table.units.size() for the last stage's part of the embedding.
  void start_step() override;
  void before_use(index_t number) override;
  void before_first_use(index_t number) override;
  void after_use(index_t number) override;
  void after_inputs(index_t number) override;
  void completed(index_t number) override;
  void complete_1d() override {}
  void finish_step() override;
  comm::StepTraffic traffic_1d() const override;
  comm::StepTraffic strategy_traffic() const override;

  // Gradients of a flat range: where backward accumulates them, for one of sequences_; this rank's part of the sum.
  Vector<M> gradient_of(const Range& flat, index_t sequence = 0) const;
  Vector<M> kept(const Range& flat) const;
  Vector<M> kept_of(index_t number, const Range& flat) const;
  Range part_of_rank(index_t number, int rank) const;

  void add_round(index_t number);
  void add_rounded(index_t number);
  // The gradients of a unit, by rank that owns the part and by sequence.
  template <class U>
  void pack(index_t number, const Vector<U>& to) const;
  // Of all ranks, this rank's part, by rank and by sequence.
  template <class U>
  void exchange(index_t number, const Vector<U>& send, const Vector<U>& receive);
  bool is_in_sum(index_t number) const;  // backward adds to the sum itself
  bool sends_rounded() const { return to_bf16_ && context_ == 1; }
  SequenceSums sums() const { return {this->data().size() * sequences_, context_}; }
  void add_end();
  void gather_parts();

  index_t samples_of_shard_;
  index_t rounds_;
  int sequences_;  // gradients of a unit, stored one after the other
  int context_;    // consecutive ranks that share a sequence
  bool to_bf16_;   // g_i are rounded to bf16
  bool shared_;    // both ends of the model add to the embedding here

  Vector<M> send_, receive_;                     // one unit each
  Vector<bf16> rounded_send_, rounded_receive_;  // instead of them; or rounded_send_ for one g_i
  Gradients1d<T> params_1d_;
  Vector<M> end_sum_;     // this rank's shard of H
  Vector<M> other_part_;  // that of the two gradients of the embedding which is not in the unit

  index_t in_place_ = 0;                // of the two: the number whose gradient is stored in the unit
  std::vector<index_t> uses_, inputs_;  // by number: calls of after_use and after_inputs in this step
  std::vector<std::size_t> send_counts_;
};

template <class T>
LayoutInvariantReducer<T>::LayoutInvariantReducer(const ReducerContext<T>& c)
    : GradientReducer<T>(c, {.micro_batches = samples_of_shard(c), .end_apart = true}),
      samples_of_shard_(samples_of_shard(c)),
      rounds_(deck::sum_shards(c.config).batch / c.config.parallel.dp),
      sequences_(c.sharding.of(c.section.replicas).gradients),
      context_(context_of(c)),
      to_bf16_(c.config.parallel.compression == deck::Compression::bf16),
      shared_(c.section.units.begin == 0 && c.model.table().is_shared()),
      params_1d_(c, samples_of_shard_, sequences_, sums()),
      uses_(c.model.table().units.size() + 1),
      inputs_(uses_.size()),
      send_counts_(static_cast<std::size_t>(c.groups.data.size())) {
  constexpr auto kind = MemoryKind::gradients;
  const index_t ranks = this->data().size();
  index_t unit = 0;
  for (index_t u = c.section.units.begin; u < c.section.units.end && (ranks > 1 || to_bf16_); ++u) {
    unit = std::max(unit, this->unit(u).range.size() * sequences_);
  }
  const index_t shared = shared_ ? this->unit(0).range.size() : 0;
  if (to_bf16_) rounded_send_ = c.arena.template take<bf16>(kind, sends_rounded() ? unit : unit / ranks);
  if (sends_rounded()) {
    rounded_receive_ = c.arena.template take<bf16>(kind, ranks > 1 ? unit : 0);
  } else {
    send_ = c.arena.template take<M>(kind, unit);
    receive_ = c.arena.template take<M>(kind, unit);
  }
  end_sum_ = c.arena.template take<M>(kind, shared / this->sharding().size(c.section.replicas));
  other_part_ = c.arena.template take<M>(kind, samples_of_shard_ > 1 ? shared : 0);
}

template <class T>
auto LayoutInvariantReducer<T>::gradient_of(const Range& flat, index_t sequence) const -> Vector<M> {
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  const index_t first = sequence == 0 ? 0 : sequence * this->unit(this->section().units.begin).range.size();
  return slice(p.gradient, p.layouts.gradient.at(flat.begin) + first, flat.size());
}

template <class T>
auto LayoutInvariantReducer<T>::kept(const Range& flat) const -> Vector<M> {
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  return slice(p.gradient, p.layouts.reduced.at(flat.begin), flat.size());
}

template <class T>
auto LayoutInvariantReducer<T>::kept_of(index_t number, const Range& flat) const -> Vector<M> {
  if (!this->is_end(number)) return kept(flat);
  return slice(end_sum_, flat.begin - shard_of(this->unit(number), this->sharding()).begin, flat.size());
}

// S = shards, R = replicates: rank r has shard r mod S of the unit, and of this shard part r / S of R.
template <class T>
Range LayoutInvariantReducer<T>::part_of_rank(index_t number, int rank) const {
  const model::Unit& unit = this->unit(number);
  const int shards = this->sharding().size(unit.replicas), replicates = this->data().size() / shards;
  const Range shard = shard_of(unit, shards, rank % shards);
  const index_t size = shard.size() / replicates, begin = shard.begin + rank / shards * size;
  return {begin, begin + size};
}

template <class T>
void LayoutInvariantReducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.reduced);
  params_1d_.start_step();
  kernels::fill<M>(this->device(), end_sum_, 0.0);
  std::ranges::fill(uses_, 0);
  std::ranges::fill(inputs_, 0);
}

template <class T>
void LayoutInvariantReducer<T>::before_use(index_t number) {
  if (!shared_ || this->unit_of(number) != 0 || in_place_ == number) return;
  if (samples_of_shard_ > 1) kernels::swap<M>(this->device(), gradient_of(this->unit(number).range), other_part_);
  in_place_ = number;
}

template <class T>
bool LayoutInvariantReducer<T>::is_in_sum(index_t number) const {
  const nn::ParameterLayouts& p = this->model().parameters().layouts;
  const index_t begin = this->unit(number).range.begin;
  return this->data().size() == 1 && p.gradient.at(begin) == p.reduced.at(begin);
}

template <class T>
void LayoutInvariantReducer<T>::before_first_use(index_t number) {
  if (is_in_sum(number)) return;
  for (index_t s = 0; s < sequences_; ++s)
    kernels::fill<M>(this->device(), gradient_of(this->unit(number).range, s), 0.0);
}

template <class T>
void LayoutInvariantReducer<T>::after_use(index_t number) {
  const typename GradientReducer<T>::Exposed exposed(*this);
  params_1d_.set_apart(number, uses_[static_cast<std::size_t>(number)]++ / this->uses_of(number));
}

template <class T>
void LayoutInvariantReducer<T>::after_inputs(index_t number) {
  params_1d_.set_apart(number, inputs_[static_cast<std::size_t>(number)]++);
}

template <class T>
void LayoutInvariantReducer<T>::completed(index_t number) {
  if (is_in_sum(number)) return;
  const typename GradientReducer<T>::Exposed exposed(*this);
  add_round(number);
}

template <class T>
void LayoutInvariantReducer<T>::add_round(index_t number) {
  if (sends_rounded()) return add_rounded(number);
  const Range whole = this->unit(number).range;
  const int ranks = this->data().size();
  if (ranks == 1) {
    for (index_t s = 0; s < sequences_; ++s)
      kernels::add<M>(this->device(), gradient_of(whole, s), kept_of(number, whole));
    return;
  }
  const Range mine = part_of_rank(number, this->data().rank());
  pack(number, send_);
  exchange(number, send_, receive_);
  const Vector<M> parts = slice(receive_, 0, ranks * sequences_ * mine.size());
  if (!to_bf16_) return sums().add_to(this->device(), parts, kept_of(number, mine));
  const Vector<bf16> rounded = slice(rounded_send_, 0, mine.size());
  sums().for_each(this->device(), parts, mine.size(), [&](const Vector<M>& gradient) {
    kernels::cast<M, bf16>(this->device(), gradient, rounded);
    kernels::add_rows<M>(this->device(), Matrix<const bf16>(rounded.data(), 1, mine.size()), kept_of(number, mine));
  });
}

template <class T>
void LayoutInvariantReducer<T>::add_rounded(index_t number) {
  const Range mine = part_of_rank(number, this->data().rank());
  const int ranks = this->data().size();
  pack(number, rounded_send_);
  if (ranks > 1) exchange(number, rounded_send_, rounded_receive_);
  const Vector<bf16>& addends = ranks > 1 ? rounded_receive_ : rounded_send_;
  kernels::add_rows<M>(this->device(), Matrix<const bf16>(addends.data(), ranks * sequences_, mine.size()),
                       kept_of(number, mine));
}

template <class T>
template <class U>
void LayoutInvariantReducer<T>::pack(index_t number, const Vector<U>& to) const {
  for (int r = 0; r < this->data().size(); ++r) {
    const Range part = part_of_rank(number, r);
    for (index_t s = 0; s < sequences_; ++s) {
      const Vector<U> packed = slice(to, (r * sequences_ + s) * part.size(), part.size());
      if constexpr (std::is_same_v<U, M>) {
        kernels::copy<M>(this->device(), gradient_of(part, s), packed);
      } else {
        kernels::cast<M, U>(this->device(), gradient_of(part, s), packed);
      }
    }
  }
}

template <class T>
template <class U>
void LayoutInvariantReducer<T>::exchange(index_t number, const Vector<U>& send, const Vector<U>& receive) {
  const index_t mine = part_of_rank(number, this->data().rank()).size();
  std::ranges::fill(send_counts_, static_cast<std::size_t>(sequences_ * mine));
  comm::all_to_all<U>(this->data(), send.data(), send_counts_, receive.data(), send_counts_, this->device().stream());
}

template <class T>
void LayoutInvariantReducer<T>::add_end() {
  if (shared_) kernels::add<M>(this->device(), end_sum_, kept(shard_of(this->unit(0), this->sharding())));
}

template <class T>
void LayoutInvariantReducer<T>::gather_parts() {
  for (index_t u = this->section().units.begin; u < this->section().units.end; ++u) {
    const model::Unit& unit = this->unit(u);
    comm::Group& others = this->sharding().size(unit.replicas) == 1 ? this->data() : this->groups().replicate;
    if (others.size() == 1) continue;
    const Range mine = part_of_rank(u, this->data().rank());
    comm::all_gather<M>(others, kept(mine).data(), static_cast<std::size_t>(mine.size()),
                        kept(shard_of(unit, this->sharding())).data(), this->device().stream());
  }
}

template <class T>
void LayoutInvariantReducer<T>::finish_step() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  params_1d_.sum(this->partial(), this->micro_batches());
  add_end();
  gather_parts();
}

template <class T>
comm::StepTraffic LayoutInvariantReducer<T>::traffic_1d() const {
  return this->micro_batches() * this->partial().traffic(this->section().params_1d);
}

template <class T>
comm::StepTraffic LayoutInvariantReducer<T>::strategy_traffic() const {
  const int ranks = this->data().size(), shards = this->sharding().size(this->section().replicas);
  const auto bytes = [](index_t n) { return n * static_cast<index_t>(sizeof(M)); };
  const index_t addend = sends_rounded() ? sizeof(bf16) : sizeof(M);
  const index_t params_2d = this->section().flat.size() - this->section().params_1d.size();
  const index_t twice = shared_ ? this->unit(0).range.size() : 0;
  return rounds_ * (params_1d_.traffic_of_round() +
                    comm::StepTraffic{.data_parallel =
                                          comm::all_to_all_bytes(addend * (sequences_ * params_2d + twice), ranks)}) +
         comm::StepTraffic{.data_parallel = comm::all_gather_bytes(bytes(params_2d / ranks), ranks / shards)};
}

}  // namespace

template <class T>
std::unique_ptr<GradientReducer<T>> make_layout_invariant(const ReducerContext<T>& context) {
  return std::make_unique<LayoutInvariantReducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::unique_ptr<GradientReducer<T>> make_layout_invariant(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
