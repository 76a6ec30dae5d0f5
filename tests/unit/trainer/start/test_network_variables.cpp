// ranks: 1
#include "nanotron/trainer/start/network_variables.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace nanotron::trainer {
namespace {

using Variables = std::map<std::string, std::string>;

// The warnings with these variables and no others of the table.
std::vector<std::string> warnings_with(const Variables& variables, Processor processor = Processor::gpu) {
  for (const char* name :
       {"NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_PROTO", "NCCL_NET_GDR_LEVEL",
        "NCCL_SOCKET_IFNAME", "CUDA_LAUNCH_BLOCKING", "MPICH_GPU_SUPPORT_ENABLED", "FI_MR_CACHE_MONITOR",
        "FI_CXI_DISABLE_HOST_REGISTER", "FI_PROVIDER", "UCX_TLS", "FI_CXI_DEFAULT_CQ_SIZE", "FI_CXI_RX_MATCH_MODE"})
    ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> found = network_warnings(processor);
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return found;
}

TEST(NetworkVariables, EachIsToldInOneLineWithItsSource) {
  const Variables bad{
      {"NCCL_IB_DISABLE", "1"},           {"NCCL_NET", "Socket"},        {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"},          {"NCCL_PROTO", "LL"},          {"NCCL_NET_GDR_LEVEL", "LOC"},
      {"NCCL_SOCKET_IFNAME", "lo"},       {"CUDA_LAUNCH_BLOCKING", "1"}, {"FI_PROVIDER", "tcp"},
      {"MPICH_GPU_SUPPORT_ENABLED", "1"}, {"UCX_TLS", "tcp,self,sm"},    {"FI_MR_CACHE_MONITOR", "memhooks"}};
  for (const auto& [name, value] : bad) {
    const auto found = warnings_with({{name, value}});
    ASSERT_EQ(found.size(), 1U) << name;
    EXPECT_TRUE(found[0].starts_with(name + " = '" + value + "': ")) << found[0];
    EXPECT_NE(found[0].find("; change: "), std::string::npos) << found[0];
    EXPECT_NE(found[0].find('.', found[0].rfind('(')), std::string::npos) << "a source: " << found[0];
    EXPECT_EQ(found[0].find('\n'), std::string::npos);
  }
  EXPECT_EQ(warnings_with(bad).size(), bad.size());
}

TEST(NetworkVariables, GoodValuesAreNotTold) {
  EXPECT_TRUE(warnings_with({}).empty());
  for (const Variables& good : std::vector<Variables>{
           {{"NCCL_IB_DISABLE", "0"}},
           {{"NCCL_PROTO", "^LL128"}},
           {{"NCCL_NET", "AWS Libfabric"}},
           {{"NCCL_NET_GDR_LEVEL", "PHB"}},
           {{"NCCL_SOCKET_IFNAME", "hsn"}},
           {{"UCX_TLS", "rc,sm,self,cuda_copy"}},
           {{"UCX_TLS", "^cma"}},
           {{"UCX_TLS", "all"}},
           {{"MPICH_GPU_SUPPORT_ENABLED", "0"}},
           {{"FI_PROVIDER", "cxi"}, {"FI_MR_CACHE_MONITOR", "userfaultfd"}, {"FI_CXI_DISABLE_HOST_REGISTER", "1"}}})
    EXPECT_TRUE(warnings_with(good).empty()) << good.begin()->first;
}

// Sites with Slingshot set variables of its provider; these two are then needed beside NCCL.
TEST(NetworkVariables, SlingshotNeedsTwo) {
  const auto found = warnings_with({{"FI_CXI_DEFAULT_CQ_SIZE", "131072"}});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].starts_with("FI_MR_CACHE_MONITOR is not set: ")) << found[0];
  EXPECT_TRUE(found[1].starts_with("FI_CXI_DISABLE_HOST_REGISTER is not set: ")) << found[1];
  EXPECT_EQ(warnings_with(
                {{"FI_PROVIDER", "cxi"}, {"FI_MR_CACHE_MONITOR", "disabled"}, {"FI_CXI_DISABLE_HOST_REGISTER", "0"}})
                .size(),
            1U);
}

TEST(NetworkVariables, OfNcclMatterOnlyWithGpus) {
  EXPECT_TRUE(warnings_with({{"NCCL_IB_DISABLE", "1"}, {"FI_CXI_DEFAULT_CQ_SIZE", "1"}}, Processor::cpu).empty());
  EXPECT_EQ(warnings_with({{"UCX_TLS", "tcp"}, {"NCCL_P2P_DISABLE", "1"}}, Processor::cpu).size(), 1U);
}

}  // namespace
}  // namespace nanotron::trainer
