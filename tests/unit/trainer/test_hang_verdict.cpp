#include "nanotron/trainer/hang/hang_verdict.hpp"

#include <gtest/gtest.h>

#include <set>

namespace nanotron::trainer {
namespace {

// Ranks 0-3 as tp pairs (0, 1), (2, 3) and dp pairs (0, 2), (1, 3), with what each says.
class Ranks {
 public:
  explicit Ranks(int size = 4) : size_(size) {
    for (int r = 0; r < size; ++r) {
      RankReport& report = reports_[r];
      report.rank = r;
      report.host = hosts()[static_cast<std::size_t>(r)];
      report.is_late = true;
      report.where = "step 5 > backward";
      const int pair = r / 2 * 2, column = r % 2;
      report.groups["tp group " + std::to_string(r / 2)].ranks = {pair, pair + 1};
      report.groups["dp group " + std::to_string(column)].ranks = {column, column + 2};
      for (int other = 0; other < size; ++other) report.groups["world"].ranks.push_back(other);
    }
  }
  std::vector<std::string> hosts() const {
    std::vector<std::string> all;
    for (int r = 0; r < size_; ++r) all.push_back("node" + std::to_string(r));
    return all;
  }
  // The rank enters one more operation; true: and leaves it.
  void enter(int rank, const std::string& group, bool completes, const std::string& name = "all_reduce",
             std::uint64_t bytes = 64, const std::string& place = "backward") {
    RankReport& r = reports_[rank];
    const std::uint64_t number = ++r.groups[group].entered;
    r.operations.push_back({.group = group,
                            .sequence = number,
                            .name = name,
                            .bytes = bytes,
                            .begin = 30.0,
                            .end = completes ? 29.0 : -1.0,
                            .step = 5,
                            .place = place});
    r.waits_in = completes ? "" : name;
    r.waits_group = completes ? "" : group;
    r.waits_sequence = completes ? 0 : number;
    r.waits_seconds = completes ? 0.0 : 30.0 - rank;
  }
  void all_enter(const std::vector<int>& ranks, const std::string& group, bool complete) {
    for (const int r : ranks) enter(r, group, complete);
  }
  void is_gone(int rank) { reports_.erase(rank); }
  RankReport& operator[](int rank) { return reports_[rank]; }

  HangVerdict verdict() const {
    return judge(reports_, hosts(), [&](int rank) { return reports_.at(rank).operations; });
  }
  std::set<int> culprits(Cause cause) const {
    std::set<int> ranks;
    for (const Culprit& c : verdict().culprits) {
      EXPECT_EQ(c.cause, cause) << verdict().text;
      ranks.insert(c.rank);
    }
    return ranks;
  }

 private:
  int size_;
  std::map<int, RankReport> reports_;
};

TEST(HangVerdict, NamesARankThatHasNotEntered) {
  Ranks ranks;
  ranks.all_enter({0, 1}, "tp group 0", true);
  ranks.enter(0, "tp group 0", false);
  ranks[1].where = "step 5 > load tokens";
  ranks[1].system_call = "pread of /scratch/tokens.h5";
  ranks.enter(3, "dp group 1", false);  // waits for 1
  ranks.enter(2, "dp group 0", false);  // waits for 0, which waits for 1
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{1});
  const std::string text = ranks.verdict().text;
  EXPECT_NE(
      text.find("tp group 0: rank 1 on node1 has not entered all_reduce 2 at step 5 > backward; others have waited for "
                "30 s; it is at step 5 > load tokens, blocked in the system call pread of /scratch/tokens.h5"),
      std::string::npos)
      << text;
}

TEST(HangVerdict, NamesARankThatSaysNothing) {
  for (int gone = 0; gone < 4; ++gone) {
    Ranks ranks;
    for (int r = 0; r < 4; ++r) ranks.enter(r, "tp group " + std::to_string(r / 2), true);
    for (int r = 0; r < 4; ++r) ranks.enter(r, "tp group " + std::to_string(r / 2), r / 2 != gone / 2);
    for (int r = 0; r < 4; ++r) {
      if (r / 2 != gone / 2) ranks.enter(r, "dp group " + std::to_string(r % 2), false);
    }
    ranks.is_gone(gone);
    EXPECT_EQ(ranks.culprits(Cause::silent), std::set<int>{gone});
    EXPECT_NE(ranks.verdict().text.find("wrote no report"), std::string::npos);
  }
}

TEST(HangVerdict, FollowsAChainOverGroups) {
  Ranks ranks(6);  // tp pairs; 5 waits for 4 in tp, 4 for 2 in "ep", 2 for 3 in tp, 3 for 1 in dp, 0 for 1 in tp
  for (const int r : {2, 4}) ranks[r].groups["ep group 0"].ranks = {2, 4};
  ranks.enter(5, "tp group 2", false);
  ranks.enter(4, "ep group 0", false);
  ranks.enter(2, "tp group 1", false);
  ranks.enter(3, "dp group 1", false);
  ranks.enter(0, "tp group 0", false);
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{1});
}

