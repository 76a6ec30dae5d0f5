// ranks: 1
#include "nanotron/comm/limits/limits.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

namespace fs = std::filesystem;

class Limits : public ::testing::Test {
 protected:
  Limits() : folder_(test::world(), "limits") { write("meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n"); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  std::vector<MemoryLimit> limits(const std::string& membership) const {
    write("membership", membership);
    return memory_limits(folder_ / "meminfo", folder_ / "membership", folder_ / "groups");
  }

  const test::TemporaryFolder folder_;
};

TEST_F(Limits, OfVersionTwoAreThoseOfAllAncestors) {
  write("groups/job/memory.max", "700000\n");
  write("groups/job/step/memory.max", "max\n");
  write("groups/job/step/task/memory.max", "300000\n");
  write("groups/job/other/memory.max", "99999999999\n");
  const auto task = limits("0::/job/step/task\n");
  ASSERT_EQ(task.size(), 3u);
  EXPECT_EQ(task[0].bytes, 1024000u);
  EXPECT_EQ(task[0].group, 0u);
  EXPECT_EQ(task[1].bytes, 300000u);
  EXPECT_EQ(task[2].bytes, 700000u);
  EXPECT_NE(task[2].name.find("groups/job"), std::string::npos) << task[2].name;
  const auto other = limits("0::/job/other\n");
  ASSERT_EQ(other.size(), 2u) << "more than the host has is no limit";
  EXPECT_EQ(other[1].group, task[2].group);
}

TEST_F(Limits, OfVersionOneAndOfAContainer) {
  write("groups/memory/job/memory.limit_in_bytes", "400000\n");
  write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const auto job = limits("5:cpu,cpuacct:/job\n4:memory:/job\n");
  ASSERT_EQ(job.size(), 2u);
  EXPECT_EQ(job[1].bytes, 400000u);
  write("groups/memory/memory.limit_in_bytes", "500000\n");
  const auto inside = limits("4:memory:/docker/as/the/host/sees/it\n");
  ASSERT_EQ(inside.size(), 2u);
  EXPECT_EQ(inside[1].bytes, 500000u);
}

TEST_F(Limits, AreNoneWhereNothingCanBeRead) {
  EXPECT_EQ(limits("").size(), 1u);
  EXPECT_TRUE(memory_limits(folder_ / "none", folder_ / "none", folder_ / "none").empty());
  EXPECT_GT(memory_limits().front().bytes, 0u);
}

}  // namespace
}  // namespace nanotron::comm
