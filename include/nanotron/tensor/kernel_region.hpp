#pragma once

// The description of a kernel, in the first line of the function that launches it:
//
//   const KernelRegion kernel(device, "rms_norm_forward", reads(x, w), writes(y, rstd));

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron {

template <class View>
double bytes_of(const View& x) {
  return static_cast<double>(elements_of(x)) * static_cast<double>(sizeof(typename View::value_type));
}
template <class T>
double bytes_of(const MatrixRef<T>& x) {
  return static_cast<double>(x.rows) * static_cast<double>(x.columns) * static_cast<double>(sizeof(T));
}

struct Reads {
  double bytes = 0.0;
};
struct Writes {
  double bytes = 0.0;
};
/// From the operands' bytes. An operand that is read twice, and too large for caches, is listed twice.
template <class... Views>
Reads reads(const Views&... operands) {
  return {(0.0 + ... + bytes_of(operands))};
}
template <class... Views>
Writes writes(const Views&... operands) {
  return {(0.0 + ... + bytes_of(operands))};
}

/// The work of a kernel launched from here to the end of the scope, where the device counts it.
class KernelWork {
 public:
  KernelWork(const Device& device, const char* name, const Work& work) : list_(device.work()) {
    if (list_ != nullptr) list_->open(name, work);
  }
  ~KernelWork() {
    if (list_ != nullptr) list_->close();
  }
  KernelWork(const KernelWork&) = delete;
  KernelWork& operator=(const KernelWork&) = delete;

 private:
  WorkList* list_;
};

/// The same, as a region of the device's timers.
class KernelRegion {
 public:
  KernelRegion(const Device& device, const char* name, const Work& work)
      : region_(device.timers(), name), work_(device, name, work) {}
  KernelRegion(const Device& device, const char* name, Reads read, Writes written)
      : KernelRegion(device, name, Work{.read = read.bytes, .written = written.bytes}) {}

 private:
  Region region_;
  KernelWork work_;
};

}  // namespace nanotron
