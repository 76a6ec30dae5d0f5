// ranks: 1 2
// Of every key of the deck: whether a checkpoint has it as an attribute, and what a run with another value is told.
#include <gtest/gtest.h>

#include <set>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/fake_model.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::FakeState;
using test::Scratch;

/// Another legal value of a row: what a changed deck would say.
deck::Scalar other_value(const deck::Parameter& row, const deck::Config& config) {
  const deck::Scalar value = row.get(config);
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer + 1;
  if (const auto* real = std::get_if<double>(&value))
    return *real == 0.0 ? 1.0 : *real * 2 > row.range.max ? *real / 2 : *real * 2;
  if (const auto* logical = std::get_if<bool>(&value)) return !*logical;
  if (row.legal_values.empty()) {  // layers, or numbers
    const auto& text = std::get<std::string>(value);
    return text == "all" ? "1:1" : text + " 2";
  }
  return row.legal_values[row.legal_values[0] == std::get<std::string>(value) ? 1 : 0];
}

/// Of every row of the table: whether a checkpoint of the model has it, and what a deck with another value is told.
class ModelKeys : public ::testing::Test {
 protected:
  ModelKeys() {
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
  }

  MPI_Comm world = test::world();
  int rank = 0, size = 1;
  Log log{false};
  Scratch scratch{test::world()};

  static std::set<std::string> attributes_of(const fs::path& path) {
    const auto file = hdf5::open_read_only(path);
    const auto group = hdf5::open_group(file.id(), "parameters", path.string());
    std::set<std::string> names;
    for (const deck::Parameter& row : deck::parameters()) {
      if (H5Aexists(group.id(), row.name.c_str()) > 0) names.insert(row.name);
    }
    return names;
  }

  void expect_every_key_checked(const deck::ModelConfig& model) {
    FakeState<float> state(rank, size);
    auto contents = state.contents(1);
    contents.model = model;
    CheckpointWriter(world, scratch.path(), 0, log).write(contents);
    const std::set<std::string> attributes = attributes_of(scratch / "step_00000001" / checkpoint_file_name);
    const auto reader = CheckpointReader::open(world, scratch / "step_00000001");
    deck::Config config;
    config.model = model;
    deck::Config read;
    read.model = reader.info().model;
    for (const deck::Parameter& row : deck::parameters()) {
      if (row.group != "model" && row.group != "moe") {
        EXPECT_EQ(row.part_of, deck::PartOf::no_model) << row.name;
        continue;
      }
      const std::string key = row.group + "%" + row.name;
      const bool experts = model.moe.num_experts > 0;
      const bool stored = may_change.count(row.name) == 0 && (row.group == "model" || experts);
      const bool written = stored && !(row.omitted_at_default && row.get(config) == row.get(deck::Config{}));
      EXPECT_EQ(attributes.count(row.name), written ? 1U : 0U) << key;
      EXPECT_EQ(row.get(read), row.get(stored ? config : deck::Config{})) << key;
      deck::Config other = config;
      row.set(other, other_value(row, config));
      const bool compared = (stored && !(experts && row.name == "intermediate_size")) || row.name == "num_experts";
      if (compared) {
        expect_error(ExitCode::deck_error, key + ": the deck says ", [&] { reader.require_model(other.model); });
      } else {
        EXPECT_NO_THROW(reader.require_model(other.model)) << key;
      }
    }
    MPI_Barrier(world);
  }

  /// Of the model's groups, what a run may change when it goes on: no weight means anything else by it.
  const std::set<std::string> may_change{"initializer_range",       "parametrization",       "base_hidden_size",
                                         "capacity_factor",         "receive_factor",        "receive_quantile",
                                         "router_aux_loss_coef",    "router_aux_loss_scale", "router_z_loss_coef",
                                         "router_bias_update_rate", "hidden_dropout",        "attention_dropout"};
};

TEST_F(ModelKeys, AreInTheFileAndComparedOrMayChange) { expect_every_key_checked(test::fake_config()); }

TEST_F(ModelKeys, OfExpertsToo) {
  deck::ModelConfig model = test::fake_config();
  model.moe.num_experts = 4;
  model.moe.moe_intermediate_size = 7;
  model.moe.shared_expert_intermediate_size = 3;
  model.moe.norm_topk_prob = false;
  expect_every_key_checked(model);
}

// Keys that are written only where they are not at their default: all of them.
TEST_F(ModelKeys, OfAnotherArchitectureToo) {
  deck::Config config;
  config.model = test::fake_config();
  for (const deck::Parameter& row : deck::parameters()) {
    if (row.group == "model" && row.omitted_at_default) row.set(config, other_value(row, config));
  }
  EXPECT_EQ(config.model.normalization, deck::Normalization::layer_norm);
  expect_every_key_checked(config.model);
}

TEST_F(ModelKeys, WhatADeckWouldRefuseIsRefused) {
  FakeState<float> state(rank, size);
  auto contents = state.contents(1);
  contents.model.sliding_window = -3;
  CheckpointWriter(world, scratch.path(), 0, log).write(contents);
  expect_error(ExitCode::data_error, "the attribute 'sliding_window' is missing or out of range",
               [&] { CheckpointReader::open(world, scratch / "step_00000001"); });
}

}  // namespace
}  // namespace nanotron::io
