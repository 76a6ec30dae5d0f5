#include "nanotron/data/data_checks.hpp"

#include <algorithm>
#include <string>

#include "nanotron/data/order/training_stages.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/named_files.hpp"

namespace nanotron::data {

using namespace deck::phrases;

namespace {

// A key of one file, or of several with names. True if the text can be used.
bool check_files(const std::string& key, const std::string& text, const std::string& what, deck::Findings& f) {
  std::string mistake;
  deck::named_files(text, &mistake);
  if (mistake.empty() || !f.is_valid({key})) return mistake.empty();
  f.error({key}, "in the list of " + what + " " + mistake,
          "the path of one file, or name=path for each " + what.substr(0, what.size() - 1) +
              ", separated by blanks; a name begins with a letter and has letters, digits and '_', at most 32; or an "
              "array of paths, each with a weight before it or none",
          "a path with a '=' in it can be written as ./path");
  return false;
}

// Sets with names are evaluated one by one.
void check_validation_weights(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"data.validation_path"})) return;
  for (const deck::NamedFile& file : deck::named_files(c.data.validation_path)) {
    if (!file.is_named || file.weight < 0.0) continue;
    f.error({"data.validation_path"}, "the validation set '" + file.name + "' has a weight: nothing adds up sets",
            "sets with names and without weights; or files without names, which are one set");
    return;
  }
}

void check_blend(const deck::Config& c, deck::Findings& f) {
  deck::BlendMistake mistake;
  deck::blend_stages(c.data, &mistake);
  if (mistake.found.empty() || !f.is_valid({"data.path", mistake.key})) return;
  f.error({mistake.key, "data.path"}, mistake.found, mistake.expected);
}

}  // namespace

void check_data(const deck::Config& c, deck::Findings& f) {
  if (c.data.path.empty() && f.is_valid({"data.path"})) {
    f.error({"data.path"}, "path is empty", "a token file");
  }
  check_files("data.validation_path", c.data.validation_path, "validation sets", f);
  check_validation_weights(c, f);
  if (check_files("data.path", c.data.path, "training files", f)) check_blend(c, f);
  const bool fraction = c.data.validation_fraction > 0;
  if (fraction && !c.data.validation_path.empty() && f.is_valid({"data.validation_fraction"})) {
    f.error({"data.validation_fraction"}, "validation_path and validation_fraction exclude each other", "one of them");
  }
  if (c.data.validation_every > 0 && !fraction && c.data.validation_path.empty() &&
      f.is_valid({"data.validation_every", "data.validation_fraction"})) {
    f.error({"data.validation_every"}, "there is no validation data", "validation_path or validation_fraction");
  }
  if (c.data.goldfish_k == 1 && f.is_valid({"data.goldfish_k"})) {
    f.error({"data.goldfish_k"}, "goldfish_k = 1 drops every target", "0, or at least 2: one target in k is dropped");
  }
  if (c.data.goldfish_k > 1 && c.data.sequences == deck::SequenceKind::pairs &&
      f.is_valid({"data.goldfish_k", "data.sequences"})) {
    f.error({"data.goldfish_k", "data.sequences"},
            "the goldfish loss drops tokens, and all tokens of an answer count in its log-probability",
            "goldfish_k = 0");
  }
  if (c.data.goldfish_k > 1 && c.data.goldfish_h >= c.data.sequence_length &&
      f.is_valid({"data.goldfish_h", "data.sequence_length"})) {
    f.error({"data.goldfish_h", "data.goldfish_k"},
            "goldfish_h = " + text(c.data.goldfish_h) +
                " is not below sequence_length = " + text(c.data.sequence_length) + ": no target would be dropped",
            "a context shorter than a sequence");
  }
  if (c.data.sequences != deck::SequenceKind::stream && c.data.document_mask == deck::DocumentMask::none &&
      f.is_valid({"data.sequences", "data.document_mask"})) {
    const bool pairs = c.data.sequences == deck::SequenceKind::pairs;
    f.error({"data.sequences"},
            pairs ? "sequences = 'pairs' has two answers in a sequence, and they must not attend to each other"
                  : "sequences = 'documents' packs documents into sequences, and they must not attend to each other",
            "document_mask = 'block_diagonal'", "or sequences = 'stream'");
  }
  if (c.data.length_buckets && c.data.sequences != deck::SequenceKind::documents &&
      f.is_valid({"data.length_buckets", "data.sequences"})) {
    f.error({"data.length_buckets", "data.sequences"},
            "length_buckets packs documents, and sequences are not documents", "sequences = 'documents'",
            "or length_buckets = .false.");
  }
  if (f.errors() == 0 && !c.run_of) check_stages(c, f);
}

