#pragma once

// Keys of &model that a checkpoint names where they are not at their default, as attributes of /parameters: what is
// older than a key is read, and a model that does without it is written, as before there was one. Private to the io
// layer.

#include <hdf5.h>

#include <string>
#include <vector>

#include "nanotron/deck/config.hpp"

namespace nanotron::io {

/// Integers and logicals as int64, reals as float64, choices as strings. Error(system_error).
void write_model_keys(hid_t parameters, const deck::ModelConfig& model);

/// Sets those that are there. Error(data_error) for a value that the deck would refuse.
void read_model_keys(hid_t parameters, const std::string& file, deck::ModelConfig& model);

/// Those that differ, with their values as a deck spells them.
struct KeyDifference {
  std::string key, a, b;
};
std::vector<KeyDifference> different_model_keys(const deck::ModelConfig& a, const deck::ModelConfig& b);

}  // namespace nanotron::io
