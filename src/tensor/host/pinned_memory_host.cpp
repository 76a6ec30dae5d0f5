#include <new>

#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron {

PinnedMemory::PinnedMemory(std::size_t bytes) : data_(static_cast<std::byte*>(::operator new(bytes))) {}
PinnedMemory::~PinnedMemory() { ::operator delete(data_); }

}  // namespace nanotron
