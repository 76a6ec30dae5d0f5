#pragma once

// What a checkpoint holds. doc/checkpoint_format.md describes the file; tools/nanotron_tools/checkpoint.py is
// the Python implementation.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/provenance.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/data/tokens/tokenizer_id.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/io/blocks/state_tensor.hpp"

namespace nanotron::io {

inline constexpr const char* checkpoint_format = "nanotron_hpc checkpoint";
inline constexpr std::int64_t checkpoint_version = 1;
inline constexpr const char* checkpoint_file_name = "checkpoint.h5";
inline constexpr const char* manifest_file_name = "manifest.json";

/// Tensors below /optimizer/<name>: one kind of moment. Not every parameter has every moment.
struct StateGroup {
  std::string name;
  ScalarType type = ScalarType::fp32;  // fp32, fp64 or bf16, in memory and in a file that is written
  std::vector<StateTensor> tensors;
  bool or_parameters = false;  // where a checkpoint lacks it, its parameters are read
};

/// All counters of a run.
struct CheckpointState {
  std::int64_t step = 0;           // updates done
  std::int64_t tokens_seen = 0;    // target tokens
  std::int64_t sample_cursor = 0;  // the next global sample index
  std::int64_t seed = 0;
  /// Updates of the moments: differs from step after skipped updates.
  std::int64_t adam_step = 0;
  /// Gradient norms of the last updates (run%spike_factor), the newest at the end; empty: not kept.
  std::vector<double> recent_norms{};
};

inline constexpr std::int64_t no_bos = -1;

/// A token file of the run that wrote a checkpoint. Empty parts are not known.
struct DataFile {
  std::string use;   // "training" or "validation"
  std::string name;  // that the deck gives it; empty: the only one
  index_t tokens = 0;
  std::string content{};  // 16 hexadecimal digits: data::TokenHashes::content
  std::string sample{};   // the same of some blocks only: sample_hash (trainer/data/run_data.hpp)
  data::TokenizerId tokenizer{};
  std::optional<std::int64_t> bos{};  // that begins its documents; no_bos: they begin without; empty: not known
};

/// Contents of one checkpoint, for the writer. The same tensors in the same order on all ranks; if several ranks hold
/// the same part, only one passes it. The spans borrow.
struct CheckpointContents {
  std::span<const StateTensor> parameters;
  std::string optimizer;  // whose moments these are
  std::span<const StateGroup> moments;
  /// The persistent state of compressed gradient reduction, rank after rank; empty: none.
  std::span<const StateTensor> compression;
  std::string compression_layout;        // describes what is stored where
  ScalarType master = ScalarType::fp32;  // fp32 or fp64, in memory and in the file: of all except the moments
  CheckpointState state;
  deck::ModelConfig model;        // resolved
  data::TokenizerId tokenizer{};  // of the training file
  std::span<const DataFile> data{};
  std::string deck;            // canonical text
  std::string bits{};          // the class of runs with the same bits; empty: none
  std::string hugging_face{};  // what the converter kept of an imported model, JSON; empty: nothing
  std::string adapters{};  // JSON: which adapters the parameters are, and of which frozen weights; empty: all weights
  Provenance provenance;
};

/// What the reader knows before it reads a tensor.
struct CheckpointInfo {
  CheckpointState state;
  deck::ModelConfig model;  // what is part of it (deck::PartOf); the rest has its defaults
  ScalarType master = ScalarType::fp32;
  bool has_optimizer = false;   // false: converted from Hugging Face, the moments start at zero
  std::string optimizer;        // whose moments it has: "adamw", "muon"; empty without any
  data::TokenizerId tokenizer;  // empty parts: not in the file
  std::vector<DataFile> data;   // empty: not in the file
  std::string deck;
  std::string bits;                // as CheckpointContents has it
  std::string hugging_face;        // as CheckpointContents has it
  std::string adapters;            // the same
  std::string compression_layout;  // empty: no such state
};

/// <directory>/step_00000100
std::filesystem::path step_folder(const std::filesystem::path& directory, std::int64_t step);

/// Reports an empty checkpoint%resume, two rules for when checkpoints are due, and copies without a folder of each
/// host.
void check_checkpoint(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::io
