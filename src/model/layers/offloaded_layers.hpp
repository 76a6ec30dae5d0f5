#pragma once

// Activations that wait in host memory (parallel%offload_layers = n): those of the first n layers of each virtual
// stage. These have no memory of their own on the device. Layer l uses buffer l mod 3, which all micro-batches share;
// with it goes its input x, but not the first layer's, which may come in a message.
//
//   forward    of layer l writes buffer l, and its output to buffer l + 1; buffer l - 1 goes to the host meanwhile
//   backward   of layer l reads buffer l, may write its output to buffer l + 1; buffer l - 1 comes back meanwhile
//
// An asynchronous copy of a layer takes as long as the layer computes, or the step waits for it.

#include <optional>
#include <vector>

#include "nanotron/comm/operation_log.hpp"
#include "nanotron/model/layers/activations.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/host_transfers.hpp"

namespace nanotron::model {

class OffloadedLayers {
 public:
  /// Of one layer of a stage: what its activations take.
  using LayerPlans = std::vector<MemoryPlan>;

  /// plans: by virtual stage, of its offloaded layers; slots: of each stage.
  OffloadedLayers(Arena& arena, std::vector<LayerPlans> plans, const std::vector<index_t>& slots);

  index_t layers(index_t stage) const { return static_cast<index_t>(plans_[static_cast<std::size_t>(stage)].size()); }
  /// Where the views of an offloaded layer are taken from; planning like the arena of the constructor.
  Arena memory_of(index_t stage, index_t layer) const;

  // Around the functions of each layer, offloaded or not. The caller queues a layer's work between the two calls.
  void before_forward(Device& device, const Slot& slot, index_t layer);
  void after_forward(Device& device, const Slot& slot, index_t layer);
  void before_backward(Device& device, const Slot& slot, index_t layer);
  void after_backward(Device& device, const Slot& slot, index_t layer);

 private:
  static constexpr index_t count = 3;
  struct Key {
    index_t stage = 0, slot = 0, layer = 0;
    bool operator==(const Key&) const = default;
  };
  // complete: the layer's activations, which the host has too once `copy` is done.
  enum class Content { none, written, complete };
  struct Buffer {
    Vector<std::byte> memory{};
    Content content = Content::none;
    Key of{};
    std::optional<HostTransfers::Ticket> copy{};  // out or in
  };

  bool holds(const Slot& slot, index_t layer) const { return layer >= 0 && layer < layers(slot.stage); }
  Buffer& buffer_of(index_t layer) { return buffers_[static_cast<std::size_t>(layer % count)]; }
  std::size_t bytes(const Key& key) const;
  std::byte* on_host(const Key& key) const;
  void copy(Device& device, Buffer& buffer, comm::GroupKind direction);
  void settle(Device& device, Buffer& buffer);
  void begin_writing(Device& device, const Slot& slot, index_t layer);
  void begin_loading(Device& device, const Slot& slot, index_t layer);

  std::vector<LayerPlans> plans_;
  std::vector<std::vector<index_t>> offsets_;  // of a slot of each stage: its layers, and their end
  std::vector<Vector<std::byte>> host_;        // by stage: (slots, bytes of its layers)
  std::vector<Buffer> buffers_;                // empty where no layer is offloaded
  Processor processor_;
  bool is_planning_;
  std::optional<HostTransfers> transfers_;
};

}  // namespace nanotron::model
