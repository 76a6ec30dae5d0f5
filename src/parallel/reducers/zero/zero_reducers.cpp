// ZeRO: the gradient of each unit is summed over the shard group (ShardSum), so that each rank gets the shard it
// updates (ZeRO, Rajbhandari et al. 2020). After the last micro-batch each shard is all-reduced over the replicate
// group, and 1-D parameters over the data-parallel group, both in the master type.

#include <algorithm>
#include <memory>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "parallel/reducers/low_precision/bf16_reducers.hpp"
#include "parallel/reducers/strategies.hpp"
#include "parallel/reducers/zero/shard_sum.hpp"

namespace nanotron::parallel {
namespace {

// The intervals of the buffer that store `range`, adjacent ones merged.
std::vector<Range> intervals(const nn::BufferLayout& layout, const Range& range) {
  std::vector<Range> found;
  for (const nn::BufferLayout::Part& part : layout.within(range)) {
    if (found.empty() || found.back().end != part.at) found.push_back({part.at, part.at});
    found.back().end += part.range.size();
  }
  return found;
}

/// By reduce-scatter in the master type, in place.
template <class T>
class MasterShardSum final : public ShardSum<T> {
 public:
  using M = master_t<T>;
  explicit MasterShardSum(const ReducerContext<T>& c) : group_(&c.groups.shard), device_(&c.device) {}

  comm::Request start(const Vector<M>& whole) const override {
    const Vector<M> mine = this->shard_of_rank(whole, *group_);
    return comm::start_reduce_scatter(*group_, whole.data(), mine.data(), mine.extent(0), comm::ReduceOp::sum,
                                      device_->stream());
  }
  void store(const Vector<M>&) const override {}
  void add(const Vector<M>& whole, const Vector<M>& shard) const override {
    kernels::add<M>(*device_, this->shard_of_rank(whole, *group_), shard);
  }
  comm::Bytes bytes(index_t elements) const override {
    return comm::reduce_scatter_bytes(elements * static_cast<index_t>(sizeof(M)), group_->size());
  }

 private:
  comm::Group* group_;
  Device* device_;
};

template <class T>
std::unique_ptr<ShardSum<T>> make_shard_sum(const ReducerContext<T>& c) {
  const bool rounds = c.groups.shard.size() > 1 && c.config.parallel.compression == deck::Compression::bf16;
  if (rounds) return make_bf16_shard_sum(c);
  return std::make_unique<MasterShardSum<T>>(c);
}

struct PendingReduction {
  index_t unit;
  comm::Request request;
};

/// The collectives of both reducers.
template <class T>
class ZeroReducer : public GradientReducer<T> {
 protected:
  using M = master_t<T>;
  ZeroReducer(const ReducerContext<T>& context, const ReduceWhen& when);

  /// Where backward accumulated the unit.
  Vector<M> gradient_of(index_t unit) const;
  const ShardSum<T>& shard_sum() const { return *shard_sum_; }
  void reduce_1d();
  void reduce_over_replicates();
  /// times: reduce-scatters of each unit per step.
  comm::StepTraffic zero_traffic(index_t times) const;

 private:
  std::unique_ptr<ShardSum<T>> shard_sum_;
  std::vector<Range> shards_;  // of the gradient buffer: this rank's shards of 2-D parameters
};

/// Stage 1: the gradient buffer is not sharded; a unit is reduce-scattered in place once it is final.
template <class T>
class Zero1Reducer final : public ZeroReducer<T> {
 public:
  using M = master_t<T>;
  explicit Zero1Reducer(const ReducerContext<T>& context);

 private:
  void start_step() override;
  void completed(index_t unit) override;
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override { return this->zero_traffic(1); }
  void start(index_t unit);

