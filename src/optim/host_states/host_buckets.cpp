#include "optim/host_states/host_buckets.hpp"

#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/operation_log.hpp"

namespace nanotron::optim {
namespace {

constexpr std::size_t largest_bucket = std::size_t{32} << 20, min_buffers = 3, max_buffers = 16;
constexpr index_t alignment = 256;  // elements

// Contiguous ranges of one source together, up to so many elements.
std::vector<Range> buckets_of(const std::vector<SourceElements>& order, index_t most) {
  std::vector<Range> buckets;
  index_t source = model::no_unit;
  for (const auto& [of, elements] : order) {
    Range rest = elements;
    if (!buckets.empty() && of == source && rest.begin == buckets.back().end) {
      Range& last = buckets.back();
      last.end = rest.begin = std::min(rest.end, last.begin + most);
    }
    for (; rest.size() > 0; rest.begin = buckets.back().end)
      buckets.push_back({rest.begin, std::min(rest.end, rest.begin + most)});
    source = of;
  }
  return buckets;
}

// Of a layer, say: what comes in while the one before computes.
index_t largest_source(const std::vector<SourceElements>& order) {
  index_t largest = 0, sum = 0, source = model::no_unit;
  for (const auto& [of, elements] : order) {
    sum = of == source && of != model::no_unit ? sum + elements.size() : elements.size();
    source = of;
    if (of != model::no_unit) largest = std::max(largest, sum);
  }
  return largest;
}

}  // namespace

HostBuckets::HostBuckets(const std::vector<SourceElements>& order, StatesOnHost host, Arena& arena)
    : host_(std::move(host)) {
  const std::size_t of_element = host_.element * host_.states.size();
  std::size_t all = 0;
  for (const SourceElements& of_source : order) all += static_cast<std::size_t>(of_source.elements.size()) * of_element;
  if (all == 0) return;
  const std::size_t bucket = host_.bucket > 0 ? host_.bucket : std::min(largest_bucket, all / 32);
  index_t longest = 0;
  for (const Range& range : buckets_of(order, static_cast<index_t>(all))) longest = std::max(longest, range.size());
  const index_t wanted = std::clamp<index_t>(static_cast<index_t>(bucket / of_element), 1, longest);
  const index_t most = (wanted + alignment - 1) / alignment * alignment;
  const auto ahead = static_cast<std::size_t>((largest_source(order) + most - 1) / most);
  buckets_ = buckets_of(order, most);
  buffers_.resize(std::min(buckets_.size(), std::clamp(ahead, min_buffers, max_buffers)));
  state_bytes_ = static_cast<std::size_t>(most) * host_.element;
  const std::size_t bytes = buffers_.size() * host_.states.size() * state_bytes_;
  memory_ = arena.take<std::byte>(MemoryKind::workspace, static_cast<index_t>(bytes));
  if (!arena.is_planning()) transfers_.emplace();
}

void HostBuckets::begin(Device& device) {
  finish(device);
  current_ = 0;
  for (std::size_t bucket = 0; bucket < buffers_.size(); ++bucket) copy(device, bucket, Direction::in);
}

// Starts it. In: where the bucket before goes back from the same buffer, after that.
void HostBuckets::copy(Device& device, std::size_t bucket, Direction direction) {
  Buffer& b = buffer_of(bucket);
  const auto begin = static_cast<std::size_t>(buckets_[bucket].begin);
  const std::size_t bytes = static_cast<std::size_t>(buckets_[bucket].size()) * host_.element;
  const bool comes_in = direction == Direction::in, follows = !b.copies.empty();
  if (!follows) b.copies.resize(host_.states.size());
  for (std::size_t i = 0; i < host_.states.size(); ++i) {
    if (device.is_planning()) {
      const comm::PlannedOperation planned{.operation = comm::Operation::copy,
                                           .group = comes_in ? comm::GroupKind::from_host : comm::GroupKind::to_host,
                                           .bytes = static_cast<double>(bytes)};
      if (device.work() != nullptr) b.copies[i] = device.work()->started(planned);
      continue;
    }
    std::byte *const here = in_buffer(bucket, i), *const there = host_.states[i] + begin * host_.element;
    b.copies[i] = !comes_in ? transfers_->to_host(device, here, there, bytes)
                  : follows ? transfers_->to_device_after(b.copies[i], device, there, here, bytes)
                            : transfers_->to_device(device, there, here, bytes);
  }
}

void HostBuckets::settle(Device& device, Buffer& buffer) {
  for (const HostTransfers::Ticket ticket : buffer.copies) {
    if (!device.is_planning()) transfers_->wait(device, ticket);
    if (device.work() != nullptr) device.work()->waited(ticket);
  }
  buffer.copies.clear();
}

Range HostBuckets::load(Device& device, index_t element) {
  if (current_ > 0 && !is_stored_ && buckets_[current_ - 1].contains(element)) return buckets_[current_ - 1];
  store(device);
  NANOTRON_REQUIRE(current_ < buckets_.size() && buckets_[current_].contains(element),
                   "element {} of the states is not the next one of the update", element);
  settle(device, buffer_of(current_));
  ++current_;
  is_stored_ = false;
  return buckets_[current_ - 1];
}

void HostBuckets::store(Device& device) {
  if (is_stored_) return;
  is_stored_ = true;
  const std::size_t bucket = current_ - 1;
  copy(device, bucket, Direction::out);
  if (bucket + buffers_.size() < buckets_.size()) copy(device, bucket + buffers_.size(), Direction::in);
}

void HostBuckets::finish(Device& device) {
  store(device);
  for (Buffer& buffer : buffers_) settle(device, buffer);
}

}  // namespace nanotron::optim
