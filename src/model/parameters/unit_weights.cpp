#include "nanotron/model/parameters/unit_weights.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {
namespace {

template <class T>
class LocalWeights final : public SectionWeights<T> {
 public:
  using M = master_t<T>;
  LocalWeights(const nn::ParameterBuffers<T>& buffers, Device& device) : buffers_(buffers), device_(&device) {}

  void round() override {
    if constexpr (std::is_same_v<T, M>) return;
    for (const nn::BufferLayout::Part& part : buffers_.layouts.master.parts()) {
      T* const to = buffers_.compute.data() + buffers_.layouts.compute.at(part.range.begin);
      kernels::cast<M, T>(*device_, Vector<const M>(buffers_.master.data() + part.at, part.range.size()),
                          Vector<T>(to, part.range.size()));
    }
  }
  void gather() override {}
  void use(index_t, index_t) override {}
  void finish() override {}
  index_t gathered_elements(std::span<const SourceUse>) const override { return 0; }

 private:
  nn::ParameterBuffers<T> buffers_;
  Device* device_;
};

// This rank's shards of the units of a section, and the all-gather of a unit.
template <class T>
class UnitShards {
 public:
  using M = master_t<T>;
  UnitShards(const Sharding& sharding, const ParameterTable& table, const Section& section,
             const nn::ParameterBuffers<T>& buffers, Device& device)
      : sharding_(sharding),
        units_(table.units),
        section_(section.units),
        is_copied_(section.is_frozen && buffers.layouts.frozen.size() > 0),
        buffers_(buffers),
        device_(&device) {}

  /// Unit numbers of the section.
  const Range& units() const { return section_; }
  index_t elements(index_t unit) const { return units_[static_cast<std::size_t>(unit)].range.size(); }

  /// This rank's shard of the unit, cast.
  void round(index_t unit) const {
    const auto [whole, shard, mine] = place_of(unit);
    if (is_copied_) {
      const T* const stored = buffers_.frozen.data() + buffers_.layouts.frozen.at(mine.begin);
      kernels::copy<T>(*device_, Vector<const T>(stored, mine.size()), Vector<T>(shard, mine.size()));
      return;
    }
    M* const master = buffers_.master.data() + buffers_.layouts.master.at(mine.begin);
    if (static_cast<const void*>(master) != shard) {
      kernels::cast<M, T>(*device_, Vector<const M>(master, mine.size()), Vector<T>(shard, mine.size()));
    }
  }
  /// Of the shards, which have been cast.
  comm::Request start_gather(index_t unit) const {
    const auto [whole, shard, mine] = place_of(unit);
    return comm::start_all_gather(*sharding_.of(units_[static_cast<std::size_t>(unit)].replicas).group,
                                  static_cast<const T*>(shard), static_cast<std::size_t>(mine.size()), whole,
                                  device_->stream());
  }

 private:
  // The unit and this rank's shard of it, in the buffer that GEMMs read; the shard in the flat space.
  struct Place {
    T *whole, *shard;
    Range mine;
  };
  Place place_of(index_t unit) const {
    const Unit& u = units_[static_cast<std::size_t>(unit)];
    const Range mine = shard_of(u, sharding_);
    T* const whole = buffers_.compute.data() + buffers_.layouts.compute.at(u.range.begin);
    return {whole, whole + (mine.begin - u.range.begin), mine};
  }

  Sharding sharding_;
  std::vector<Unit> units_;
  Range section_;
  bool is_copied_;  // from weights in T that never change, else cast
  nn::ParameterBuffers<T> buffers_;
  Device* device_;
};

// Frozen weights of which every rank stores all, where GEMMs read them.
template <class T>
class ReplicatedWeights final : public SectionWeights<T> {
 public:
  void round() override {}
  void gather() override {}
  void use(index_t, index_t) override {}
  void finish() override {}
  index_t gathered_elements(std::span<const SourceUse>) const override { return 0; }
};

// ComputeWeights::codes: a layer is cast before it is used, all else once.
template <class T>
class OneLayer final : public SectionWeights<T> {
 public:
  OneLayer(UnitShards<T> shards, const ParameterTable& table)
      : shards_(std::move(shards)), layers_{table.layer_unit(0), table.layer_unit(table.layers)} {}

  void round() override {
    held_ = no_unit;
    for (index_t u = shards_.units().begin; u < shards_.units().end; ++u) {
      if (!layers_.contains(u)) shards_.round(u);
    }
  }
  void gather() override {}
  void use(index_t unit, index_t) override {
    if (layers_.contains(unit) && std::exchange(held_, unit) != unit) shards_.round(unit);
  }
  void finish() override {}
  index_t gathered_elements(std::span<const SourceUse>) const override { return 0; }