namespace {

void check_ramp(const deck::Config& c, deck::Findings& f) {
  const deck::DataConfig& d = c.data;
  if (!f.is_valid({"data.global_batch_size", "data.rampup_batch_size", "data.rampup_increment", "data.rampup_samples"}))
    return;
  if (d.rampup_batch_size == 0) {
    if (d.rampup_increment == 0 && d.rampup_samples == 0) return;
    f.error({"data.rampup_increment", "data.rampup_samples"}, "there is no ramp: rampup_batch_size is 0",
            "rampup_batch_size, of the first steps");
    return;
  }
  const std::int64_t more = d.global_batch_size - d.rampup_batch_size;
  if (more <= 0) {
    f.error({"data.rampup_batch_size"},
            "rampup_batch_size = " + text(d.rampup_batch_size) +
                " is not below global_batch_size = " + text(d.global_batch_size),
            "a smaller batch for the first steps, or 0");
  } else if (d.rampup_increment == 0 || more % d.rampup_increment != 0) {
    f.error({"data.rampup_increment", "data.rampup_batch_size"},
            "rampup_increment = " + text(d.rampup_increment) +
                " does not divide global_batch_size - rampup_batch_size = " + text(more),
            d.rampup_increment == 0 ? "a divisor of it" : nearest_divisors(d.rampup_increment, more));
  }
  if (d.rampup_samples == 0) {
    f.error({"data.rampup_samples", "data.rampup_batch_size"}, "rampup_samples is 0",
            "samples of the run over which the batch grows");
  }
}

}  // namespace

void check_batch(const deck::Config& c, deck::Findings& f) {
  check_ramp(c, f);
  if (!f.is_valid({"data.global_batch_size", "data.micro_batch_size", "parallel.dp"})) return;
  // With 'layout' one sequence at a time: batch_shards of the global batch, which check_layout() checks.
  const bool layout = c.precision.reproducible == deck::Reproducible::layout;
  const std::int64_t shards = layout ? std::max<std::int64_t>(deck::sum_shards(c).batch, 1) : 1;
  const std::int64_t of_rank =
      layout ? std::max<std::int64_t>(c.data.global_batch_size / shards, 1) : c.data.micro_batch_size;
  const std::int64_t unit = of_rank * std::max<std::int64_t>(c.parallel.dp, 1);
  const auto check_multiple = [&](const std::string& name, std::int64_t value) {
    if (value % unit == 0 || !f.is_valid({"data." + name})) return;
    f.error({"data." + name},
            name + " = " + text(value) + " is not a multiple of " +
                (layout ? "global_batch_size / batch_shards" : "micro_batch_size") + " * dp = " + text(of_rank) +
                " * " + (c.parallel.dp > 0 ? text(c.parallel.dp) : "dp"),
            nearest_multiples(value, unit));
  };
  if (!layout) check_multiple("global_batch_size", c.data.global_batch_size);
  check_multiple("rampup_batch_size", c.data.rampup_batch_size);
  check_multiple("rampup_increment", c.data.rampup_increment);
}

}  // namespace nanotron::data
