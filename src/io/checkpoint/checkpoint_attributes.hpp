#pragma once
// Private to io: the attributes of a checkpoint. deck::Parameter::part_of says which parameters of the model are
// attributes.

#include <hdf5.h>

#include <string>

#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::io {

/// Error(data_error) about a file that is no checkpoint of ours.
[[noreturn]] void damaged(const std::string& what, const std::string& expected, const std::string& found,
                          const std::string& where, const std::string& change = "");

/// Throws Error(data_error) when the attribute is missing or empty.
std::string required_string(hid_t object, const char* name, const std::string& file);

/// The model as attributes of /parameters. Reading leaves keys that are part of no model at their defaults and throws
/// Error(data_error) when an attribute is missing or out of range.
void write_model(hid_t parameters, const deck::ModelConfig& model);
deck::ModelConfig read_model(hid_t parameters, const std::string& file);

/// "model%hidden_size: the deck says 9, the checkpoint 8": a line for each key that is part of both models and
/// differs; empty when a run with `wanted` may go on from `found`.
std::string model_differences(const deck::ModelConfig& wanted, const deck::ModelConfig& found);

void write_state(hid_t state, const CheckpointState& counters);
CheckpointState read_state(hid_t state, const std::string& file);

}  // namespace nanotron::io
