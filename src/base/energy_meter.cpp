#include "nanotron/base/energy_meter.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>

namespace nanotron {
namespace {

namespace fs = std::filesystem;

// A package takes less than 1 kW, and its counter has at least 2^32 units of 15 microjoules: more than a minute.
constexpr std::chrono::seconds between_reads{10};
constexpr double per_joule = 1e6;

std::optional<double> number_in(const fs::path& file) {
  std::ifstream in(file);
  double value = 0.0;
  return in >> value ? std::optional(value) : std::nullopt;
}

std::string word_in(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

}  // namespace

// NVML, which comes with the driver. Its types and return codes are those of nvml.h; 0 is success.
struct EnergyMeter::Gpu {
  using Energy = int (*)(void*, unsigned long long*);

  explicit Gpu(const std::string& bus_id) : name("GPU " + bus_id), library(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    if (library == nullptr) return;
    const auto begin = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto find =
        reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    energy = reinterpret_cast<Energy>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    if (begin == nullptr || find == nullptr || energy == nullptr || begin() != 0) return;
    initialised = true;
    if (find(bus_id.c_str(), &device) != 0) device = nullptr;
    first = millijoules();
  }
  ~Gpu() {
    const auto end = library == nullptr ? nullptr : reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
    if (initialised && end != nullptr) end();
    if (library != nullptr) dlclose(library);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  std::optional<unsigned long long> millijoules() const {
    unsigned long long value = 0;
    return device != nullptr && energy(device, &value) == 0 ? std::optional(value) : std::nullopt;
  }

  std::string name;
  void *library, *device = nullptr;
  Energy energy = nullptr;
  bool initialised = false;
  std::optional<unsigned long long> first;
};

EnergyMeter::EnergyMeter(const std::string& gpu, const fs::path& powercap)
    : gpu_(gpu.empty() ? nullptr : std::make_unique<Gpu>(gpu)) {
  add_zones(powercap);
  if (!zones_.empty()) watcher_ = std::thread([this] { watch(); });
}

EnergyMeter::~EnergyMeter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void EnergyMeter::add_zones(const fs::path& powercap) {
  const auto add = [&](const fs::path& folder, std::string name) {
    const auto now = number_in(folder / "energy_uj"), range = number_in(folder / "max_energy_range_uj");
    if (now && range) zones_.push_back({folder / "energy_uj", std::move(name), *range, *now, 0.0});
  };
  std::error_code error;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(powercap, error)) folders.push_back(entry.path());
  std::ranges::sort(folders);
  for (const fs::path& folder : folders) {  // intel-rapl-mmio:0 and psys would count a package again
    const std::string zone = folder.filename().string(), name = word_in(folder / "name");
    if (!zone.starts_with("intel-rapl:")) continue;
    const auto colons = std::ranges::count(zone, ':');
    if (colons == 1 && name.starts_with("package")) add(folder, name);
    const std::string parent = word_in(powercap / zone.substr(0, zone.rfind(':')) / "name");
    if (colons == 2 && name == "dram" && parent.starts_with("package")) add(folder, parent + " dram");
  }
}

void EnergyMeter::advance() {
  for (Zone& zone : zones_) {
    const std::optional<double> now = number_in(zone.counter);
    if (!now) continue;
    zone.sum += *now - zone.last + (*now < zone.last ? zone.range : 0.0);
    zone.last = *now;
  }
}

void EnergyMeter::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, between_reads, [this] { return ending_; })) advance();
}

std::vector<EnergyReading> EnergyMeter::read() {
  const std::lock_guard lock(mutex_);
  advance();
  std::vector<EnergyReading> readings;
  for (const Zone& zone : zones_) readings.push_back({zone.name, zone.sum / per_joule});
  if (gpu_ && gpu_->first) {
    if (const auto now = gpu_->millijoules())
      readings.push_back({gpu_->name, 1e-3 * static_cast<double>(*now - *gpu_->first)});
  }
  return readings;
}

}  // namespace nanotron
