#pragma once

// The files with which ranks find out about a hang: <output_dir>/hang/rank_00017.txt, leader, verdict.txt. What cannot
// be written or read is as if it were not there: a rank that says nothing is told of by the others.

#include <filesystem>
#include <map>
#include <string>

#include "nanotron/trainer/hang/rank_report.hpp"

namespace nanotron::trainer {

class HangFolder {
 public:
  explicit HangFolder(const std::filesystem::path& output_dir);

  bool write(const RankReport& report) const;  // false: it is not there
  void remove(int rank) const;
  std::size_t number_of_reports() const;
  std::map<int, RankReport> reports() const;  // without operations
  std::vector<ReportedOperation> operations_of(int rank) const;

  /// True on the one rank that comes first.
  bool claim_lead(int rank) const;
  void renew_lead(int rank, std::int64_t round) const;
  void give_up_lead() const;
  /// What the leader wrote last; empty without one. A rank whose step takes long looks whether there is one.
  std::string leader() const;

  void publish(const std::string& verdict) const;
  bool has_verdict() const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path report_file(int rank) const;
  std::filesystem::path path_;
};

/// An earlier run's reports make place: hang becomes hang.old.
void put_aside_hang_folder(const std::filesystem::path& output_dir);

/// "fsync of /scratch/run/checkpoint.h5": where the kernel holds a thread of this process in a call for a file, twice
/// within a tenth of a second; else empty.
std::string file_call_of(int thread);

}  // namespace nanotron::trainer