TEST(HangVerdict, AMessageWaitsForItsOtherEnd) {
  Ranks ranks(2);
  const std::string link = "pp group 0, rank 0 to its next rank 1, lane 0";
  for (const int r : {0, 1}) ranks[r].groups[link].ranks = {0, 1};
  ranks.enter(0, link, true, "message");
  ranks.enter(1, link, true, "message");
  ranks.enter(1, link, false, "message");
  ranks[0].where = "step 5 > checkpoint";
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{0});
}

TEST(HangVerdict, NamesTheOddCount) {
  Ranks ranks(4);
  for (int r = 0; r < 4; ++r) ranks.enter(r, "world", false, "all_reduce", r == 2 ? 32 : 64);
  EXPECT_EQ(ranks.culprits(Cause::mismatch), std::set<int>{2});
  EXPECT_NE(ranks.verdict().text.find("all_reduce of 64 bytes on ranks 0-1, 3"), std::string::npos)
      << ranks.verdict().text;
}

TEST(HangVerdict, NamesTheOddOperation) {
  Ranks ranks(4);
  for (int r = 0; r < 4; ++r) ranks.enter(r, "world", false, r == 3 ? "broadcast" : "all_reduce");
  EXPECT_EQ(ranks.culprits(Cause::mismatch), std::set<int>{3});
}

// Of two ranks the one whose size is not what it was at this place.
TEST(HangVerdict, OfTwoTheOneThatChanged) {
  for (const int odd : {0, 1}) {
    Ranks ranks(2);
    for (int i = 0; i < 3; ++i) ranks.all_enter({0, 1}, "tp group 0", true);
    for (const int r : {0, 1}) ranks.enter(r, "tp group 0", false, "all_reduce", r == odd ? 48 : 64);
    EXPECT_EQ(ranks.culprits(Cause::mismatch), std::set<int>{odd});
  }
}

TEST(HangVerdict, SizesOfAnAllToAllMayDiffer) {
  Ranks ranks(2);
  for (const int r : {0, 1}) ranks.enter(r, "tp group 0", false, "all_to_all", r == 0 ? 48 : 64);
  EXPECT_TRUE(ranks.verdict().culprits.empty()) << ranks.verdict().text;
}

// Rank `skips` leaves out the operation of layer 1 and is one ahead; both wait for each other in a circle.
TEST(HangVerdict, NamesARankThatSkippedAnOperation) {
  for (const int skips : {0, 1}) {
    Ranks ranks(2);
    for (int r = 0; r < 2; ++r) {
      for (int layer = 0; layer < 4; ++layer) {
        const bool is_last = layer == 3;
        if (r == skips && layer == 1) continue;
        ranks.enter(r, "tp group 0", r == skips || !is_last, "all_reduce", 64, "layer " + std::to_string(layer));
      }
    }
    ranks.enter(skips, "world", false, "host value", 8);
    EXPECT_EQ(ranks.culprits(Cause::mismatch), std::set<int>{skips}) << ranks.verdict().text;
    EXPECT_NE(ranks.verdict().text.find("skipped operation 2"), std::string::npos) << ranks.verdict().text;
  }
}

