// ranks: 1 2
// Keys of &model that are younger than the format: attributes where they are not at their defaults.
#include <gtest/gtest.h>

#include "nanotron/io/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint_writer.hpp"
#include "nanotron/io/hdf5.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/fake_model.hpp"

namespace nanotron::io {
namespace {

class ModelKeys : public ::testing::Test {
 protected:
  ModelKeys() {
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
  }

  void save(const deck::ModelConfig& model) {
    test::FakeState<float> state(rank, size);
    state.fill(1);
    CheckpointContents contents = state.contents(5);
    contents.model = model;
    CheckpointWriter(world, scratch.path(), 0, log).write(contents);
    MPI_Barrier(world);
  }
  CheckpointReader open() { return CheckpointReader::open(world, step_folder(scratch.path(), 5)); }

  MPI_Comm world = test::world();
  int rank = 0, size = 1;
  Log log{false};
  test::Scratch scratch{test::world()};
};

deck::ModelConfig gpt2() {
  deck::ModelConfig m = test::fake_config();
  m.normalization = deck::Normalization::layer_norm;
  m.layer_norm_epsilon = 1e-6;
  m.position_embedding_type = deck::PositionEmbedding::learned_absolute;
  m.max_position_embeddings = 77;
  m.hidden_act = deck::HiddenAct::gelu_new;
  m.o_proj_bias = m.mlp_bias = true;
  return m;
}

TEST_F(ModelKeys, AreReadBack) {
  save(gpt2());
  const CheckpointReader reader = open();
  const deck::ModelConfig& found = reader.info().model;
  EXPECT_EQ(found.normalization, deck::Normalization::layer_norm);
  EXPECT_EQ(found.layer_norm_epsilon, 1e-6);
  EXPECT_TRUE(found.has_learned_positions());
  EXPECT_EQ(found.max_position_embeddings, 77);
  EXPECT_EQ(found.hidden_act, deck::HiddenAct::gelu_new);
  EXPECT_TRUE(found.o_proj_bias && found.mlp_bias);
  EXPECT_EQ(found.sliding_window, 0);
  EXPECT_NO_THROW(reader.require_model(gpt2()));
  test::expect_error(ExitCode::deck_error, "model%hidden_act: the deck says 'silu', the checkpoint 'gelu_new'",
                     [&] { reader.require_model(test::fake_config()); });
}

TEST_F(ModelKeys, DefaultsLeaveTheFileAsItWas) {
  save(test::fake_config());
  const hdf5::File file = hdf5::open_read_only(step_folder(scratch.path(), 5) / checkpoint_file_name);
  const hdf5::Group parameters = hdf5::open_group(file.id(), "parameters", "");
  EXPECT_GT(H5Aexists(parameters.id(), "rope_theta"), 0);
  for (const char* key : {"normalization", "position_embedding_type", "rope_type", "sliding_window", "hidden_act"}) {
    EXPECT_EQ(H5Aexists(parameters.id(), key), 0) << key;
  }
}

TEST_F(ModelKeys, WhatADeckWouldRefuseIsRefused) {
  deck::ModelConfig m = test::fake_config();
  m.sliding_window = -3;
  save(m);
  test::expect_error(ExitCode::data_error, "the attribute 'sliding_window' is out of range", [&] { open(); });
}

}  // namespace
}  // namespace nanotron::io
