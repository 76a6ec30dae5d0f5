#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace nanotron::io {

/// What direct I/O asks of addresses, sizes and positions in a file. (At most 4096 on the file systems we know of.)
inline constexpr std::size_t page_bytes = 4096;

/// Memory that begins at a page; its contents are not set.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(std::size_t bytes) : bytes_(bytes) {
    const std::size_t whole = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, whole)));
    if (!memory_ && whole > 0) throw std::bad_alloc();
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace nanotron::io
