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
#include "nanotron/data/tokenizer_id.hpp"
#include "nanotron/deck/model_config.hpp"

namespace nanotron::io {

inline constexpr const char* checkpoint_format = "nanotron_hpc checkpoint";
inline constexpr std::int64_t checkpoint_version = 1;
inline constexpr const char* checkpoint_file_name = "checkpoint.h5";
inline constexpr const char* manifest_file_name = "manifest.json";

/// A rectangle of a logical tensor in device memory (or in the host's). Element (i0, i1, ...) of it is
/// data[i0*stride[0] + i1*stride[1] + ...]. Row-major: the last stride is 1; for three dimensions
/// stride[0] is a multiple of stride[1], or rows are packed (stride[1] == extent[2]).
struct StatePart {
  std::vector<index_t> offset;
  std::vector<index_t> extent;
  void* data = nullptr;         // of the type of the call or group
  std::vector<index_t> stride;  // elements
};

/// Where tensors of one shape lie one after another in a dataset, (count, shape of a tensor): what is tensor `index` of
/// it.
struct Slice {
  std::string dataset;
  index_t index = 0, count = 0;
};

/// One logical tensor and the parts of it that this rank stores; without parts it writes or reads
/// nothing of it. Several parts have no row in common and come in the order of the tensor; each is
/// packed, and they are stored one after another in one allocation.
struct StateTensor {
  std::string name;  // below /parameters: "model/layers/mlp/up_proj/weight"
  /// (layers, rows, columns), (layers, n), (rows, columns) or (n).
  std::vector<index_t> global_shape;
  std::vector<StatePart> parts;
  std::optional<Slice> slice{};  // none: the dataset is the tensor's own, of its name
};

/// The dataset below a group that holds the tensor, its shape, and the bytes in it before the tensor.
const std::string& dataset_of(const StateTensor& tensor);
std::vector<index_t> dataset_shape(const StateTensor& tensor);
std::int64_t begin_in_dataset(const StateTensor& tensor, ScalarType type);

/// Tensors below /optimizer/<name>: one kind of moment. Not every parameter has every moment.
struct StateGroup {
  std::string name;
  ScalarType type = ScalarType::fp32;  // fp32, fp64 or bf16, in memory and in a file that is written
  std::vector<StateTensor> tensors;
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
  std::string sample{};   // the same of some blocks alone: sample_hash (trainer/data_identity.hpp)
  data::TokenizerId tokenizer{};
  std::optional<std::int64_t> bos{};  // that begins its documents; no_bos: they begin without; empty: not known
};

/// Contents of one checkpoint, for the writer. The same tensors in the same order on all ranks; of
/// ranks that hold the same part only one passes it. The spans borrow.
struct CheckpointContents {
  std::span<const StateTensor> parameters;
  std::string optimizer;  // whose moments these are
  std::span<const StateGroup> moments;
  /// What compressed gradient reduction carries from step to step, rank after rank; empty: nothing.
  std::span<const StateTensor> compression;
  std::string compression_layout;        // describes what is stored where
  ScalarType master = ScalarType::fp32;  // fp32 or fp64, in memory and in the file: of all but the moments
  CheckpointState state;
  deck::ModelConfig model;  // resolved
  data::TokenizerId tokenizer{};  // of the training file
  std::span<const DataFile> data{};
  std::string deck;         // canonical text
  std::string hugging_face{};  // what the converter kept of an imported model, JSON; empty: nothing
  Provenance provenance;
};

/// What the reader knows before it reads a tensor.
struct CheckpointInfo {
  CheckpointState state;
  deck::ModelConfig model;  // what is part of it (deck::PartOf); the rest has its defaults
  ScalarType master = ScalarType::fp32;
  bool has_optimizer = false;  // false: converted from Hugging Face, the moments start at zero
  std::string optimizer;       // whose moments it has: "adamw", "muon"; empty without any
  data::TokenizerId tokenizer;  // empty parts: not in the file
  std::vector<DataFile> data;   // empty: not in the file
  std::string deck;
  std::string hugging_face;        // as CheckpointContents has it
  std::string compression_layout;  // empty: no such state
};

/// <directory>/step_00000100
std::filesystem::path step_folder(const std::filesystem::path& directory, std::int64_t step);

}  // namespace nanotron::io
