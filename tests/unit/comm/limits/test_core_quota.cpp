// ranks: 1
#include "nanotron/comm/limits/limits.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

namespace fs = std::filesystem;

class Quota : public ::testing::Test {
 protected:
  Quota() : folder_(test::world(), "quota") {}

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  CoreQuota quota(const std::string& membership) const {
    write("membership", membership);
    return core_quota(folder_ / "membership", folder_ / "groups");
  }

  const test::TemporaryFolder folder_;
};

constexpr double none = std::numeric_limits<double>::infinity();

TEST_F(Quota, OfVersionTwoIsTheTightestOnTheWayUp) {
  write("groups/job/cpu.max", "150000 100000\n");
  write("groups/job/step/cpu.max", "max 100000\n");
  write("groups/job/wide/cpu.max", "400000 100000\n");
  write("groups/free/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/job/step\n").cores, 1.5);
  EXPECT_EQ(quota("0::/job/step\n").group, quota("0::/job/wide\n").group);
  EXPECT_EQ(quota("0::/job/wide\n").cores, 1.5);
  EXPECT_NE(quota("0::/job\n").group, 0u);
  EXPECT_EQ(quota("0::/free\n").cores, none);
}

TEST_F(Quota, OfAContainerIsThatOfTheFolderMounted) {
  write("groups/cpu.max", "200000 100000\n");
  for (const char* path : {"/", "/docker/as/the/host/sees/it", "/../.."}) {
    EXPECT_EQ(quota(std::string("0::") + path + "\n").cores, 2.0) << path;
  }
}

TEST_F(Quota, OfVersionOneHasAFolderForItsControllers) {
  const std::string lines = "3:cpuset:/job\n2:cpu,cpuacct:/job\n0::/\n";
  for (const char* mounted : {"groups/cpu,cpuacct", "groups/cpu"}) {
    const fs::path job = fs::path(mounted) / "job";
    write(job / "cpu.cfs_period_us", "100000\n");
    write(job / "cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(quota(lines).cores, none);
    write(job / "cpu.cfs_quota_us", "50000\n");
    EXPECT_EQ(quota(lines).cores, 0.5);
    fs::remove_all(folder_.path() / mounted);
  }
}

TEST_F(Quota, IsNoneWhereNothingCanBeRead) {
  EXPECT_EQ(quota("").cores, none);
  EXPECT_EQ(quota("nonsense\n1:\n0::/job\n").cores, none);
  EXPECT_EQ(core_quota(folder_ / "missing", folder_ / "groups").cores, none);
  EXPECT_GT(core_quota().cores, 0.0);
}

}  // namespace
}  // namespace nanotron::comm
