#include <Kokkos_Core.hpp>

#include <cstring>
#include <future>

#include "io/blocks/page_buffer.hpp"
#include "io/blocks/pieces.hpp"
#include "io/checkpoint/state_snapshot.hpp"

namespace nanotron::io {

struct HostCopies::Work {
  PageBuffer memory;
  std::future<void> copied;
};

namespace {

void copy(const PartCopy& part) {
  const MemoryRows from(part.from, part.type);
  auto* to = static_cast<std::byte*>(part.to.data);
  if (from.pitch == from.width && (from.layers == 1 || from.layer_pitch == from.rows * from.width)) {
    std::memcpy(to, from.begin, from.layers * from.rows * from.width);
    return;
  }
  for (std::size_t layer = 0; layer < from.layers; ++layer) {
    for (std::size_t row = 0; row < from.rows; ++row, to += from.width)
      std::memcpy(to, from.begin + layer * from.layer_pitch + row * from.pitch, from.width);
  }
}

}  // namespace

HostCopies::HostCopies() : work_(std::make_unique<Work>()) {}
HostCopies::~HostCopies() { wait(); }

std::byte* HostCopies::memory(std::size_t bytes) {
  if (bytes > work_->memory.size()) work_->memory = {}, work_->memory = PageBuffer(bytes);
  return work_->memory.data();
}

void HostCopies::start(std::vector<PartCopy> copies) {
  Kokkos::fence();
  work_->copied = std::async(std::launch::async, [copies = std::move(copies)] {
    for (const PartCopy& part : copies) copy(part);
  });
}

void HostCopies::wait() {
  if (work_->copied.valid()) work_->copied.get();
}

}  // namespace nanotron::io
