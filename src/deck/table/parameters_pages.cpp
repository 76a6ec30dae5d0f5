// The parameter table as reference pages: doc/input_parameters.md and nanotron_hpc(5).
#include <algorithm>
#include <string_view>

#include "nanotron/base/man_page.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {
namespace {

std::string type_word(const Parameter& p) {
  switch (p.type) {
    case ValueType::integer:
      return "integer";
    case ValueType::real:
      return "real";
    case ValueType::logical:
      return "logical";
    case ValueType::string:
      return p.extent > 0 ? "strings" : "string";
  }
  return "";
}

// What stands above a group's table: Markdown, and lines of a deck. The lines of all groups together are a legal deck.
struct GroupGuide {
  std::string_view group, sentence, example;
};

constexpr GroupGuide guides[] = {
    {"run",
     "Length, output folder and checks of a run. Guides: [job scripts](job_scripts.md), [reliability](reliability.md).",
     "title = 'a small Mixtral', steps = 5000, output_dir = 'runs/mixtral'"},
    {"model",
     "Sizes and form of the model, with Hugging Face's names. Guides: [writing a deck](decks.md), "
     "[supported models](fine_tuning.md#hugging-face-models).",
     "hidden_size = 512, num_hidden_layers = 8, intermediate_size = 1408\n"
     "num_attention_heads = 8, num_key_value_heads = 4, vocab_size = 32000"},
    {"moe", "Mixture of experts instead of the MLP. Guide: [mixtures of experts](decks.md#mixtures-of-experts).",
     "num_experts = 8, num_experts_per_tok = 2, router_aux_loss_coef = 0.01"},
    {"parallel",
     "Parallel degrees, ZeRO, recomputation, communication. Guide: [choosing a grid](choosing_a_grid.md); "
     "[formulas](parallelism_formulas.md).",
     "dp = 0, tp = 2, tp_mode = 'reduce_scatter', zero_stage = 1, recompute = 'selective'"},
    {"optimizer", "Guide: [optimizers](decks.md#optimizers); [formulas](numerics.md#optimizer).",
     "name = 'adamw', learning_rate = 6d-4, weight_decay = 0.1, clip_grad_norm = 1.0"},
    {"schedule", "Learning rate over the steps. Guide: [schedule](decks.md#batch-schedule-and-precision).",
     "kind = 'wsd', warmup_steps = 200, decay_steps = 1000, decay_shape = '1-sqrt'"},
    {"data",
     "Token files, batch, validation. Guides: [data](data.md), "
     "[stages](decks.md#stages-longer-sequences-another-batch).",
     "path = 'tokens.h5', sequence_length = 512, global_batch_size = 64, micro_batch_size = 4\n"
     "validation_fraction = 0.01, validation_every = 250"},
    {"precision",
     "Types and bitwise reproducibility. Guides: [precision](numerics.md#precision), "
     "[reproducibility](reproducibility.md).",
     "compute = 'bf16'"},
    {"checkpoint",
     "When checkpoints and copies are written, and where a run starts. Guides: [resuming](reliability.md#resuming), "
     "[the file](checkpoint_format.md).",
     "every_minutes = 30, keep_last = 3, asynchronous = .true."},
    {"output", "Console, metrics and timers. Guide: [watch, profile, debug](monitoring.md).",
     "console = 'quiet', metrics_every = 10, timers = .true."},
    {"lora", "Adapters of low rank beside frozen weights. Guide: [adapters](fine_tuning.md#adapters-lora).",
     "rank = 0 ! or 16, with alpha = 32, targets = 'q_proj v_proj', base = 'base/step_00000000'"},
    {"preference", "Training on pairs of answers. Guide: [preferences](fine_tuning.md#preferences-dpo).",
     "beta = 0.0 ! or 0.1, with data%sequences = 'pairs'"},
};

std::string guide(const std::string& group) {
  const auto* found = std::ranges::find(guides, group, &GroupGuide::group);
  if (found == std::end(guides)) return "";
  std::string example;
  for (char c : found->example) example += c == '\n' ? "\n      " : std::string(1, c);
  return std::string(found->sentence) + "\n\n    &" + group + "\n      " + example + "\n    /\n\n";
}

std::string python_type(const Parameter& p) {
  switch (p.type) {
    case ValueType::integer:
      return "int";
    case ValueType::real:
      return "float";
    case ValueType::logical:
      return "bool";
    case ValueType::string:
      return "str";
  }
  return "";
}

std::string python_value(const Scalar& scalar) {
  if (const auto* b = std::get_if<bool>(&scalar)) return *b ? "True" : "False";
  if (const auto* s = std::get_if<std::string>(&scalar)) return "\"" + *s + "\"";
  return spelled(scalar);
}

std::string cell(std::string text) {  // '|' and '<' mean something in a Markdown table
  std::string out;
  for (char c : text) out += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

}  // namespace

std::string parameters_markdown() {
  std::string out =
      "# Input parameters\n\n"
      "<!-- Made by `nanotron_hpc --parameters-markdown`; edit src/deck/keys instead. -->\n\n"
      "The deck is a Fortran namelist file: groups `&name ... /` of `key = value`, comments after `!`,\n"
      "names in any case. [Writing a deck](decks.md) is the guide. `nanotron_hpc --check deck` reports all\n"
      "mistakes of a deck; `--set group.key=value` replaces a value; `--print-defaults` writes a deck of all\n"
      "keys; `--help group` prints a group of this page. The examples of the groups together are a deck.\n";
  std::string group;
  for (const Parameter& p : parameters()) {
    if (p.group != group) {
      out += "\n## &" + p.group + "\n\n" + guide(p.group) + "| Key | Type | Default | Legal | Unit | Meaning |\n";
      out += "|---|---|---|---|---|---|\n";
      group = p.group;
    }
    const std::string standard = p.required ? "required" : "`" + spelled(p.get(Config{})) + "`";
    out += "| `" + p.name + "` | " + type_word(p) + " | " + cell(standard) + " | " + cell(legal_values(p)) + " | " +
           p.unit + " | " + cell(p.sentence) + " |\n";
  }
  return out;
}

std::string parameters_python() {
  std::string out =
      "\"\"\"The keys of &model and &moe that a checkpoint holds.\n\n"
      "Made by `nanotron_hpc --parameters-python`; edit src/deck/keys instead.\n\"\"\"\n\n"
      "from __future__ import annotations\n\nfrom dataclasses import dataclass, field\nfrom typing import Any\n\n\n"
      "def of_experts(default: Any) -> Any:\n"
      "    \"\"\"A key that only models with experts have.\"\"\"\n"
      "    return field(default=default, metadata={\"of_experts\": True})\n\n\n"
      "def omitted(default: Any) -> Any:\n"
      "    \"\"\"A key that decks and checkpoints name only where it is not at its default.\"\"\"\n"
      "    return field(default=default, metadata={\"omitted\": True})\n\n\n"
      "def omitted_of_experts(default: Any) -> Any:\n"
      "    \"\"\"Both.\"\"\"\n"
      "    return field(default=default, metadata={\"of_experts\": True, \"omitted\": True})\n\n\n"
      "@dataclass(frozen=True)\nclass ModelKeys:\n";
  std::string without_default, with_default;
  for (const Parameter& p : parameters()) {
    if (p.part_of == PartOf::no_model) continue;
    const std::string value = python_value(p.get(Config{}));
    const std::string row = "    " + p.name + ": " + python_type(p);
    if (p.group == "moe") {
      const bool is_omitted = p.omitted_at_default && !p.stored_nonzero;
      with_default += row + (is_omitted ? " = omitted_of_experts(" : " = of_experts(") + value + ")\n";
    } else if (p.omitted_at_default) {
      with_default += row + " = omitted(" + value + ")\n";
    } else if (p.required || p.stored_nonzero) {
      without_default += row + "\n";
    } else {
      with_default += row + " = " + value + "\n";
    }
  }
  return out + without_default + with_default;
}

std::string parameters_man() {
  std::string out = man::head("nanotron_hpc", 5, "the deck: groups and keys of the input of nanotron_hpc(1)");
  out += ".SH SYNOPSIS\n.nf\n&run\n  steps = 1000\n/\n&parallel\n  tp = 2\n/\n.fi\n.SH DESCRIPTION\n" +
         man::text(
             "The deck is a Fortran namelist file: groups '&name ... /' of 'key = value', comments after '!', names in "
             "any case. A wrong deck ends the run with exit code 78 and all of its mistakes. '--check' reads a deck "
             "and stops, '--set group.key=value' replaces a value, '--print-defaults' writes a deck of all keys.\n");
  std::string group;
  for (const Parameter& p : parameters()) {
    if (p.group != group) out += ".SH &" + p.group + "\n";
    group = p.group;
    std::string facts = type_word(p) + (p.required ? ", required" : ", default " + spelled(p.get(Config{})));
    if (const std::string legal = legal_values(p); !legal.empty()) facts += ", " + legal;
    if (!p.unit.empty()) facts += " [" + p.unit + "]";
    out += man::item(man::bold(p.name) + "  " + man::text(facts), p.sentence);
  }
  return out + ".SH SEE ALSO\n.BR nanotron_hpc (1)\n";
}

}  // namespace nanotron::deck