  std::vector<PendingReduction> running_;  // in the order of their start
  std::size_t started_ = 0, done_ = 0;
};

// Whether both ends of a pipeline are on this rank and add to the embedding, whose slot is the head's too: the head of
// the next micro-batch comes between them.
bool adds_in_turn(const deck::ParallelConfig& parallel, const model::ParameterTable& table) {
  return parallel.pp > 1 && table.is_shared() && table.head_unit() != table.embedding_unit();
}

/// Stages 2 and 3: a slot stores a unit's gradient from the first backward that adds to it to the end of its
/// reduce-scatter; per micro-batch the result is added to this rank's shard.
template <class T>
class Zero23Reducer final : public ZeroReducer<T> {
 public:
  using M = master_t<T>;
  explicit Zero23Reducer(const ReducerContext<T>& context);

 private:
  void start_step() override;
  void before_first_use(index_t number) override;
  void completed(index_t number) override;
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override;
  void finish_first();

  bool end_apart_;
  std::vector<PendingReduction> pending_;  // in the order of their start; at most one per slot
};

template <class T>
ZeroReducer<T>::ZeroReducer(const ReducerContext<T>& c, const ReduceWhen& when)
    : GradientReducer<T>(c, when),
      shard_sum_(make_shard_sum(c)),
      shards_(intervals(c.model.parameters().layouts.reduced, {c.section.params_1d.end, c.section.flat.end})) {}

template <class T>
auto ZeroReducer<T>::gradient_of(index_t unit) const -> Vector<M> {
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  const Range& range = this->unit(unit).range;
  return Vector<M>(p.gradient.data() + p.layouts.gradient.at(range.begin), range.size());
}

template <class T>
void ZeroReducer<T>::reduce_1d() {
  const Range& params_1d = this->section().params_1d;
  if (params_1d.size() == 0) return;
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  comm::all_reduce(this->data(), p.gradient.data() + p.layouts.reduced.at(params_1d.begin),
                   static_cast<std::size_t>(params_1d.size()), comm::ReduceOp::sum, this->device().stream());
}

template <class T>
void ZeroReducer<T>::reduce_over_replicates() {
  for (const Range& shard : shards_) {
    comm::all_reduce(this->groups().replicate, this->model().parameters().gradient.data() + shard.begin,
                     static_cast<std::size_t>(shard.size()), comm::ReduceOp::sum, this->device().stream());
  }
}

template <class T>
comm::StepTraffic ZeroReducer<T>::zero_traffic(index_t times) const {
  const model::Section& s = this->section();
  const comm::DataGroups& g = this->groups();
  const auto master = static_cast<index_t>(sizeof(M));
  const index_t params_1d = master * s.params_1d.size(), params_2d = master * s.flat.size() - params_1d;
  return {.data_parallel = comm::all_reduce_bytes(params_1d, g.data.size()) +
                           comm::all_reduce_bytes(params_2d / g.shard.size(), g.replicate.size()) +
                           times * shard_sum_->bytes(s.flat.size() - s.params_1d.size())};
}

template <class T>
Zero1Reducer<T>::Zero1Reducer(const ReducerContext<T>& c)
    : ZeroReducer<T>(c, {.micro_batches = ReduceWhen::all_of_step}),
      running_(static_cast<std::size_t>(c.section.units.size())) {}

template <class T>
void Zero1Reducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.gradient);
}

template <class T>
void Zero1Reducer<T>::start(index_t unit) {
  running_[started_++] = {unit, this->shard_sum().start(this->gradient_of(unit))};
}

template <class T>
void Zero1Reducer<T>::completed(index_t unit) {
  const Region region(this->device().timers(), "gradient reduction, overlapped");
  if (this->overlap()) start(unit);
  while (done_ < started_ && running_[done_].request.test()) ++done_;
}

template <class T>
void Zero1Reducer<T>::finish_step() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  const Range& units = this->section().units;
  if (!this->overlap()) {
    for (index_t u = units.end - 1; u >= units.begin; --u) start(u);
  }
  for (std::size_t i = 0; i < started_; ++i) {
    running_[i].request.wait();
    this->shard_sum().store(this->gradient_of(running_[i].unit));
  }
  started_ = done_ = 0;
  this->reduce_1d();
  this->reduce_over_replicates();
}

