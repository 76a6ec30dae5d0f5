// ranks: 1
#include "nanotron/trainer/report/binding.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

namespace fs = std::filesystem;

// Two NUMA nodes of four CPUs.
const HostCpus two{.usable = cpus_in("0-7"), .numa = {{0, cpus_in("0-3")}, {1, cpus_in("4-7")}}};

std::string told(const std::vector<RankBinding>& ranks, const HostCpus& host = two) {
  std::string text;
  for (const std::string& problem : binding_problems(ranks, host)) text += problem + "\n";
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Binding, SetsOfCpusAreReadAsTheKernelWritesThem) {
  EXPECT_EQ(cpus_in("0-3,8,10-11"), (std::set{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(cpus_in("5\n"), std::set{5});
  EXPECT_TRUE(cpus_in("").empty());
  EXPECT_TRUE(cpus_in("none,-,0-999999999").empty());
  EXPECT_EQ(cpus_text(cpus_in("0-3,8")), "0-3, 8");
}

TEST(Binding, RanksOnCpusOfTheirOwnAreFine) {
  EXPECT_EQ(told({{4, {0}}, {5, {1}}, {6, {4, 5}}, {7, {6, 7}}}), "");
  EXPECT_EQ(told({{0, cpus_in("0-3")}, {1, cpus_in("0-3")}, {2, cpus_in("4-7")}}), "");
}

TEST(Binding, RanksThatShareCpusWhileOthersAreFreeAreNamed) {
  const std::string text = told({{4, {0}}, {5, {0}}, {6, {4}}});
  EXPECT_TRUE(has(text, "ranks 4-5 share CPU 0 of 8 CPUs")) << text;
  const std::vector<RankBinding> crowded(3, {0, {0, 1}});
  EXPECT_EQ(told(crowded, {.usable = {0, 1}, .numa = {{0, {0, 1}}}}), "") << "all the host has";
}

TEST(Binding, RanksOnSeveralNumaNodesAreNamed) {
  const std::string text = told({{0, cpus_in("0-7")}, {1, cpus_in("3-4")}, {2, {1}}});
  EXPECT_TRUE(has(text, "ranks 0-1 may run on several of the 2 NUMA nodes")) << text;
  EXPECT_EQ(told({{0, cpus_in("0-7")}}), "") << "one rank may take both";
}

TEST(Binding, GpusAreNearAndOfOneRank) {
  EXPECT_EQ(told({{0, {0}, "a", 0}, {1, {4}, "b", 1}, {2, {5}, "c", -1}}), "");
  const std::string far = told({{0, {0}, "a", 1}, {1, {4}, "b", 1}});
  EXPECT_TRUE(has(far, "rank 0 runs on NUMA node 0, its GPU a is at NUMA node 1")) << far;
  const std::string shared = told({{0, {0}, "a", 0}, {1, {1}, "a", 0}});
  EXPECT_TRUE(has(shared, "ranks 0-1 share the GPU a")) << shared;
}

TEST(Binding, TheHostIsReadFromTheKernel) {
  const test::TemporaryFolder folder(test::world(), "binding");
  const auto write = [&](const fs::path& path, const std::string& text) {
    fs::create_directories((folder.path() / path).parent_path());
    std::ofstream(folder.path() / path) << text << "\n";
  };
  write("devices/cpu/online", "0-5");
  write("devices/node/node1/cpulist", "4-7");
  write("devices/node/node0/cpulist", "0-3");
  write("devices/node/node2/cpulist", "");
  write("devices/node/possible", "0-2");
  write("groups/cpuset.cpus.effective", "1-6");
  write("pci/0000:41:00.0/numa_node", "1");
  const HostCpus host = host_cpus(folder / "devices", folder / "groups");
  EXPECT_EQ(host.usable, cpus_in("1-5"));
  ASSERT_EQ(host.numa.size(), 2u);
  EXPECT_EQ(host.numa[0].cpus, cpus_in("1-3"));
  EXPECT_EQ(host.numa[1].number, 1);
  EXPECT_EQ(numa_of_device("00000000:41:00.0", folder / "pci"), 1);
  EXPECT_EQ(numa_of_device("0000:42:00.0", folder / "pci"), -1);
  EXPECT_FALSE(host_cpus().usable.empty());
}

}  // namespace
}  // namespace nanotron::trainer
