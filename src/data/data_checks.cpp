#include "nanotron/data/data_checks.hpp"

#include <algorithm>
#include <string>

#include "nanotron/deck/phrases.hpp"
#include "nanotron/deck/validation_sets.hpp"

namespace nanotron::data {

using namespace deck::phrases;

void check_data(const deck::Config& c, deck::Findings& f) {
  if (c.data.path.empty() && f.trusted({"data.path"})) {
    f.error({"data.path"}, "path is empty", "a token file");
  }
  std::string mistake;
  deck::validation_sets(c.data.validation_path, &mistake);
  if (!mistake.empty() && f.trusted({"data.validation_path"})) {
    f.error({"data.validation_path"}, "in the list of validation sets " + mistake,
            "the path of one file, or name=path for each set, separated by blanks; a name begins with a letter and has "
            "letters, digits and '_', at most 32",
            "a path with a '=' in it can be written as ./path");
  }
  const bool fraction = c.data.validation_fraction > 0;
  if (fraction && !c.data.validation_path.empty() && f.trusted({"data.validation_fraction"})) {
    f.error({"data.validation_fraction"}, "validation_path and validation_fraction exclude each other", "one of them");
  }
  if (c.data.validation_every > 0 && !fraction && c.data.validation_path.empty() &&
      f.trusted({"data.validation_every", "data.validation_fraction"})) {
    f.error({"data.validation_every"}, "there is no validation data", "validation_path or validation_fraction");
  }
  if (c.data.sequences == deck::SequenceKind::documents && c.data.document_mask == deck::DocumentMask::none &&
      f.trusted({"data.sequences", "data.document_mask"})) {
    f.error({"data.sequences"},
            "sequences = 'documents' packs documents into sequences, and they must not attend to each other",
            "document_mask = 'block_diagonal'", "or sequences = 'stream'");
  }
}

void check_batch(const deck::Config& c, deck::Findings& f) {
  if (!f.trusted({"data.global_batch_size", "data.micro_batch_size", "parallel.dp"})) return;
  if (c.precision.reproducible == deck::Reproducible::layout) return;  // one sequence at a time, check_layout()
  const std::int64_t unit = c.data.micro_batch_size * std::max<std::int64_t>(c.parallel.dp, 1);
  if (c.data.global_batch_size % unit == 0) return;
  f.error({"data.global_batch_size"},
          "global_batch_size = " + text(c.data.global_batch_size) + " is not a multiple of micro_batch_size * dp = " +
              text(c.data.micro_batch_size) + " * " + (c.parallel.dp > 0 ? text(c.parallel.dp) : "dp"),
          nearest_multiples(c.data.global_batch_size, unit));
}

}  // namespace nanotron::data