// Its neighbour waits for the message, it waits for the neighbour: only its own last step tells.
TEST(HangVerdict, NamesARankThatSentNoMessage) {
  for (const int skips : {0, 1}) {
    Ranks ranks(2);
    const std::string links[2] = {"pp group 0, rank 0 to its next rank 1, lane 0",
                                  "pp group 0, rank 1 to its next rank 0, lane 0"};
    for (int r = 0; r < 2; ++r) {
      for (const std::string& link : links) ranks[r].groups[link].ranks = {0, 1};
      for (std::int64_t step = 1; step <= 4; ++step) {
        const std::size_t first = ranks[r].operations.size();
        const bool is_last = step == 4;
        ranks.enter(r, links[1 - r], !is_last || r == skips, "message");
        if (!is_last || r != skips) ranks.enter(r, links[r], true, "message");
        if (!is_last || r == skips) ranks.enter(r, "world", !is_last, "host value", 8);
        for (std::size_t i = first; i < ranks[r].operations.size(); ++i) ranks[r].operations[i].step = step;
      }
      if (r != skips) {
        ranks[r].waits_in = "message";
        ranks[r].waits_group = links[skips];
        ranks[r].waits_sequence = 4;
      }
    }
    EXPECT_EQ(ranks.culprits(Cause::mismatch), std::set<int>{skips}) << ranks.verdict().text;
    EXPECT_NE(ranks.verdict().text.find("skipped message of 64 bytes"), std::string::npos) << ranks.verdict().text;
  }
}

// The last operation of a step is missing on one rank, which is in the next step already.
TEST(HangVerdict, NamesARankThatSkippedTheEndOfAStep) {
  Ranks ranks(4);
  for (int r = 0; r < 4; ++r) {
    const std::string tp = "tp group " + std::to_string(r / 2);
    for (std::int64_t step = 1; step <= (r == 3 ? 5 : 4); ++step) {
      const std::size_t first = ranks[r].operations.size();
      ranks.enter(r, tp, step <= 4);
      if (step < 4 || (r != 3 && step == 4)) ranks.enter(r, "world", step < 4, "host value", 8);
      for (std::size_t i = first; i < ranks[r].operations.size(); ++i) ranks[r].operations[i].step = step;
    }
  }
  EXPECT_EQ(ranks.culprits(Cause::mismatch), std::set<int>{3}) << ranks.verdict().text;
  EXPECT_NE(ranks.verdict().text.find("skipped host value of 8 bytes of world"), std::string::npos);
}

TEST(HangVerdict, NamesARankThatLeftEarly) {
  Ranks ranks(4);
  for (int r = 0; r < 4; ++r) ranks.enter(r, "world", r == 1, "MPI_Allreduce", 0);
  ranks.enter(1, "world", false, "MPI_Allreduce", 0);
  EXPECT_EQ(ranks.culprits(Cause::left), std::set<int>{1});
  EXPECT_NE(ranks.verdict().text.find("has left MPI_Allreduce 1"), std::string::npos);
}

// Nobody has to stay in an fsync for the others: the one that is left there is late.
TEST(HangVerdict, NamesARankThatIsLeftBehind) {
  for (const int size : {2, 4}) {
    Ranks ranks(size);
    for (int r = 0; r < size; ++r) ranks.enter(r, "world", r != 1, "MPI_Bcast", 0);
    for (int r = 0; r < size; ++r) {
      if (r != 1) ranks.enter(r, "world", false, "MPI_Allreduce", 0);
    }
    EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{1}) << ranks.verdict().text;
  }
}

// The root of a broadcast may leave it before others have it.
TEST(HangVerdict, ARootMayLeaveItsBroadcast) {
  Ranks ranks(4);
  for (int r = 0; r < 4; ++r) ranks.enter(r, "world", r != 2, "broadcast", 8);
  for (const int r : {0, 1, 3}) ranks.enter(r, "world", false, "all_reduce", 8);
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{2});
}

