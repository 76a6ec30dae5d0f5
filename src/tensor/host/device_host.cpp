#include <new>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "nanotron/tensor/stream_timers.hpp"

namespace nanotron {

std::string device_name() { return ""; }

std::string device_bus_id() { return ""; }

PinnedMemory::PinnedMemory(std::size_t bytes) : data_(static_cast<std::byte*>(::operator new(bytes))) {}
PinnedMemory::~PinnedMemory() { ::operator delete(data_); }

std::unique_ptr<Timers> make_stream_timers(const comm::Stream&, TimerDetail) { return std::make_unique<Timers>(); }

}  // namespace nanotron
