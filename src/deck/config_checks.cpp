#include "config_checks.hpp"

#include <algorithm>
#include <utility>

#include "nanotron/deck/layer_counts.hpp"
#include "nanotron/deck/validation_sets.hpp"

namespace nanotron::deck::detail {
namespace {

/// "1 stage", "2 stages".
std::string counted(std::int64_t n, const char* what) { return text(n) + " " + what + (n == 1 ? "" : "s"); }

/// "48 or 56": the multiples of `unit` on both sides of n.
std::string nearest_multiples(std::int64_t n, std::int64_t unit) {
  const std::int64_t below = n / unit * unit;
  const std::string above = text(below + unit);
  return below == 0 ? above : text(below) + " or " + above;
}

/// "tp <= 4", or "tp = 1".
std::string at_most(const std::string& name, std::int64_t n) { return name + (n == 1 ? " = " : " <= ") + text(n); }

/// "a divisor of 12: 4 or 6": those on both sides of n.
std::string nearest_divisors(std::int64_t n, std::int64_t of) {
  if (n > of) return text(of) + ", or another divisor of it";
  std::int64_t below = n, above = n;
  while (of % below != 0) --below;
  while (of % above != 0) ++above;
  return "a divisor of " + text(of) + ": " + text(below) + " or " + text(above);
}

void check_model(const Config& c, Findings& f) {
  const ModelConfig& m = c.model;
  const std::int64_t heads = m.num_attention_heads;
  if (m.head_dim == 0 && f.trusted({"model.hidden_size", "model.num_attention_heads"}) &&
      m.hidden_size % heads != 0) {
    f.error({"model.hidden_size", "model.num_attention_heads"},
            "hidden_size = " + text(m.hidden_size) + " does not divide into " + text(heads) +
                " heads",
            "a multiple of num_attention_heads: " + nearest_multiples(m.hidden_size, heads),
            "or give head_dim");
  }
  const bool divides = m.head_dim > 0 || m.hidden_size % heads == 0;
  const std::int64_t head_dim = m.head_dim > 0 ? m.head_dim : m.hidden_size / heads;
  if (divides && f.trusted({"model.head_dim", "model.hidden_size", "model.num_attention_heads"}) &&
      ((head_dim % 2 != 0 && !m.has_learned_positions()) || head_dim == 0)) {
    f.error({"model.head_dim", "model.hidden_size"},
            "head_dim = " + text(head_dim) + " is odd" +
                (m.head_dim > 0 ? "" : " (hidden_size / num_attention_heads)"),
            "an even width: the rotary embedding turns pairs");
  }
  if (m.head_dim == 0 && divides && f.trusted({"model.hidden_size", "model.num_attention_heads"}) &&
      head_dim > 256) {
    f.error({"model.num_attention_heads", "model.hidden_size"},
            "head_dim = " + text(head_dim) + " (hidden_size / num_attention_heads) is too wide",
            "at most 256", "more heads, or give head_dim");
  }
  const std::int64_t kv = m.num_key_value_heads;
  if (kv > 0 && f.trusted({"model.num_key_value_heads", "model.num_attention_heads"}) &&
      heads % kv != 0) {
    f.error({"model.num_key_value_heads"},
            "num_attention_heads = " + text(heads) + " is not a multiple of num_key_value_heads = " +
                text(kv),
            nearest_divisors(kv, heads));
  }
}

void check_parametrization(const Config& c, Findings& f) {
  const ModelConfig& m = c.model;
  if (!f.trusted({"model.parametrization", "model.base_hidden_size"})) return;
  if (m.parametrization == Parametrization::standard) {
    if (m.base_hidden_size > 0) {
      f.error({"model.base_hidden_size"}, "base_hidden_size is of no use to parametrization = 'standard'",
              "parametrization = 'mup', or no base_hidden_size");
    }
    return;
  }
  if (m.base_hidden_size == 0) {
    f.error({"model.parametrization"}, "parametrization = 'mup' is relative to a base, and base_hidden_size is 0",
            "base_hidden_size of the model that initializer_range and learning_rate are meant for");
  }
  if (m.tie_word_embeddings && f.trusted({"model.tie_word_embeddings"})) {
    f.error({"model.tie_word_embeddings", "model.parametrization"},
            "parametrization = 'mup' gives head and embedding deviations and learning rates of their own; tied they are "
            "one tensor",
            "tie_word_embeddings = .false., or parametrization = 'standard'");
  }
}

void check_stage_layers(const Config& c, Findings& f) {
  const std::vector<std::string> keys{"parallel.pp_layers"};
  const std::int64_t stages = pipeline_stages(c.parallel), layers = c.model.num_hidden_layers;
  if (c.parallel.pp_layers.empty() || !f.trusted({keys[0], "parallel.pp", "model.num_hidden_layers"})) return;
  const std::string expected = counted(stages, "number") + " whose sum is " + text(layers);
  const auto counts = layer_counts(c.parallel.pp_layers);
  if (!counts) {
    f.error(keys, deck::quoted(c.parallel.pp_layers) + " are no numbers of layers, at least 1 a stage", expected);
    return;
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : *counts) sum += std::min(count, std::int64_t{1} << 40);
  if (static_cast<std::int64_t>(counts->size()) != stages || sum != layers) {
    f.error(keys, "pp_layers has " + counted(static_cast<std::int64_t>(counts->size()), "stage") + " with " +
                      counted(sum, "layer") + "; the pipeline has " + counted(stages, "stage") + " and the model " +
                      counted(layers, "layer"),
            expected,
            "or leave it empty, --set parallel.pp_layers= : pp_cut then finds the cut for this grid; a deck.nml has that of "
            "its own run");
  }
}

void check_pipeline(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  if (p.pp == 0) return;  // resolve() comes back
  check_stage_layers(c, f);
  const std::int64_t chunks = pipeline_chunks(p), layers = c.model.num_hidden_layers;
  if (p.pp > 1 && pipeline_stages(p) > layers &&
      f.trusted({"parallel.pp", "parallel.pp_chunks", "parallel.pp_schedule", "model.num_hidden_layers"})) {
    f.error({"parallel.pp", "model.num_hidden_layers"},
            "pp = " + text(p.pp) + (chunks > 1 ? " with " + text(chunks) + " chunks a rank" : "") + " needs " +
                text(pipeline_stages(p)) + " layers, one a stage; the model has " + text(layers),
            at_most("pp", std::max<std::int64_t>(1, layers / chunks)),
            chunks > 1 ? "or pp_schedule = '1f1b', which needs one layer a rank" : "");
  }
  if (p.pp > 1 && p.pp_schedule == PpSchedule::zero_bubble && p.recompute != Recompute::none &&
      f.trusted({"parallel.recompute", "parallel.pp_schedule"})) {
    f.error({"parallel.recompute", "parallel.pp_schedule"},
            "pp_schedule = 'zero_bubble' takes the weight gradients later than the others, from activations that "
            "recomputation does not keep",
            "recompute = 'none'", "or pp_schedule = '1f1b'");
  }
}

void check_split_stream(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  if (!f.trusted({"parallel.tp_mode", "parallel.tp_overlap_chunks"})) return;
  if (p.tp_mode == TpMode::all_reduce) {
    const char* const expected = "tp_mode = 'reduce_scatter'";
    if (p.tp_overlap_chunks > 1) {
      f.error({"parallel.tp_overlap_chunks"},
              "tp_overlap_chunks = " + text(p.tp_overlap_chunks) + " cuts gathers, which tp_mode = 'all_reduce' does without",
              expected, "or tp_overlap_chunks = 1");
    }
    if (p.tp_gathered_inputs == GatheredInputs::keep) {
      f.error({"parallel.tp_gathered_inputs"},
              "tp_gathered_inputs = 'keep' keeps what is gathered; tp_mode = 'all_reduce' gathers nothing", expected,
              "or tp_gathered_inputs = 'gather_again'");
    }
    return;
  }
  if (p.tp == 0 || p.cp == 0 || !f.trusted({"parallel.tp", "parallel.cp", "data.micro_batch_size", "data.sequence_length"})) return;
  const std::int64_t tokens = c.data.micro_batch_size * (c.data.sequence_length / p.cp);  // of the least rank
  const std::int64_t rows = std::max<std::int64_t>(1, (tokens + p.tp - 1) / p.tp);
  if (p.tp_overlap_chunks <= rows) return;
  f.error({"parallel.tp_overlap_chunks"},
          "tp_overlap_chunks = " + text(p.tp_overlap_chunks) + ", but a rank has " + text(rows) +
              " rows of a micro-batch's tokens",
          "at most " + text(rows));
}

void check_parallel(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  const std::pair<const char*, std::int64_t> degrees[] = {
      {"parallel.dp", p.dp}, {"parallel.tp", p.tp}, {"parallel.pp", p.pp}, {"parallel.cp", p.cp}};
  std::vector<std::string> open;
  for (const auto& [key, degree] : degrees) {
    if (degree == 0) open.emplace_back(key);
  }
  if (open.size() > 1 && f.trusted(open)) {
    std::string names;
    for (const auto& key : open) names += (names.empty() ? "" : " and ") + key.substr(9);
    std::rotate(open.begin(), open.begin() + 1, open.end());  // dp is open by default: blame the next
    f.error(open, names + " are 0: the number of ranks gives only one of them",
            "at most one degree of 0");
  }
  if (p.tp > c.model.num_attention_heads &&
      f.trusted({"parallel.tp", "model.num_attention_heads"})) {
    f.error({"parallel.tp", "model.num_attention_heads"},
            "tp = " + text(p.tp) + ", but there are " + text(c.model.num_attention_heads) +
                " attention heads; each rank of a tensor-parallel group needs one",
            at_most("tp", c.model.num_attention_heads));
  }
  const auto too_narrow = [&](const char* key, std::int64_t width) {
    if (width > 0 && p.tp > width && f.trusted({"parallel.tp", key})) {
      f.error({"parallel.tp", key}, "tp = " + text(p.tp) + " is more than " + key + " = " +
              text(width), at_most("tp", width));
    }
  };
  const MoeConfig& moe = c.model.moe;
  if (moe.num_experts == 0 || moe.moe_intermediate_size == 0) {
    too_narrow("model.intermediate_size", c.model.intermediate_size);
  }
  if (moe.num_experts > 0) {
    too_narrow("moe.moe_intermediate_size", moe.moe_intermediate_size);
    too_narrow("moe.shared_expert_intermediate_size", moe.shared_expert_intermediate_size);
  }
  too_narrow("model.vocab_size", c.model.vocab_size);

  check_split_stream(c, f);
  check_pipeline(c, f);

  std::string order = "-" + p.order + "-";
  bool complete = p.order.size() == 11;
  for (const char* axis : {"-tp-", "-cp-", "-pp-", "-dp-"}) {
    complete = complete && order.find(axis) != std::string::npos;
  }
  if (!complete && f.trusted({"parallel.order"})) {
    f.error({"parallel.order"}, deck::quoted(p.order) + " is no order of the grid's axes",
            "tp, cp, pp and dp, each once, joined by '-', the innermost first: 'tp-cp-pp-dp'");
  }
}

void check_context(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  if (p.cp > c.data.sequence_length && f.trusted({"parallel.cp", "data.sequence_length"})) {
    f.error({"parallel.cp", "data.sequence_length"},
            "cp = " + text(p.cp) + ", but a sequence has " + text(c.data.sequence_length) +
                " tokens; each rank of a context-parallel group needs one",
            at_most("cp", c.data.sequence_length));
  }
  // The fewest query heads of a tensor-parallel rank, see nn/attention/heads.hpp: whole groups where there are enough.
  const std::int64_t heads = c.model.num_attention_heads, tp = std::max<std::int64_t>(p.tp, 1);
  const std::int64_t groups = c.model.num_key_value_heads > 0 ? c.model.num_key_value_heads : heads;
  const std::int64_t here = groups >= tp ? groups / tp * (heads / groups) : heads / tp;
  if (p.cp_mode == CpMode::all_to_all && p.tp <= heads && p.cp > here &&
      f.trusted({"parallel.cp", "parallel.tp", "parallel.cp_mode", "model.num_attention_heads",
                 "model.num_key_value_heads"})) {
    f.error({"parallel.cp", "parallel.cp_mode"},
            "cp_mode = 'all_to_all' gives each of cp = " + text(p.cp) + " ranks attention heads of its own, but of " +
                text(heads) + " heads over tp = " + text(tp) + " a rank has " + text(here),
            at_most("cp", here) + ", or cp_mode = 'ring'");
  }
}

/// For who lowers run%steps to try a deck, or to cut a run into jobs.
std::string stop_early(const Config& c) {
  return "run%steps is what the learning rate is planned for; to stop after " + text(c.run.steps) +
         (c.run.steps == 1 ? " step" : " steps") + " of the whole run leave it and give --set run.stop_after_steps=" +
         text(c.run.steps);
}

void check_run(const Config& c, Findings& f) {
  if (f.trusted({"schedule.warmup_steps", "run.steps"}) &&
      c.schedule.warmup_steps > c.run.steps) {
    f.error({"schedule.warmup_steps"}, "warmup_steps = " + text(c.schedule.warmup_steps) +
            " is more than the " + text(c.run.steps) + " steps of the run",
            "at most " + text(c.run.steps), stop_early(c));
  } else if (c.schedule.kind == ScheduleKind::wsd &&  // its decay ends with the run; others may be cut short
             f.trusted({"schedule.decay_steps", "schedule.warmup_steps", "run.steps"}) &&
             c.schedule.warmup_steps + c.schedule.decay_steps > c.run.steps) {
    f.error({"schedule.decay_steps"}, "warmup_steps + decay_steps = " +
            text(c.schedule.warmup_steps + c.schedule.decay_steps) + " is more than the " +
            text(c.run.steps) + " steps of the run",
            "decay_steps <= " + text(c.run.steps - c.schedule.warmup_steps), stop_early(c));
  }
  if (c.run.output_dir.empty()) {
    f.error({"run.output_dir"}, "output_dir is empty", "a folder, for example 'run'");
  }
  if (f.trusted({"run.wall_time_limit", "run.wall_time_margin"}) && c.run.wall_time_limit > 0 &&
      c.run.wall_time_margin >= c.run.wall_time_limit) {
    f.error({"run.wall_time_margin", "run.wall_time_limit"},
            "wall_time_margin is not less than wall_time_limit: no step could run",
            "a margin below the limit");
  }
  if (c.data.path.empty() && f.trusted({"data.path"})) {
    f.error({"data.path"}, "path is empty", "a token file");
  }
  std::string mistake;
  validation_sets(c.data.validation_path, &mistake);
  if (!mistake.empty() && f.trusted({"data.validation_path"})) {
    f.error({"data.validation_path"}, "in the list of validation sets " + mistake,
            "the path of one file, or name=path for each set, separated by blanks; a name begins with a letter and has "
            "letters, digits and '_', at most 32",
            "a path with a '=' in it can be written as ./path");
  }
  const bool fraction = c.data.validation_fraction > 0;
  if (fraction && !c.data.validation_path.empty() && f.trusted({"data.validation_fraction"})) {
    f.error({"data.validation_fraction"},
            "validation_path and validation_fraction exclude each other", "one of them");
  }
  if (c.data.validation_every > 0 && !fraction && c.data.validation_path.empty() &&
      f.trusted({"data.validation_every", "data.validation_fraction"})) {
    f.error({"data.validation_every"}, "there is no validation data",
            "validation_path or validation_fraction");
  }
  if (c.data.sequences == SequenceKind::documents && c.data.document_mask == DocumentMask::none &&
      f.trusted({"data.sequences", "data.document_mask"})) {
    f.error({"data.sequences"}, "sequences = 'documents' puts documents together that must not see each other",
            "document_mask = 'block_diagonal'", "or sequences = 'stream'");
  }
  if (c.checkpoint.resume.empty()) {
    f.error({"checkpoint.resume"}, "resume is empty", "'auto', 'none' or the path of a checkpoint");
  }
}

}  // namespace

void check_batch(const Config& c, Findings& f) {
  if (!f.trusted({"data.global_batch_size", "data.micro_batch_size", "parallel.dp"})) return;
  if (c.precision.reproducible == Reproducible::layout) return;  // check_layout
  const std::int64_t unit = c.data.micro_batch_size * std::max<std::int64_t>(c.parallel.dp, 1);
  if (c.data.global_batch_size % unit == 0) return;
  f.error({"data.global_batch_size"},
          "global_batch_size = " + text(c.data.global_batch_size) +
              " is not a multiple of micro_batch_size * dp = " + text(c.data.micro_batch_size) +
              " * " + (c.parallel.dp > 0 ? text(c.parallel.dp) : "dp"),
          nearest_multiples(c.data.global_batch_size, unit));
}

void check_shards(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  if (p.zero_size == 0 || !f.trusted({"parallel.zero_size", "parallel.zero_stage", "parallel.dp", "parallel.cp"})) return;
  if (p.zero_stage == 0) {
    f.error({"parallel.zero_size"}, "zero_size = " + text(p.zero_size) + ", but zero_stage = 0 shards nothing",
            "zero_size = 0, or zero_stage from 1 to 3");
    return;
  }
  const std::int64_t replicas = p.dp * p.cp;
  if (replicas == 0 || replicas % p.zero_size == 0) return;
  f.error({"parallel.zero_size"},
          "zero_size = " + text(p.zero_size) + " does not divide the " + text(replicas) + " replicas (dp x cp)",
          nearest_divisors(p.zero_size, replicas));
}

void check_gradient_sum(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  if (p.compression != Compression::none && p.zero_stage > 0 && f.trusted({"parallel.compression", "parallel.zero_stage"})) {
    f.error({"parallel.compression", "parallel.zero_stage"},
            "compression is of the all-reduce of gradients, which zero_stage = " + text(p.zero_stage) + " does without",
            "compression = 'none', or zero_stage = 0");
  }
}

// Adasum combines gradients of different samples, each whole, on one rank of each tensor.
void check_adasum(const Config& c, Findings& f) {
  const ParallelConfig& p = c.parallel;
  if (p.gradient_sum != GradientRule::adasum || !f.trusted({"parallel.gradient_sum"})) return;
  const auto refuse = [&](const char* key, bool applies, const std::string& why, const std::string& expected) {
    if (applies && f.trusted({key})) f.error({"parallel.gradient_sum", key}, "gradient_sum = 'adasum' " + why, expected);
  };
  refuse("parallel.cp", p.cp > 1,
         "combines the gradients of different samples; with cp = " + text(p.cp) + " replicas hold parts of the same",
         "cp = 1, or gradient_sum = 'sum'");
  refuse("parallel.zero_stage", p.zero_stage > 0,
         "needs the whole gradient of every replica, of which zero_stage = " + text(p.zero_stage) + " leaves pieces of the sum",
         "zero_stage = 0, or gradient_sum = 'sum'");
  refuse("parallel.compression", p.compression != Compression::none,
         "is no sum, and compression is of the all-reduce of one", "compression = 'none', or gradient_sum = 'sum'");
  refuse("model.tie_word_embeddings", p.pp > 1 && c.model.tie_word_embeddings && f.trusted({"parallel.pp"}),
         "is not linear, and tied words with pp = " + text(p.pp) + " are summed over both ends of the pipeline behind it",
         "pp = 1, untied words, or gradient_sum = 'sum'");
}

void check_config(const Config& config, Findings& findings) {
  check_model(config, findings);
  check_architecture(config, findings);
  check_parametrization(config, findings);
  check_parallel(config, findings);
  check_context(config, findings);
  check_run(config, findings);
  check_batch(config, findings);
  check_shards(config, findings);
  check_gradient_sum(config, findings);
  check_layout(config, findings);
  check_adasum(config, findings);
  check_moe(config, findings);
  check_size(config, findings);
}

}  // namespace nanotron::deck::detail
