
#include <optional>

#include "io/blocks/gpu/packed_rows.hpp"
#include "io/checkpoint/state_snapshot.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron::io {

struct HostCopies::Work {
  std::optional<PinnedMemory> memory;
  std::size_t bytes = 0;
  gpuStream_t stream = nullptr;  // beside that of the run

  Work() { NANOTRON_CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking)); }
  ~Work() { static_cast<void>(gpuStreamDestroy(stream)); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
};

HostCopies::HostCopies() = default;

HostCopies::~HostCopies() {
  if (work_) static_cast<void>(gpuStreamSynchronize(work_->stream));
}

std::byte* HostCopies::memory(std::size_t bytes) {
  if (!work_) work_ = std::make_unique<Work>();
  if (bytes > work_->bytes) {
    work_->memory.reset();
    work_->memory.emplace(bytes);
    work_->bytes = bytes;
  }
  return work_->memory ? work_->memory->data() : nullptr;
}

void HostCopies::start(std::vector<PartCopy> copies) {
  NANOTRON_CHECK_GPU(gpuDeviceSynchronize());
  for (const PartCopy& part : copies)
    copy_to_packed(static_cast<std::byte*>(part.to.data), part.from, part.type, work_->stream);
}

void HostCopies::wait() {
  if (work_) NANOTRON_CHECK_GPU(gpuStreamSynchronize(work_->stream));
}

}  // namespace nanotron::io
