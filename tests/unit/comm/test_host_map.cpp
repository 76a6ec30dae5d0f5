// ranks: 1
// Hosts of equal and unequal size, one host, ranks in turns over hosts.

#include "nanotron/comm/host_map.hpp"

#include <gtest/gtest.h>

namespace nanotron::comm {
namespace {

using Ranks = std::vector<int>;

Ranks ranks_of(const HostMap& map, int host) {
  const std::span<const int> ranks = map.ranks_of(host);
  return {ranks.begin(), ranks.end()};
}

TEST(HostMap, PartnersAreOnTheNextHost) {
  const std::vector<std::string> names{"a", "a", "b", "b", "c", "c"};
  const HostMap map(names);
  EXPECT_EQ(map.hosts(), 3);
  EXPECT_EQ(map.name(1), "b");
  EXPECT_EQ(ranks_of(map, 2), (Ranks{4, 5}));
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
  EXPECT_EQ(ranks_of(map, 0), (Ranks{0, 2, 3}));
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

TEST(HostMap, IsTheSameAfterPacking) {
  for (const HostMap& map : {HostMap{"a", "a", "b", "b"}, HostMap{"a", "b", "a", "c", "b"}, HostMap()}) {
    EXPECT_EQ(HostMap::unpacked(map.packed()), map);
  }
  std::vector<std::string> many;
  for (int rank = 0; rank < 16384; ++rank) many.push_back("node" + std::to_string(rank / 8));
  const HostMap map(many);
  EXPECT_EQ(map[16383], "node2047");
  EXPECT_LT(map.packed().size(), 3 * many.size());  // bytes a rank
  EXPECT_EQ(HostMap::unpacked(map.packed()), map);
}

}  // namespace
}  // namespace nanotron::comm