template <class T>
Zero23Reducer<T>::Zero23Reducer(const ReducerContext<T>& c)
    : ZeroReducer<T>(c, {.micro_batches = 1, .end_apart = adds_in_turn(c.config.parallel, c.model.table())}),
      end_apart_(adds_in_turn(c.config.parallel, c.model.table()) && c.section.units.begin == 0) {
  pending_.reserve(model::unit_slots);
}

template <class T>
void Zero23Reducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.reduced);
}

template <class T>
comm::StepTraffic Zero23Reducer<T>::strategy_traffic() const {
  const index_t twice = end_apart_ ? this->unit(this->table().embedding_unit()).range.size() : 0;
  return this->zero_traffic(this->micro_batches()) +
         comm::StepTraffic{.data_parallel = this->micro_batches() * this->shard_sum().bytes(twice)};
}

template <class T>
void Zero23Reducer<T>::before_first_use(index_t number) {
  const model::ParameterTable& table = this->table();
  const index_t unit = this->unit_of(number);
  const auto in_slot = [&](const PendingReduction& f) { return slot_of(table, f.unit) == slot_of(table, unit); };
  while (std::ranges::any_of(pending_, in_slot)) finish_first();
  kernels::fill<M>(this->device(), this->gradient_of(unit), 0.0);
}

template <class T>
void Zero23Reducer<T>::completed(index_t number) {
  const index_t unit = this->unit_of(number);
  {
    const Region region(this->device().timers(), "gradient reduction, overlapped");
    pending_.push_back({unit, this->shard_sum().start(this->gradient_of(unit))});
  }
  if (!this->overlap()) finish_first();
}

template <class T>
void Zero23Reducer<T>::finish_first() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  pending_.front().request.wait();
  const index_t unit = pending_.front().unit;
  const Range mine = shard_of(this->unit(unit), this->sharding());
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  this->shard_sum().add(this->gradient_of(unit),
                        Vector<M>(p.gradient.data() + p.layouts.reduced.at(mine.begin), mine.size()));
  pending_.erase(pending_.begin());
}

template <class T>
void Zero23Reducer<T>::finish_step() {
  while (!pending_.empty()) finish_first();
  const typename GradientReducer<T>::Exposed exposed(*this);
  this->reduce_1d();
  this->reduce_over_replicates();
}

}  // namespace

void check_zero(const deck::Config& c, deck::Findings& f) {
  using namespace deck::phrases;
  const deck::ParallelConfig& p = c.parallel;
  if (p.zero_size == 0 || !f.is_valid({"parallel.zero_size", "parallel.zero_stage", "parallel.dp", "parallel.cp"}))
    return;
  if (p.zero_stage == 0) {
    f.error({"parallel.zero_size"}, "zero_size = " + text(p.zero_size) + ", but zero_stage = 0 shards nothing",
            "zero_size = 0, or zero_stage from 1 to 3");
    return;
  }
  const std::int64_t replicas = p.dp * p.cp;
  if (replicas == 0 || replicas % p.zero_size == 0) return;
  f.error({"parallel.zero_size"},
          "zero_size = " + text(p.zero_size) + " does not divide the data-parallel group of " + text(replicas) +
              " ranks (dp x cp)",
          nearest_divisors(p.zero_size, replicas));
}

template <class T>
std::unique_ptr<GradientReducer<T>> make_zero_1(const ReducerContext<T>& context) {
  return std::make_unique<Zero1Reducer<T>>(context);
}

template <class T>
std::unique_ptr<GradientReducer<T>> make_zero_23(const ReducerContext<T>& context) {
  return std::make_unique<Zero23Reducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T)                                                       \
  template std::unique_ptr<GradientReducer<T>> make_zero_1(const ReducerContext<T>&); \
  template std::unique_ptr<GradientReducer<T>> make_zero_23(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
