#pragma once

// Many files of which few are open.

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace nanotron::data {

/// At most so many handles; for one more the least recently used is closed. Any thread: a handle that a thread still
/// uses is closed after that.
class HandlePool {
 public:
  explicit HandlePool(std::size_t most) : most_(most) {}
  HandlePool(const HandlePool&) = delete;
  HandlePool& operator=(const HandlePool&) = delete;

  /// The handle of this owner, by open() if it has none. Allocates only then.
  std::shared_ptr<void> get(const void* owner, const std::function<std::shared_ptr<void>()>& open) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = of_owner_.find(owner); found != of_owner_.end()) {
      handles_.splice(handles_.begin(), handles_, found->second);
      return found->second->second;
    }
    while (handles_.size() >= most_) {
      of_owner_.erase(handles_.back().first);
      handles_.pop_back();
    }
    handles_.emplace_front(owner, open());
    of_owner_[owner] = handles_.begin();
    return handles_.front().second;
  }

  void close(const void* owner) {
    const std::scoped_lock lock(mutex_);
    const auto found = of_owner_.find(owner);
    if (found == of_owner_.end()) return;
    handles_.erase(found->second);
    of_owner_.erase(found);
  }

  std::size_t size() const {
    const std::scoped_lock lock(mutex_);
    return handles_.size();
  }

 private:
  using Handles = std::list<std::pair<const void*, std::shared_ptr<void>>>;  // the most recently used first
  mutable std::mutex mutex_;
  std::size_t most_;
  Handles handles_;
  std::unordered_map<const void*, Handles::iterator> of_owner_;
};

/// What the files of a long list share: descriptors, and HDF5 files of datasets that pread cannot read, which take more
/// memory.
struct OpenFiles {
  static constexpr std::size_t max_descriptors = 64, max_hdf5 = 8;
  HandlePool descriptors{max_descriptors}, hdf5{max_hdf5};
};

}  // namespace nanotron::data
