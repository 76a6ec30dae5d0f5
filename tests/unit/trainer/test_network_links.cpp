#include "nanotron/trainer/hang/network_links.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace nanotron::trainer {
namespace {

namespace fs = std::filesystem;

// A folder like /sys/class.
class Classes : public testing::Test {
 protected:
  ~Classes() override { fs::remove_all(folder_); }

  void write(const std::string& file, const std::string& line) const {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << line << "\n";
  }

  fs::path folder_ = fs::temp_directory_path() / ("nanotron_links_" + std::to_string(getpid()));
};

TEST_F(Classes, LinksThatAreUpNoLonger) {
  write("net/lo/operstate", "unknown");
  write("net/eth0/operstate", "up");
  write("net/eth1/operstate", "down");
  write("infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  write("infiniband/mlx5_1/ports/1/state", "1: DOWN");
  const NetworkLinks links(folder_);
  EXPECT_EQ(links.lost(), "");
  write("net/lo/operstate", "down");
  write("net/eth1/operstate", "up");
  EXPECT_EQ(links.lost(), "");
  write("net/eth0/operstate", "lowerlayerdown");
  EXPECT_EQ(links.lost(), "eth0 is down");
  write("infiniband/mlx5_0/ports/1/state", "2: INIT");
  EXPECT_EQ(links.lost(), "eth0 is down, mlx5_0 port 1 is down");
  fs::remove_all(folder_ / "net");
  EXPECT_EQ(links.lost(), "eth0 is down, mlx5_0 port 1 is down");
  write("net/eth0/operstate", "up");
  write("infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  EXPECT_EQ(links.lost(), "");
}

TEST_F(Classes, NoneAreKnown) {
  const NetworkLinks links(folder_ / "nowhere");
  EXPECT_EQ(links.lost(), "");
}

TEST(NetworkLinks, OfThisHostAreAsTheyWere) { EXPECT_EQ(NetworkLinks().lost(), ""); }

}  // namespace
}  // namespace nanotron::trainer