 private:
  UnitShards<T> shards_;
  Range layers_;            // their units
  index_t held_ = no_unit;  // the layer in the place that all share
};

// ZeRO-1 and ZeRO-2: all-gathers of all units start after the update, in the order in which forward reads them. Of an
// update that goes beside forward, each starts one use before its own.
template <class T>
class GatheredOnce final : public SectionWeights<T> {
 public:
  GatheredOnce(UnitShards<T> shards, Device& device)
      : shards_(std::move(shards)),
        device_(&device),
        running_(static_cast<std::size_t>(shards_.units().end)),
        started_(shards_.units().end),
        arrived_(shards_.units().end) {}

  void round() override {
    wait_for(started_);
    for (index_t u = shards_.units().begin; u < shards_.units().end; ++u) shards_.round(u);
  }
  void gather() override {
    gather_in_use();
    start(shards_.units().end);
  }
  void gather_in_use() override {
    wait_for(started_);
    started_ = arrived_ = shards_.units().begin;
  }
  void use(index_t unit, index_t next) override {
    start(std::max(unit, next) + 1);
    wait_for(unit + 1);
  }
  void finish() override {
    start(shards_.units().end);
    wait_for(shards_.units().end);
  }
  index_t gathered_elements(std::span<const SourceUse>) const override {
    index_t sum = 0;
    for (index_t u = shards_.units().begin; u < shards_.units().end; ++u) sum += shards_.elements(u);
    return sum;
  }

 private:
  // Units before `end`.
  void start(index_t end) {
    if (started_ >= end) return;
    const Region region(device_->timers(), "parameter all-gather, start");
    for (; started_ < end; ++started_) running_[static_cast<std::size_t>(started_)] = shards_.start_gather(started_);
  }
  void wait_for(index_t end) {
    if (arrived_ >= end) return;
    const Region region(device_->timers(), "parameter all-gather, wait");
    while (arrived_ < end) running_[static_cast<std::size_t>(arrived_++)].wait();
  }

  UnitShards<T> shards_;
  Device* device_;
  std::vector<comm::Request> running_;  // by unit
  index_t started_, arrived_;           // units before it are being gathered; are gathered
};

// Which unit is in each slot. A slot keeps its unit until another one needs the slot: backward finds the last two
// layers of forward still gathered, and the next forward finds the last two layers of backward.
class SlotsInUse {
 public:
  explicit SlotsInUse(const ParameterTable& table) {
    for (index_t u = 0; u < static_cast<index_t>(table.units.size()); ++u) slot_of_.push_back(model::slot_of(table, u));
    clear();
  }
  void clear() { units_.fill(no_unit); }
  std::size_t slot_of(index_t unit) const { return slot_of_[static_cast<std::size_t>(unit)]; }

  /// True when the unit has to be gathered. From now on the slot is the unit's.
  bool claim(index_t unit) {
    index_t& held = units_[slot_of(unit)];
    return std::exchange(held, unit) != unit;
  }
  /// True when `next` exists and does not need the slot of `unit`.
  bool may_follow(index_t unit, index_t next) const { return next != no_unit && slot_of(next) != slot_of(unit); }

 private:
  std::vector<std::size_t> slot_of_;
  std::array<index_t, unit_slots> units_{};
};

// ZeRO-3: a unit is gathered into its slot before it is used.
template <class T>
class GatheredPerUse final : public SectionWeights<T> {
 public:
  GatheredPerUse(UnitShards<T> shards, const ParameterTable& table, Device& device)
      : shards_(std::move(shards)), device_(&device), slots_(table) {}

  void round() override {}
  void gather() override { forget(); }
  void forget() override {
    finish();
    slots_.clear();
  }
  void use(index_t unit, index_t next) override {
    const Region region(device_->timers(), "parameter all-gather, wait");
    gather(unit);
    running_[slots_.slot_of(unit)].wait();
    if (slots_.may_follow(unit, next)) gather(next);
  }
  void finish() override {
    for (comm::Request& running : running_) running.wait();
  }
  index_t gathered_elements(std::span<const SourceUse> uses) const override {
    index_t sum = 0;
    SlotsInUse slots = slots_;
    slots.clear();
    const auto gathered = [&](index_t unit) { return slots.claim(unit) ? shards_.elements(unit) : 0; };
    for (const auto& [unit, next] : uses) {
      sum += gathered(unit);
      if (slots.may_follow(unit, next)) sum += gathered(next);
    }
    return sum;
  }

 private:
  void gather(index_t unit) {
    if (!slots_.claim(unit)) return;
    comm::Request& running = running_[slots_.slot_of(unit)];
    running.wait();
    shards_.round(unit);
    running = shards_.start_gather(unit);
  }

