#pragma once
// THE table of deck parameters. A row binds a key to a member of Config, whose initialiser is the
// default; parsing, validation, --help, --print-defaults, deck.nml and the reference page follow.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {

struct ValueRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool max_open = false;
};

/// Which models have this key. Their checkpoints store its value as an attribute, and a run that resumes from one must
/// have the same value. All other keys may change at a restart.
enum class PartOf {
  no_model,  // initial weights, losses and memory of the training
  every_model,
  dense_models,  // stored by all, used without experts: compared if the model of the checkpoint or the deck has none
  moe_models,    // stored by models with experts, compared if both have them
};

/// What another value at a restart changes: nothing in the training except speed and last bits, how it continues, or
/// which samples it sees.
enum class Influence { none, training, data_order };

/// For strings: whether they name files or folders that are read, or a folder that is created and written to.
enum class Paths { none, read, written };

struct Parameter {
  std::string group, name;
  ValueType type = ValueType::integer;
  std::int64_t extent = 0;  // n > 0: an array of up to n strings, see lines.hpp
  bool required = false;
  ValueRange range;
  std::vector<std::string> legal_values;  // of a string: the only legal values, if any
  Paths paths = Paths::none;
  std::string unit;      // may be empty
  std::string sentence;  // what it does, in one to three sentences
  PartOf part_of = PartOf::no_model;
  Influence influence = Influence::none;  // of keys of no model
  bool omitted_at_default = false;  // checkpoints store it only if not the default: newer than the first checkpoints
  bool stored_nonzero = false;      // no checkpoint stores a 0: it is filled in before, or omitted
  std::function<Scalar(const Config&)> get;
  std::function<void(Config&, const Scalar&)> set;  // the scalar has been checked
};

/// Grouped, in the order of the reference page and of deck.nml.
const std::vector<Parameter>& parameters();
const Parameter& parameter(const std::string& group, const std::string& name);

/// Whether a checkpoint of the model of `config` stores the key (decided by rows before it in the table); and whether
/// two models must have the same value.
bool is_stored(const Parameter& parameter, const Config& config);
bool is_compared(const Parameter& parameter, const Config& a, const Config& b);

/// The table as the groups that the namelist reader accepts.
const std::vector<NamelistGroup>& parameter_groups();

/// Legal values in words: ">= 1", "0 < x <= 1", "'fp64' | 'fp32'", ".true. | .false."; "" for any.
std::string legal_values(const Parameter& parameter);

/// The value as a deck spells it; a real has the fewest digits that give the same bits back.
std::string spelled(const Scalar& scalar);
/// The same for a message: of an array with many elements only the first.
std::string shortened(const Scalar& scalar);

/// --help: the keys with defaults and sentences, for a terminal of 80 columns; of one group, or of all.
std::string group_help(const std::string& group);
std::string parameters_help();

/// --print-defaults: a deck that can be run once its required keys are looked at.
std::string default_deck();

/// tools/nanotron_tools/model_keys.py: the keys that a checkpoint holds, as a dataclass.
std::string parameters_python();

/// The reference pages: doc/input_parameters.md, and nanotron_hpc(5).
std::string parameters_markdown();
std::string parameters_man();

}  // namespace nanotron::deck
