#include "nanotron/model/unit_weights.hpp"

#include "nanotron/kernels/elementwise/cast.hpp"

namespace nanotron::model {
namespace {

template <class T>
class LocalWeights final : public UnitWeights<T> {
 public:
  using M = master_t<T>;
  LocalWeights(const nn::ParameterBuffers<T>& buffers, Device& device) : buffers_(buffers), device_(&device) {}

  void refresh() override {
    if constexpr (!std::is_same_v<T, M>) kernels::cast<M, T>(*device_, buffers_.master, buffers_.compute);
  }
  void use(index_t, index_t) override {}
  void settle() override {}

 private:
  nn::ParameterBuffers<T> buffers_;
  Device* device_;
};

// The pieces of this rank, and how those of a unit are put together.
template <class T>
class Pieces {
 public:
  using M = master_t<T>;
  Pieces(const Sharding& sharding, const ParameterTable& table, const Section& section,
         const nn::ParameterBuffers<T>& buffers, Device& device)
      : sharding_(sharding), units_(table.units), section_(section.units), buffers_(buffers), device_(&device) {}

  /// The numbers of the section's units.
  const Range& units() const { return section_; }

  comm::Request start_gather(index_t unit) const {
    const Unit& u = units_[static_cast<std::size_t>(unit)];
    const Range mine = piece_of(u, sharding_);
    T* const whole = buffers_.compute.data() + buffers_.places.compute.at(u.range.begin);
    T* const piece = whole + (mine.begin - u.range.begin);
    M* const master = buffers_.master.data() + buffers_.places.master.at(mine.begin);
    if (static_cast<const void*>(master) != piece) {
      kernels::cast<M, T>(*device_, Vector<const M>(master, mine.size()), Vector<T>(piece, mine.size()));
    }
    return comm::start_all_gather(*sharding_.of(u.holders).group, static_cast<const T*>(piece), static_cast<std::size_t>(mine.size()),
                                  whole, device_->stream());
  }

 private:
  Sharding sharding_;
  std::vector<Unit> units_;
  Range section_;
  nn::ParameterBuffers<T> buffers_;
  Device* device_;
};

// All units set out behind the update, in the order in which forward reads them.
template <class T>
class GatheredOnce final : public UnitWeights<T> {
 public:
  explicit GatheredOnce(Pieces<T> pieces, Device& device)
      : pieces_(std::move(pieces)), device_(&device), running_(static_cast<std::size_t>(pieces_.units().end)),
        arrived_(pieces_.units().end) {}

  void refresh() override {
    settle();
    const Region region(device_->timers(), "weights set out");
    for (index_t u = pieces_.units().begin; u < pieces_.units().end; ++u) {
      running_[static_cast<std::size_t>(u)] = pieces_.start_gather(u);
    }
    arrived_ = pieces_.units().begin;
  }
  void use(index_t unit, index_t) override { wait_for(unit + 1); }
  void settle() override { wait_for(pieces_.units().end); }

 private:
  void wait_for(index_t end) {
    if (arrived_ >= end) return;
    const Region region(device_->timers(), "weights awaited");
    while (arrived_ < end) running_[static_cast<std::size_t>(arrived_++)].wait();
  }

  Pieces<T> pieces_;
  Device* device_;
  std::vector<comm::Request> running_;  // by unit
  index_t arrived_;                     // units before it are whole
};

// Units take their slots by turns. A slot keeps its unit until another needs it, so that backward finds the last
// two layers of forward, and the next micro-batch the first two of backward.
template <class T>
class GatheredPerUse final : public UnitWeights<T> {
 public:
  GatheredPerUse(Pieces<T> pieces, const ParameterTable& table, Device& device)
      : pieces_(std::move(pieces)), device_(&device) {
    for (index_t u = 0; u < pieces_.units().end; ++u) slot_of_.push_back(slot_of(table, u));
  }

  void refresh() override {
    settle();
    for (Slot& slot : slots_) slot.unit = no_unit;
  }
  void use(index_t unit, index_t next) override {
    const Region region(device_->timers(), "weights awaited");
    set_out(unit);
    slot(unit).running.wait();
    if (next != no_unit && slot_of_[static_cast<std::size_t>(next)] != slot_of_[static_cast<std::size_t>(unit)]) {
      set_out(next);
    }
  }
  void settle() override {
    for (Slot& slot : slots_) slot.running.wait();
  }

 private:
  struct Slot {
    index_t unit = no_unit;
    comm::Request running;
  };
  Slot& slot(index_t unit) { return slots_[slot_of_[static_cast<std::size_t>(unit)]]; }

  void set_out(index_t unit) {
    Slot& s = slot(unit);
    if (s.unit == unit) return;
    s.running.wait();
    s.running = pieces_.start_gather(unit);
    s.unit = unit;
  }

  Pieces<T> pieces_;
  Device* device_;
  std::vector<std::size_t> slot_of_;
  std::vector<Slot> slots_ = std::vector<Slot>(unit_slots);
};

// Experts come with the other weights of their layer, from other ranks.
template <class T>
class WithExperts final : public UnitWeights<T> {
 public:
  WithExperts(const ParameterTable& table, std::unique_ptr<UnitWeights<T>> dense, std::unique_ptr<UnitWeights<T>> experts)
      : table_(table), dense_(std::move(dense)), experts_(std::move(experts)) {}

  void refresh() override {
    dense_->refresh();
    experts_->refresh();
  }
  void use(index_t unit, index_t next) override {
    dense_->use(unit, next);
    if (table_.is_layer(unit)) {
      experts_->use(table_.expert_unit(unit), table_.is_layer(next) ? table_.expert_unit(next) : no_unit);
    }
  }
  void settle() override {
    dense_->settle();
    experts_->settle();
  }

 private:
  ParameterTable table_;
  std::unique_ptr<UnitWeights<T>> dense_, experts_;
};

template <class T>
std::unique_ptr<UnitWeights<T>> make_gathered(const Sharding& sharding, const ParameterTable& table, const Section& section,
                                              const nn::ParameterBuffers<T>& buffers, Device& device) {
  Pieces<T> pieces(sharding, table, section, buffers, device);
  if (sharding.stage < 3) return std::make_unique<GatheredOnce<T>>(std::move(pieces), device);
  return std::make_unique<GatheredPerUse<T>>(std::move(pieces), table, device);
}

}  // namespace

template <class T>
std::unique_ptr<UnitWeights<T>> make_unit_weights(const Sharding& sharding, const ParameterTable& table,
                                                  const nn::ParameterBuffers<T>& buffers, Device& device) {
  if (sharding.size == 1) return std::make_unique<LocalWeights<T>>(buffers, device);
  auto dense = make_gathered<T>(sharding, table, table.dense_section(), buffers, device);
  if (!table.has_experts()) return dense;
  return std::make_unique<WithExperts<T>>(
      table, std::move(dense), make_gathered<T>(sharding, table, table.expert_section(), buffers, device));
}

template std::unique_ptr<UnitWeights<double>> make_unit_weights(const Sharding&, const ParameterTable&,
                                                                const nn::ParameterBuffers<double>&, Device&);
template std::unique_ptr<UnitWeights<float>> make_unit_weights(const Sharding&, const ParameterTable&,
                                                               const nn::ParameterBuffers<float>&, Device&);
template std::unique_ptr<UnitWeights<bf16>> make_unit_weights(const Sharding&, const ParameterTable&,
                                                              const nn::ParameterBuffers<bf16>&, Device&);

}  // namespace nanotron::model