// Shared memory moves only while a rank waits in the same group.
TEST(HangVerdict, NamesARankThatStartedAndDoesNotGoOn) {
  Ranks ranks(2);
  ranks.enter(0, "dp group 0", false);
  for (const int r : {0, 1}) ranks[r].groups["dp group 0"].ranks = {0, 1};
  ranks.enter(1, "dp group 0", false);
  ranks[1].waits_in.clear();
  ranks[1].waits_group.clear();
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{1});
  EXPECT_NE(ranks.verdict().text.find("makes no progress in"), std::string::npos);
}

TEST(HangVerdict, ADeviceWaitsForWhoHasQueuedLess) {
  Ranks ranks(2);
  for (const int r : {0, 1}) ranks[r].groups["tp group 0"] = {{0, 1}, 8u, 8u};
  ranks[1].groups["tp group 0"].entered = ranks[1].groups["tp group 0"].queued = 7;
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{1});
}

// All reach the run directory. The chain of waits ends at another rank, by chance.
TEST(HangVerdict, NamesTheRanksOfAHostWithoutNetwork) {
  Ranks ranks(4);
  ranks.all_enter({0, 1}, "tp group 0", true);
  for (const int r : {0, 2}) ranks.enter(r, "dp group 0", r == 2);
  for (const int r : {1, 3}) ranks.enter(r, "dp group 1", false);
  ranks.enter(2, "tp group 1", false);
  for (const int r : {2, 3}) ranks[r].network = "eth0 is down";
  EXPECT_EQ(ranks.culprits(Cause::network), (std::set<int>{2, 3})) << ranks.verdict().text;
  EXPECT_NE(ranks.verdict().text.find("rank 2 on node2: network of its host: eth0 is down; it is at"),
            std::string::npos);
  for (const int r : {0, 1}) ranks[r].network = "eth1 is down";  // of all hosts: it tells nothing
  EXPECT_EQ(ranks.culprits(Cause::left), std::set<int>{2}) << ranks.verdict().text;
  ranks.is_gone(1);
  EXPECT_EQ(ranks.culprits(Cause::silent), std::set<int>{1}) << ranks.verdict().text;
}

// What each rank has entered in all, and whether in its last step as in the one before.
void prove(Ranks& ranks, const std::string& group, const std::vector<int>& of, std::uint64_t alike, bool as_before) {
  for (const int r : of) {
    ReportedGroup& g = ranks[r].groups[group];
    ranks[r].differs = g.is_compared = true;
    g.alike = alike;
    g.is_as_before = as_before;
  }
}

TEST(HangVerdict, NamesWhoEnteredOtherOperationsThanMost) {
  Ranks ranks(4);
  prove(ranks, "world", {0, 1, 3}, 17, false);
  prove(ranks, "world", {2}, 18, true);
  EXPECT_EQ(ranks.culprits(Cause::differs), std::set<int>{2}) << ranks.verdict().text;
  EXPECT_NE(ranks.verdict().text.find("world: rank 2 on node2 has not entered the same operations"), std::string::npos)
      << ranks.verdict().text;
}

TEST(HangVerdict, OfTwoWhoDidNotDoWhatItDidBefore) {
  for (const int odd : {0, 1}) {
    Ranks ranks(4);
    for (int i = 0; i < 3; ++i) ranks.all_enter({0, 1}, "tp group 0", true);
    for (const int r : {0, 1}) ranks.enter(r, "tp group 0", true, "all_reduce", r == odd ? 60 : 64);
    prove(ranks, "tp group 1", {2, 3}, 5, true);
    prove(ranks, "tp group 0", {1 - odd}, 6, true);
    prove(ranks, "tp group 0", {odd}, 7, false);
    EXPECT_EQ(ranks.culprits(Cause::differs), std::set<int>{odd}) << ranks.verdict().text;
    EXPECT_NE(ranks.verdict().text.find("operation 4 is all_reduce of 60 bytes on rank"), std::string::npos)
        << ranks.verdict().text;
  }
}

