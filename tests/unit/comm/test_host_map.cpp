// ranks: 1
// Hosts of equal and unequal size, one host, ranks in turns over hosts.

#include "nanotron/comm/host_map.hpp"

#include <gtest/gtest.h>

namespace nanotron::comm {
namespace {

using Ranks = std::vector<int>;

TEST(HostMap, PartnersAreOnTheNextHost) {
  const std::vector<std::string> names{"a", "a", "b", "b", "c", "c"};
  const HostMap map(names);
  EXPECT_EQ(map.hosts(), 3);
  EXPECT_EQ(map.name(1), "b");
  EXPECT_EQ(map.ranks_of(2), (Ranks{4, 5}));
  Ranks partners;
  for (int rank = 0; rank < 6; ++rank) partners.push_back(map.partner_of(rank));
  EXPECT_EQ(partners, (Ranks{2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(map.partners_to(0), (Ranks{4}));
  EXPECT_TRUE(map.leads(2));
  EXPECT_FALSE(map.leads(3));
}

TEST(HostMap, HostsOfUnequalSizeShareTheirPartners) {
  const std::vector<std::string> names{"a", "b", "a", "a", "b"};
  const HostMap map(names);
  EXPECT_EQ(map.ranks_of(0), (Ranks{0, 2, 3}));
  EXPECT_EQ(map.partners_to(1), (Ranks{0, 3}));
  EXPECT_EQ(map.partners_to(4), (Ranks{2}));
  EXPECT_EQ(map.partners_to(3), (Ranks{}));
  for (int rank = 0; rank < 5; ++rank) EXPECT_NE(map.host_of(rank), map.host_of(map.partner_of(rank)));
}

TEST(HostMap, OneHostHasNoOther) {
  const std::vector<std::string> names{"a", "a"};
  const HostMap map(names);
  EXPECT_EQ(map.hosts(), 1);
  EXPECT_EQ(map.partner_of(1), 1);
}

}  // namespace
}  // namespace nanotron::comm