  UnitShards<T> shards_;
  Device* device_;
  SlotsInUse slots_;
  std::vector<comm::Request> running_ = std::vector<comm::Request>(unit_slots);  // by slot
};

template <class T>
std::unique_ptr<SectionWeights<T>> make_local(const Sharding& sharding, const ParameterTable& table,
                                              const nn::ParameterBuffers<T>& buffers, Device& device) {
  if (buffers.layouts.compute == buffers.layouts.master || table.has_frozen())
    return std::make_unique<LocalWeights<T>>(buffers, device);
  return std::make_unique<OneLayer<T>>(UnitShards<T>(sharding, table, table.dense(), buffers, device), table);
}

template <class T>
std::unique_ptr<SectionWeights<T>> make_gathered(const Sharding& sharding, const ParameterTable& table,
                                                 const Section& section, const nn::ParameterBuffers<T>& buffers,
                                                 Device& device) {
  UnitShards<T> shards(sharding, table, section, buffers, device);
  if (sharding.stage < 3 && section.is_frozen) return std::make_unique<ReplicatedWeights<T>>();
  if (sharding.stage < 3) return std::make_unique<GatheredOnce<T>>(std::move(shards), device);
  return std::make_unique<GatheredPerUse<T>>(std::move(shards), table, device);
}

}  // namespace

template <class T>
UnitWeights<T>::UnitWeights(const Sharding& sharding, const ParameterTable& table,
                            const nn::ParameterBuffers<T>& buffers, Device& device)
    : table_(table) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (buffers.layouts.compute == nn::BufferLayout::whole(table.size)) copy_ = buffers.compute;
  }
  gathers_ = sharding.size() > 1;
  casts_ = !std::is_same_v<T, master_t<T>> && copy_.extent(0) == 0 && !(gathers_ && sharding.stage == 3);
  if (!gathers_) {
    parts_.push_back({table.dense(), 1, make_local<T>(sharding, table, buffers, device)});
    return;
  }
  for (const Section& section : table.sections) {
    parts_.push_back(
        {section, sharding.size(section.replicas), make_gathered<T>(sharding, table, section, buffers, device)});
  }
}

template <class T>
SourceUse UnitWeights<T>::in(const Section& section, const SourceUse& use) const {
  return {table_.unit_of(use.source, section), use.next == no_unit ? no_unit : table_.unit_of(use.next, section)};
}

template <class T>
void UnitWeights<T>::refresh() {
  if (rest_ != nullptr) std::exchange(rest_, nullptr)->finish();
  for (Part& part : parts_) part.weights->round();
  for (Part& part : parts_) part.weights->gather();
}

template <class T>
void UnitWeights<T>::refresh_after_update(RestOfUpdate* rest) {
  rest_ = rest;
  if (rest_ == nullptr) {
    if (copy_.extent(0) == 0) return refresh();
    for (Part& part : parts_) part.weights->gather();
    return;
  }
  if (casts_) {
    rest_->queue(table_.sources());
    for (Part& part : parts_) part.weights->round();
  }
  gather_in_use();
}

template <class T>
void UnitWeights<T>::update(index_t source) {
  if (rest_ != nullptr) rest_->queue(source);
}

template <class T>
void UnitWeights<T>::use(const SourceUse& use) {
  update(gathers_ ? std::max(use.source, use.next) : use.source);
  for (Part& part : parts_) {
    const auto [unit, next] = in(part.section, use);
    if (unit != no_unit) part.weights->use(unit, next);
  }
}

template <class T>
void UnitWeights<T>::forget() {
  for (Part& part : parts_) part.weights->forget();
}

template <class T>
void UnitWeights<T>::gather_in_use() {
  for (Part& part : parts_) part.weights->gather_in_use();
}

template <class T>
void UnitWeights<T>::finish() {
  if (rest_ != nullptr) std::exchange(rest_, nullptr)->finish();
  for (Part& part : parts_) part.weights->finish();
}

template <class T>
comm::StepTraffic UnitWeights<T>::traffic(std::span<const SourceUse> uses) const {
  comm::StepTraffic sum;
  for (const Part& part : parts_) {
    std::vector<SourceUse> here;
    for (const SourceUse& use : uses) {
      const SourceUse of_section = in(part.section, use);
      if (of_section.source != no_unit) here.push_back(of_section);
    }
    const index_t elements = part.weights->gathered_elements(here) / part.ranks;
    sum.data_parallel += comm::all_gather_bytes(static_cast<index_t>(sizeof(T)) * elements, part.ranks);
  }
  return sum;
}

NANOTRON_INSTANTIATE_CLASS(UnitWeights)

}  // namespace nanotron::model