// It is one value ahead: what the others took for its proof was something else, and they stopped.
TEST(HangVerdict, NamesWhoAddedAValueThatOthersTookForAProof) {
  Ranks ranks(4);
  for (int r = 0; r < 4; ++r) {
    for (std::int64_t step = 1; step <= 4; ++step) {
      const std::size_t first = ranks[r].operations.size();
      ranks.enter(r, "world", true, "host value", 8);
      if (r == 1 && step == 4) ranks.enter(r, "world", true, "host value", 8);
      ranks.enter(r, "world", r != 1 || step < 4, "host value", 8);
      for (std::size_t i = first; i < ranks[r].operations.size(); ++i) ranks[r].operations[i].step = step;
    }
    if (r == 1) continue;
    ranks[r].has_failed = true;
    prove(ranks, "world", {r}, 5, true);
  }
  EXPECT_EQ(ranks.culprits(Cause::differs), std::set<int>{1}) << ranks.verdict().text;
}

TEST(HangVerdict, OfTwoThatBothChangedBoth) {
  Ranks ranks(2);
  prove(ranks, "tp group 0", {0}, 6, false);
  prove(ranks, "tp group 0", {1}, 7, false);
  EXPECT_EQ(ranks.culprits(Cause::differs), (std::set<int>{0, 1}));
}

TEST(HangVerdict, ACallForAFileTellsWhereNothingElseDoes) {
  Ranks ranks(3);
  for (int r = 0; r < 3; ++r) ranks.enter(r, "world", false, "MPI_Allreduce", 0);
  EXPECT_TRUE(ranks.verdict().culprits.empty());
  ranks[2].system_call = "pwrite of /scratch/checkpoint.h5";
  EXPECT_EQ(ranks.culprits(Cause::system_call), std::set<int>{2});
}

TEST(HangVerdict, ARunOfOneRank) {
  Ranks ranks(1);
  ranks[0].where = "step 5 > checkpoint > fsync";
  EXPECT_EQ(ranks.culprits(Cause::elsewhere), std::set<int>{0});
}

TEST(RankReport, IsReadBack) {
  FlightRecorder recorder;
  recorder.turn(true);
  const int g = recorder.group("tp group 1", {2, 3});
  recorder.begin_step(4);
  recorder.enter("step");
  recorder.enter("forward");
  recorder.at_layer(3);
  recorder.at_part("mlp");
  recorder.end(recorder.begin(g, "all_reduce", 64, FlightRecorder::Kind::blocking));
  recorder.begin(g, "all_gather", 32, FlightRecorder::Kind::blocking);
  RankReport r = report_of(recorder.snapshot(), FlightRecorder::now());
  r.rank = 2;
  r.host = "node042";
  r.is_late = true;
  r.idle = 31.5;
  r.allowed = 30.0;
  r.system_call = "fsync of /a file";
  r.network = "eth0 is down";
  r.differs = r.has_failed = true;
  r.groups["tp group 1"].is_compared = true;
  r.groups["tp group 1"].alike = ~std::uint64_t{0};
  r.groups["tp group 1"].is_as_before = false;
  EXPECT_EQ(r.where, "step 4 > forward > layer 3 mlp");
  const RankReport back = report_from(to_text(r), Read::all);
  EXPECT_EQ(to_text(back), to_text(r));
  EXPECT_TRUE(back.differs && back.has_failed);
  EXPECT_EQ(back.network, "eth0 is down");
  EXPECT_EQ(back.groups.at("tp group 1").alike, ~std::uint64_t{0});
  EXPECT_FALSE(back.groups.at("tp group 1").is_as_before);
  EXPECT_EQ(back.waits_in, "all_gather");
  EXPECT_EQ(back.waits_sequence, 2u);
  EXPECT_EQ(back.groups.at("tp group 1").ranks, (std::vector<int>{2, 3}));
  ASSERT_EQ(back.operations.size(), 2u);
  EXPECT_TRUE(back.operations[0].is_complete());
  EXPECT_FALSE(back.operations[1].is_complete());
  EXPECT_EQ(back.operations[1].place, "forward, layer 3 mlp");
  EXPECT_TRUE(report_from(to_text(r), Read::without_operations).operations.empty());
  EXPECT_ANY_THROW(report_from("something else\n", Read::all));
  EXPECT_ANY_THROW(report_from("", Read::all));
}

}  // namespace
}  // namespace nanotron::trainer
