#pragma once

// Energy that this host's processors and this rank's GPU have used, if the machine reports it; else nothing.
//
//   CPUs   Linux's powercap (RAPL of Intel and AMD): the zones intel-rapl:<n> named package-<n>, and their zones named
//          dram, which packages do not include. Many systems let only root read them. The counters, in microjoules,
//          begin again after minutes to hours; a thread reads them often enough.
//   GPUs   NVML's counter of the device, in millijoules, through dlopen: Volta and later.

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace nanotron {

struct EnergyReading {
  std::string meter;    // unique on its host: "package-0", "package-0 dram", "GPU 0000:3B:00.0"
  double joules = 0.0;  // since the meter was made
  bool is_gpu() const { return meter.starts_with("GPU"); }
};

/// Ranks of a host that read the same meter read the same energy: it counts once.
class EnergyMeter {
 public:
  /// gpu: PCI bus id of this rank's device; empty: none.
  explicit EnergyMeter(const std::string& gpu = {}, const std::filesystem::path& powercap = "/sys/class/powercap");
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  /// Readings of all meters that can be read. Callable from any thread.
  std::vector<EnergyReading> read();

 private:
  struct Zone {
    std::filesystem::path counter;
    std::string name;
    double range = 0.0;            // microjoules at which the counter begins again
    double last = 0.0, sum = 0.0;  // microjoules
  };
  struct Gpu;
  void add_zones(const std::filesystem::path& powercap);
  void advance();  // the sums of the zones
  void watch();

  std::vector<Zone> zones_;
  std::unique_ptr<Gpu> gpu_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread watcher_;  // only with zones
};

}  // namespace nanotron
