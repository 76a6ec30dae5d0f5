#include "state_snapshot.hpp"

#include <cstdint>
#include <utility>

#include "io/blocks/page_buffer.hpp"
#include "io/blocks/pieces.hpp"

namespace nanotron::io {
namespace {

// f(part, type) for the parts of all tensors.
template <class F>
void for_each_part(std::span<StateTensor> tensors, ScalarType type, const F& f) {
  for (StateTensor& tensor : tensors)
    for (StatePart& part : tensor.parts)
      if (!is_empty(part)) f(part, type);
}

std::size_t whole_pages(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

template <class F>
void StateSnapshot::for_each_steady_part(const F& f) {
  for_each_part(parameters_, contents_.master, f);
  for (StateGroup& group : moments_) for_each_part(group.tensors, group.type, f);
}

void StateSnapshot::take_tensors(const CheckpointContents& contents) {
  parameters_.assign(contents.parameters.begin(), contents.parameters.end());
  compression_.assign(contents.compression.begin(), contents.compression.end());
  moments_.assign(contents.moments.begin(), contents.moments.end());
  data_.assign(contents.data.begin(), contents.data.end());
  contents_ = contents;
  contents_.parameters = parameters_;
  contents_.compression = compression_;
  contents_.moments = moments_;
  contents_.data = data_;
}

std::byte* StateSnapshot::memory() {
  std::size_t bytes = 0;
  const auto count = [&](const StatePart& part, ScalarType type) { bytes += whole_pages(bytes_of(part, type)); };
  for_each_part(compression_, contents_.master, count);
  for_each_steady_part(count);
  return copies_.memory(bytes);
}

void StateSnapshot::reserve(const CheckpointContents& contents) {
  take_tensors(contents);
  memory();
}

void StateSnapshot::begin(const CheckpointContents& contents) {
  take_tensors(contents);
  std::byte* at = memory();
  std::vector<PartCopy> copies;
  const auto add = [&](StatePart& part, ScalarType type) {
    const StatePart packed = packed_at(at, part);
    copies.push_back({part, packed, type});
    part = packed;
    at += whole_pages(bytes_of(part, type));
  };
  for_each_part(compression_, contents_.master, add);
  if (!copies.empty()) {
    copies_.start(std::exchange(copies, {}));
    copies_.wait();
  }
  for_each_steady_part(add);
  copies_.start(std::move(copies));
}

}  // namespace nanotron::io
