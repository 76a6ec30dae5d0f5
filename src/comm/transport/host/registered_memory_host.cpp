#include <new>

#include "nanotron/comm/transport/registered_memory.hpp"

namespace nanotron::comm {
namespace {

constexpr std::align_val_t alignment{256};

}  // namespace

RegisteredMemory::RegisteredMemory(ProcessGrid& grid, std::size_t bytes, deck::MemoryRegistration how)
    : grid_(grid), bytes_(static_cast<std::byte*>(::operator new(bytes, alignment)), bytes) {
  grid_.register_memory({bytes_, how});
}

RegisteredMemory::~RegisteredMemory() {
  grid_.register_memory({});
  ::operator delete(bytes_.data(), alignment);
}

}  // namespace nanotron::comm
