#include "offloaded_layers.hpp"

#include <algorithm>

namespace nanotron::model {

OffloadedLayers::OffloadedLayers(Arena& arena, std::vector<LayerPlans> plans, const std::vector<index_t>& slots)
    : plans_(std::move(plans)), processor_(arena.processor()), is_planning_(arena.is_planning()) {
  index_t most = 0, used = 0;
  for (std::size_t stage = 0; stage < plans_.size(); ++stage) {
    std::vector<index_t>& offsets = offsets_.emplace_back(std::vector<index_t>{0});
    for (const MemoryPlan& plan : plans_[stage]) {
      const auto size = static_cast<index_t>(Arena::bytes_of(plan));
      offsets.push_back(offsets.back() + size);
      most = std::max(most, size);
    }
    used = std::max(used, std::min(count, layers(static_cast<index_t>(stage))));
    host_.push_back(arena.take<std::byte>(MemoryKind::host_activations, slots[stage] * offsets.back()));
  }
  for (index_t i = 0; i < used; ++i) {
    buffers_.push_back({.memory = arena.take<std::byte>(MemoryKind::workspace, most)});
  }
  if (!is_planning_ && used > 0) transfers_.emplace();
}

Arena OffloadedLayers::memory_of(index_t stage, index_t layer) const {
  if (is_planning_) return Arena::planning(processor_);
  const Vector<std::byte>& memory = buffers_[static_cast<std::size_t>(layer % count)].memory;
  return {plans_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(layer)], {memory.data(), memory.size()}};
}

std::size_t OffloadedLayers::bytes(const Key& key) const {
  return Arena::bytes_of(plans_[static_cast<std::size_t>(key.stage)][static_cast<std::size_t>(key.layer)]);
}

std::byte* OffloadedLayers::on_host(const Key& key) const {
  const std::vector<index_t>& offsets = offsets_[static_cast<std::size_t>(key.stage)];
  return host_[static_cast<std::size_t>(key.stage)].data() + key.slot * offsets.back() +
         offsets[static_cast<std::size_t>(key.layer)];
}

// Starts it, of the layer that the buffer has.
void OffloadedLayers::copy(Device& device, Buffer& buffer, comm::GroupKind direction) {
  const std::size_t size = bytes(buffer.of);
  if (is_planning_) {
    const comm::PlannedOperation planned{
        .operation = comm::Operation::copy, .group = direction, .bytes = static_cast<double>(size)};
    if (device.work() != nullptr) buffer.copy = device.work()->started(planned);
  } else if (direction == comm::GroupKind::to_host) {
    buffer.copy = transfers_->to_host(device, buffer.memory.data(), on_host(buffer.of), size);
  } else {
    buffer.copy = transfers_->to_device(device, on_host(buffer.of), buffer.memory.data(), size);
  }
}

// What is queued from now on may write to the buffer.
void OffloadedLayers::settle(Device& device, Buffer& buffer) {
  if (!buffer.copy) return;
  if (is_planning_) {
    device.work()->waited(*buffer.copy);
  } else {
    transfers_->wait(device, *buffer.copy);
  }
  buffer.copy.reset();
}

void OffloadedLayers::begin_writing(Device& device, const Slot& slot, index_t layer) {
  Buffer& buffer = buffer_of(layer);
  const Key key{slot.stage, slot.index, layer};
  if (buffer.content == Content::written && buffer.of == key) return;  // the layer before has written its output
  settle(device, buffer);
  buffer.content = Content::written;
  buffer.of = key;
}

void OffloadedLayers::begin_loading(Device& device, const Slot& slot, index_t layer) {
  Buffer& buffer = buffer_of(layer);
  const Key key{slot.stage, slot.index, layer};
  if (buffer.content == Content::complete && buffer.of == key) return;
  settle(device, buffer);
  buffer.content = Content::complete;
  buffer.of = key;
  copy(device, buffer, comm::GroupKind::from_host);
}

void OffloadedLayers::before_forward(Device& device, const Slot& slot, index_t layer) {
  if (holds(slot, layer)) begin_writing(device, slot, layer);
  if (holds(slot, layer + 1)) begin_writing(device, slot, layer + 1);
}

void OffloadedLayers::after_forward(Device& device, const Slot& slot, index_t layer) {
  if (!holds(slot, layer)) return;
  Buffer& buffer = buffer_of(layer);
  buffer.content = Content::complete;
  copy(device, buffer, comm::GroupKind::to_host);
}

void OffloadedLayers::before_backward(Device& device, const Slot& slot, index_t layer) {
  if (holds(slot, layer)) {
    begin_loading(device, slot, layer);
    settle(device, buffer_of(layer));
  }
  if (holds(slot, layer - 1)) begin_loading(device, slot, layer - 1);
}

void OffloadedLayers::after_backward(Device&, const Slot& slot, index_t layer) {
  if (holds(slot, layer)) buffer_of(layer).content = Content::none;
}

}  // namespace nanotron::model
