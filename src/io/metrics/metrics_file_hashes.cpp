// The hashes of the rows of metrics.h5.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "metrics_table.hpp"
#include "nanotron/io/metrics/metrics_file.hpp"
#include "row_hashes.hpp"

namespace nanotron::io {
namespace {

// By name, so that the order does not follow from the deck.
template <class Losses>
auto sorted(Losses& losses) {
  std::vector<decltype(&losses.front())> all;
  for (auto& loss : losses) all.push_back(&loss);
  std::ranges::sort(all, {}, [](const auto* loss) { return loss->name; });
  return all;
}

}  // namespace

void MetricsFile::open_hashes() {
  std::string of;
  for (std::size_t c = 0; c < row_columns_; ++c) of += fmt::format("{}{}", c == 0 ? "" : " ", layout_[c].name);
  hashes_ = std::make_unique<RowHashes>(file_.id(), "row_hash", of, row_columns[0].name, rows_, path_);
  validation_hashes_ =
      std::make_unique<RowHashes>(file_.id(), "validation_hash", "validation_step validation_loss validation_loss_*",
                                  validation_columns[0].name, validation_rows_, path_);
}

void MetricsFile::append_hashes() {
  std::vector<std::uint64_t> row, hashes;
  for (const MetricsRow& pending : pending_) {
    row.resize(row_columns_);
    for (std::size_t c = 0; c < row_columns_; ++c)
      std::memcpy(&row[c], reinterpret_cast<const char*>(&pending) + layout_[c].offset, sizeof row[c]);
    hashes.push_back(hash_of_row(row, row.size()));
  }
  hashes_->append(rows_, hashes);
  hashes.clear();
  const auto named = sorted(named_losses_);
  for (std::size_t i = 0; i < pending_validation_.size(); ++i) {
    row = {std::bit_cast<std::uint64_t>(pending_validation_[i].step),
           std::bit_cast<std::uint64_t>(pending_validation_[i].loss)};
    for (const NamedLoss* loss : named) row.push_back(std::bit_cast<std::uint64_t>(loss->pending[i]));
    hashes.push_back(hash_of_row(row, validation_columns.size()));
  }
  validation_hashes_->append(validation_rows_, hashes);
}

// They stay as they are: nanotron-verify finds them too.
void MetricsFile::tell_damaged_rows(Log& log) const {
  std::vector<hid_t> of_row, of_validation;
  for (std::size_t c = 0; c < columns_.size(); ++c)
    (c < row_columns_ ? of_row : of_validation).push_back(columns_[c].id());
  for (const NamedLoss* loss : sorted(named_losses_)) of_validation.push_back(loss->dataset.id());
  const auto tell = [&](const char* of, const RowHashes::Damage& found) {
    if (found.rows > 0)
      log.warn("{}: {} rows of {} do not match their hashes; the first is that of step {}", path_.string(), found.rows,
               of, found.first_step);
  };
  tell("training", hashes_->damage(of_row, of_row.size(), rows_));
  tell("validation", validation_hashes_->damage(of_validation, validation_columns.size(), validation_rows_));
  if (hdf5::exists(file_.id(), bad_steps))
    MetricsTable(file_.id(), bad_steps, bad_step_columns, path_).tell_damaged_rows(log);
}

}  // namespace nanotron::io
