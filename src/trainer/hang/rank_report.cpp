#include "nanotron/trainer/hang/rank_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "nanotron/base/error.hpp"
#include "nanotron/base/rank_ranges.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::string_view first_line = "nanotron hang report 1";

std::string layer_text(const StepLocation& place) {
  if (place.layer < 0) return "";
  return fmt::format("layer {}{}{}", place.layer, place.part != nullptr ? " " : "",
                     place.part != nullptr ? place.part : "");
}

std::string place_text(const StepLocation& place) {
  const std::string layer = layer_text(place), phase = place.phase != nullptr ? place.phase : "";
  return phase.empty() || layer.empty() ? phase + layer : fmt::format("{}, {}", phase, layer);
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = line.find('\t', begin);
    words.push_back(line.substr(begin, end - begin));
    if (end == std::string::npos) return words;
    begin = end + 1;
  }
}

std::uint64_t number(const std::string& word) { return std::strtoull(word.c_str(), nullptr, 10); }
double real(const std::string& word) { return std::strtod(word.c_str(), nullptr); }

[[noreturn]] void refuse(const std::string& line) {
  fail(ExitCode::data_error, {.what = "invalid hang report", .expected = std::string(first_line), .found = line});
}

// A line after the first.
void read_line(RankReport& r, const std::vector<std::string>& w) {
  const std::string& key = w.front();
  const auto is = [&](std::string_view name, std::size_t words) { return key == name && w.size() == words + 1; };
  if (is("rank", 1)) {
    r.rank = static_cast<int>(number(w[1]));
  } else if (is("host", 1)) {
    r.host = w[1];
  } else if (is("time", 1)) {
    r.time = w[1];
  } else if (is("idle", 3)) {
    r.idle = real(w[1]);
    r.allowed = real(w[2]);
    r.is_late = w[3] == "late";
  } else if (is("where", 1)) {
    r.where = w[1];
  } else if (is("failed", 0)) {
    r.has_failed = true;
  } else if (is("differs", 0)) {
    r.differs = true;
  } else if (is("network", 1)) {
    r.network = w[1];
  } else if (is("system call", 1)) {
    r.system_call = w[1];
  } else if (is("waits", 4)) {
    r.waits_group = w[1];
    r.waits_sequence = number(w[2]);
    r.waits_in = w[3];
    r.waits_seconds = real(w[4]);
  } else if (is("group", 4)) {
    r.groups[w[1]] = {.ranks = ranks_from(w[4]), .entered = number(w[2]), .queued = number(w[3])};
  } else if (is("alike", 3) && r.groups.contains(w[1])) {
    ReportedGroup& group = r.groups[w[1]];
    group.is_compared = true;
    group.alike = number(w[2]);
    group.is_as_before = w[3] == "as before";
  } else if (is("operation", 8)) {
    r.operations.push_back({.group = w[1],
                            .sequence = number(w[2]),
                            .name = w[3],
                            .bytes = number(w[4]),
                            .begin = real(w[5]),
                            .end = real(w[6]),
                            .step = static_cast<std::int64_t>(number(w[7])),
                            .place = w[8]});
  } else {
    refuse(key);
  }
}

}  // namespace

std::string where_of(const FlightSnapshot& s) {
  std::string text = s.place.step > 0 ? fmt::format("step {}", s.place.step) : "start";
  for (const char* region : s.regions) {
    if (region != nullptr && std::string_view(region) != "step") text += fmt::format(" > {}", region);
  }
  const std::string layer = layer_text(s.place);
  return layer.empty() ? text : fmt::format("{} > {}", text, layer);
}

RankReport report_of(const FlightSnapshot& s, std::int64_t now) {
  const auto ago = [&](std::int64_t ns) { return 1e-9 * static_cast<double>(now - ns); };
  const auto name_of = [&](int group) { return s.groups[static_cast<std::size_t>(group)].name; };
  RankReport r;
  r.where = where_of(s);
  r.differs = s.differs;
  if (s.waits_for.sequence != 0) {
    r.waits_group = name_of(s.waits_for.group);
    r.waits_sequence = s.waits_for.sequence;
    r.waits_in = s.waits_in != nullptr ? s.waits_in : "an operation";
    r.waits_seconds = ago(s.waits_since);
  }
  for (const RecordedGroup& group : s.groups) {
    if (group.entered > 0 || !group.ranks.empty()) {
      r.groups[group.name] = {group.ranks, group.entered, 0, group.is_compared, group.is_as_before, group.alike};
    }
  }
  for (const OperationRecord& o : s.records) {
    if (o.end == OperationRecord::queued) r.groups[name_of(o.group)].queued = o.sequence;
    r.operations.push_back({.group = name_of(o.group),
                            .sequence = o.sequence,
                            .name = o.name != nullptr ? o.name : "",
                            .bytes = o.bytes,
                            .begin = ago(o.begin),
                            .end = o.end > 0 ? ago(o.end) : -1.0,
                            .step = o.place.step,
                            .place = place_text(o.place)});
  }
  return r;
}

std::string to_text(const RankReport& r) {
  std::string text = fmt::format("{}\nrank\t{}\nhost\t{}\ntime\t{}\nidle\t{:.3f}\t{:.3f}\t{}\nwhere\t{}\n", first_line,
                                 r.rank, r.host, r.time, r.idle, r.allowed, r.is_late ? "late" : "in time", r.where);
  if (r.has_failed) text += "failed\n";
  if (r.differs) text += "differs\n";
  if (!r.network.empty()) text += fmt::format("network\t{}\n", r.network);
  if (!r.system_call.empty()) text += fmt::format("system call\t{}\n", r.system_call);
  if (r.waits()) {
    text += fmt::format("waits\t{}\t{}\t{}\t{:.3f}\n", r.waits_group, r.waits_sequence, r.waits_in, r.waits_seconds);
  }
  for (const auto& [name, group] : r.groups) {
    text += fmt::format("group\t{}\t{}\t{}\t{}\n", name, group.entered, group.queued, ranks_text(group.ranks));
    if (group.is_compared) {
      text += fmt::format("alike\t{}\t{}\t{}\n", name, group.alike, group.is_as_before ? "as before" : "not as before");
    }
  }
  for (const ReportedOperation& o : r.operations) {
    text += fmt::format("operation\t{}\t{}\t{}\t{}\t{:.6f}\t{:.6f}\t{}\t{}\n", o.group, o.sequence, o.name, o.bytes,
                        o.begin, o.end, o.step, o.place);
  }
  return text;
}

RankReport report_from(const std::string& text, Read what) {
  RankReport report;
  bool is_first = true;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (is_first && line != first_line) refuse(line);
    if (!is_first && what == Read::without_operations && line.starts_with("operation\t")) break;
    if (!is_first) read_line(report, words_of(line));
    is_first = false;
  }
  if (is_first) refuse("nothing");
  return report;
}

}  // namespace nanotron::trainer
