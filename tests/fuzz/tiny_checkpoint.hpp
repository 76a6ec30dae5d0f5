#pragma once

// A checkpoint of a few kilobytes: an embedding, a tensor of each layer, one of each expert, and a norm.

#include <xxhash.h>

#include <deque>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.hpp"
#include "io/copies/copy_folder.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"

namespace nanotron::fuzz {

inline std::string read(const std::filesystem::path& path) {
  std::ifstream input(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
}

class TinyState {
 public:
  TinyState()
      : parameters_(tensors()),
        moments_{{"exp_avg", ScalarType::bf16, tensors()}, {"exp_avg_sq", ScalarType::fp32, tensors()}},
        compression_{tensor("rank_0/error", {3})} {}
  TinyState(const TinyState&) = delete;

  std::span<const io::StateTensor> parameters() const { return parameters_; }
  std::span<const io::StateGroup> moments() const { return moments_; }
  std::span<const io::StateTensor> compression() const { return compression_; }

  static deck::ModelConfig model() {
    deck::ModelConfig model;
    model.hidden_size = 2;
    model.num_hidden_layers = 2;
    model.num_attention_heads = model.num_key_value_heads = 1;
    model.head_dim = 2;
    model.intermediate_size = 3;
    model.vocab_size = 5;
    return model;
  }
  io::CheckpointContents contents(bool with_all) const {
    io::CheckpointContents c;
    c.parameters = parameters_;
    c.state = {5, 500, 40, 1234, 5};
    c.model = model();
    c.deck = "&run\n/\n";
    if (!with_all) return c;
    c.optimizer = "adamw";
    c.moments = moments_;
    c.compression = compression_;
    c.compression_layout = "dp 1";
    c.state.recent_norms = {1.0, 2.0};
    c.tokenizer = {.name = "bytes", .sha256 = std::string(64, 'a'), .vocabulary = std::string(32, 'b')};
    static const std::vector<io::DataFile> files{
        {.use = "training", .name = "", .tokens = 100, .content = std::string(16, 'c')}};
    c.data = files;
    c.provenance = {{"program", "fuzz"}};
    return c;
  }

 private:
  io::StateTensor tensor(const std::string& name, const std::vector<index_t>& shape) {
    index_t elements = 1;
    std::vector<index_t> stride(shape.size());
    for (std::size_t d = shape.size(); d-- > 0; elements *= shape[d]) stride[d] = elements;
    memory_.emplace_back(static_cast<std::size_t>(elements), 1.0F);
    io::StatePart part{std::vector<index_t>(shape.size(), 0), shape, memory_.back().data(), stride};
    return {.name = name, .global_shape = shape, .parts = {part}};
  }
  std::vector<io::StateTensor> tensors() {
    std::vector<io::StateTensor> all{tensor("model/embed_tokens/weight", {5, 2}),
                                     tensor("model/layers/mlp/up_proj/weight", {2, 3, 2})};
    for (index_t expert = 0; expert < 2; ++expert) {
      all.push_back(tensor("model/layers/mlp/experts/" + std::to_string(expert) + "/weight", {2, 1, 2}));
      all.back().slice = io::Slice{"model/layers/mlp/experts/weight", expert, 2};
    }
    all.push_back(tensor("model/norm/weight", {2}));
    return all;
  }

  std::deque<std::vector<float>> memory_;  // of bf16 moments half of it
  std::vector<io::StateTensor> parameters_;
  std::vector<io::StateGroup> moments_;
  std::vector<io::StateTensor> compression_;
};

/// The files of a checkpoint; with all that one may have, or only with what it must.
struct TinyCheckpoint {
  std::string file, manifest;

  TinyCheckpoint(const std::filesystem::path& scratch, bool with_all) {
    Log silent(false);
    io::CheckpointWriter(session(), scratch / "tiny", 0, silent).write(TinyState().contents(with_all));
    const auto folder = io::step_folder(scratch / "tiny", 5);
    file = read(folder / io::checkpoint_file_name);
    manifest = read(folder / io::manifest_file_name);
    std::filesystem::remove_all(scratch / "tiny");
  }
};

/// The copy of one on another host.
struct TinyCopy {
  std::string blocks, table;

  explicit TinyCopy(const std::filesystem::path& scratch) : blocks(TinyCheckpoint(scratch, true).file) {
    io::FileImage image("copies");
    image.write(blocks.data(), std::ssize(blocks), 0);
    table = io::to_bytes({.name = {.step = 5, .generation = 7, .rank = 0, .ranks = 1},
                          .run = "0123456789abcdef",
                          .file = {std::ssize(blocks), io::copy_block_bytes},
                          .blocks = {{0, XXH3_64bits(blocks.data(), blocks.size())}},
                          .metadata = io::packed_extents(image)});
  }
};

}  // namespace nanotron::fuzz
