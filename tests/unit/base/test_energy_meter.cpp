// ranks: 1
#include "nanotron/base/energy_meter.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

// A folder as Linux's /sys/class/powercap.
class Powercap : public testing::Test {
 protected:
  Powercap() : folder_(test::world(), "powercap") {}

  void zone(const std::string& zone, const std::string& name, double microjoules) {
    std::filesystem::create_directories(folder_.path() / zone);
    std::ofstream(folder_.path() / zone / "name") << name << "\n";
    std::ofstream(folder_.path() / zone / "max_energy_range_uj") << "262143328850\n";
    counts(zone, microjoules);
  }
  void counts(const std::string& zone, double microjoules) {
    std::ofstream(folder_.path() / zone / "energy_uj") << static_cast<long long>(microjoules) << "\n";
  }
  static std::string text(const std::vector<EnergyReading>& readings) {
    std::string all;
    for (const EnergyReading& r : readings) all += r.meter + " " + std::to_string(r.joules).substr(0, 7) + "; ";
    return all;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Powercap, CountsPackagesAndTheirMemoryOnce) {
  zone("intel-rapl:0", "package-0", 5e6);
  zone("intel-rapl:0:0", "core", 3e6);
  zone("intel-rapl:0:1", "dram", 1e6);
  zone("intel-rapl:1", "package-1", 7e6);
  zone("intel-rapl:2", "psys", 9e6);
  zone("intel-rapl-mmio:0", "package-0", 5e6);
  EnergyMeter meter("", folder_.path());
  EXPECT_EQ(text(meter.read()), "package-0 0.00000; package-0 dram 0.00000; package-1 0.00000; ");
  counts("intel-rapl:0", 7.5e6);
  counts("intel-rapl:0:0", 9e6);
  counts("intel-rapl:0:1", 1.25e6);
  EXPECT_EQ(text(meter.read()), "package-0 2.50000; package-0 dram 0.25000; package-1 0.00000; ");
  counts("intel-rapl:1", 8e6);
  EXPECT_EQ(text(meter.read()), "package-0 2.50000; package-0 dram 0.25000; package-1 1.00000; ");
  for (const EnergyReading& r : meter.read()) EXPECT_FALSE(r.is_gpu());
}

TEST_F(Powercap, TheCounterBeginsAgain) {
  zone("intel-rapl:0", "package-0", 262143328850.0 - 1e6);
  EnergyMeter meter("", folder_.path());
  counts("intel-rapl:0", 2e6);
  EXPECT_EQ(text(meter.read()), "package-0 3.00000; ");
  counts("intel-rapl:0", 1e6);
  EXPECT_NEAR(meter.read().front().joules, 3.0 + 262143.32885 - 1.0, 1e-3);
}

TEST_F(Powercap, SaysNothingWhereNothingCanBeRead) {
  EXPECT_TRUE(EnergyMeter("", folder_.path()).read().empty());
  EXPECT_TRUE(EnergyMeter("", folder_.path() / "nowhere").read().empty());
  std::filesystem::create_directories(folder_.path() / "intel-rapl:0");
  std::ofstream(folder_.path() / "intel-rapl:0" / "name") << "package-0\n";  // no counter that we may read
  EXPECT_TRUE(EnergyMeter("", folder_.path()).read().empty());
  EXPECT_TRUE(EnergyMeter("ffff:ff:1f.0", folder_.path()).read().empty());  // no such device, or no NVML
}

}  // namespace
}  // namespace nanotron
