#include "checkpoint_image.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/io/blocks/parallel_hdf5.hpp"

namespace nanotron::io {
namespace {

constexpr std::size_t attribute_limit = 32 << 10;  // HDF5 keeps an attribute below 64 KiB

hdf5::Group create_group(hid_t file, const char* name) {
  return hdf5::Group(hdf5::check(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), ExitCode::system_error,
                                 fmt::format("creating the group {}", name)));
}

void write_text(hid_t file, const char* name, const std::string& text) {
  const hdf5::Datatype type = hdf5::string_type(text.size());
  const hdf5::Dataspace scalar(H5Screate(H5S_SCALAR));
  const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_obj_track_times(creation.id(), false);
  hdf5::Dataset dataset(
      hdf5::check(H5Dcreate2(file, name, type.id(), scalar.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT),
                  ExitCode::system_error, fmt::format("creating /{}", name)));
  if (!text.empty())
    hdf5::check(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()), ExitCode::system_error,
                fmt::format("writing /{}", name));
}

void write_provenance(hid_t file, const Provenance& provenance) {
  const hdf5::Group group = create_group(file, "provenance");
  for (const auto& [key, value] : provenance)
    if (!key.empty() && H5Aexists(group.id(), key.c_str()) == 0)
      hdf5::write_string(group.id(), key.c_str(), std::string_view(value).substr(0, attribute_limit));
}

void write_tokenizer(hid_t file, const data::TokenizerId& tokenizer) {
  if (!tokenizer.known() && tokenizer.name.empty()) return;
  const hdf5::Group group = create_group(file, "tokenizer");
  const auto write = [&](const char* key, std::string_view value) {
    if (!value.empty()) hdf5::write_string(group.id(), key, value.substr(0, attribute_limit));
  };
  write("name", tokenizer.name);
  write("sha256", tokenizer.sha256);
  write("vocabulary_xxh3_128", tokenizer.vocabulary);
}

// A group for each file: /data/0, /data/1, ...
void write_data(hid_t file, std::span<const DataFile> data) {
  if (data.empty()) return;
  const hdf5::Group all = create_group(file, "data");
  for (std::size_t i = 0; i < data.size(); ++i) {
    const hdf5::Group group = create_group(all.id(), fmt::format("{}", i).c_str());
    const auto write = [&](const char* key, const std::string& value) {
      if (!value.empty()) hdf5::write_string(group.id(), key, value.substr(0, attribute_limit));
    };
    write("use", data[i].use);
    write("name", data[i].name);
    hdf5::write_integer(group.id(), "tokens", data[i].tokens);
    write("content", data[i].content);
    write("sample", data[i].sample);
    write("tokenizer_sha256", data[i].tokenizer.sha256);
    write("vocabulary_xxh3_128", data[i].tokenizer.vocabulary);
    if (data[i].bos) hdf5::write_integer(group.id(), "bos_token_id", *data[i].bos);
  }
}

// Which layer each row of a stack is, if it has not all: numbers separated by spaces.
void write_layers(hid_t file, const std::string& path, const std::vector<index_t>& layers) {
  const std::string text = fmt::format("{}", fmt::join(layers, " "));
  if (text.empty() || text.size() > attribute_limit) return;
  const std::string doing = "opening " + path;
  const hdf5::Dataset dataset(hdf5::check(H5Dopen2(file, path.c_str(), H5P_DEFAULT), ExitCode::system_error, doing));
  hdf5::write_string(dataset.id(), "layers", text);
}

// Returns where its elements begin in the file.
std::int64_t create_dataset(hid_t file, const std::string& path, const StateTensor& tensor, ScalarType type) {
  const std::vector<index_t> extents = dataset_shape(tensor);
  const std::vector<hsize_t> shape(extents.begin(), extents.end());
  const hdf5::Dataspace space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
  const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE)), links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_layout(creation.id(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.id(), false);
  H5Pset_create_intermediate_group(links.id(), 1);
  const hdf5::Dataset made(
      hdf5::check(H5Dcreate2(file, path.c_str(), native_type(type), space.id(), links.id(), creation.id(), H5P_DEFAULT),
                  ExitCode::system_error, fmt::format("creating {}", path)));
  const haddr_t begin = H5Dget_offset(made.id());
  const bool is_empty = H5Dget_storage_size(made.id()) == 0;
  NANOTRON_REQUIRE(begin != HADDR_UNDEF || is_empty, "{} has no place in the file", path);
  return is_empty ? 0 : static_cast<std::int64_t>(begin);
}

}  // namespace

ImageLayout lay_out(MPI_Comm world, FileImage& image, const CheckpointContents& contents) {
  ImageLayout layout;
  for_each_group(contents, [&](const std::string&, std::span<const StateTensor> group, ScalarType type) {
    for (const StateTensor& tensor : group) layout.tensors.push_back({&tensor, type, 0});
  });
  std::vector<std::int64_t> places(layout.tensors.size() + 1);  // where they begin, and the size of the file
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  comm::collectively(world, [&] {
    if (rank != 0) return;
    places = write_metadata(image, contents);
    places.push_back(image.bytes());
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(places.data(), static_cast<int>(places.size()), MPI_INT64_T, 0, world));
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) layout.tensors[i].begin = places[i];
  layout.bytes = places.back();
  return layout;
}

std::vector<std::int64_t> write_metadata(FileImage& image, const CheckpointContents& contents) {
  hdf5::File file = hdf5::create_through(image);
  hdf5::write_string(file.id(), "format", checkpoint_format);
  hdf5::write_integer(file.id(), "version", checkpoint_version);
  if (!contents.bits.empty()) hdf5::write_string(file.id(), "bits", contents.bits);
  write_model(create_group(file.id(), "parameters").id(), contents.model);
  write_state(create_group(file.id(), "state").id(), contents.state);
  write_tokenizer(file.id(), contents.tokenizer);
  write_data(file.id(), contents.data);
  write_text(file.id(), "deck", contents.deck);
  if (!contents.hugging_face.empty()) write_text(file.id(), "hugging_face", contents.hugging_face);
  if (!contents.adapters.empty()) write_text(file.id(), "adapters", contents.adapters);
  write_provenance(file.id(), contents.provenance);
  if (!contents.moments.empty())
    hdf5::write_string(create_group(file.id(), "optimizer").id(), "name", contents.optimizer);
  if (!contents.compression.empty()) {
    hdf5::write_string(create_group(file.id(), "compression").id(), "layout", contents.compression_layout);
  }
  std::vector<std::int64_t> begins;
  for_each_group(contents, [&](const std::string& group, std::span<const StateTensor> tensors, ScalarType type) {
    std::unordered_map<std::string, std::int64_t> made;
    for (const StateTensor& tensor : tensors) {
      const std::string path = group + dataset_of(tensor);
      if (!made.contains(path)) {
        made[path] = create_dataset(file.id(), path, tensor, type);
        write_layers(file.id(), path, tensor.layers);
      }
      begins.push_back(made[path] + begin_in_dataset(tensor, type));
    }
  });
  file.close(ExitCode::system_error, fmt::format("closing {}", image.name()));
  return begins;
}

namespace {

using deck::Parameter;
using deck::Scalar;
using deck::ValueType;

using Member = std::int64_t CheckpointState::*;
struct Counter {
  const char* name;
  Member member;
  std::int64_t low, high;
};
// No run comes near 2^53 steps or samples; the arithmetic of sample indices is exact far beyond (data/order/blend.hpp).
constexpr std::int64_t most = std::int64_t{1} << 53, max_tokens = std::int64_t{1} << 62;
constexpr Counter counters_of_state[] = {{"step", &CheckpointState::step, 0, most},
                                         {"tokens_seen", &CheckpointState::tokens_seen, 0, max_tokens},
                                         {"sample_cursor", &CheckpointState::sample_cursor, 0, most},
                                         {"seed", &CheckpointState::seed, INT64_MIN, INT64_MAX},
                                         {"adam_step", &CheckpointState::adam_step, 0, most}};

constexpr const char* recent_norms = "recent_grad_norms";
constexpr hssize_t max_norms = 4096;

[[noreturn]] void wrong_attribute(const char* name, const std::string& expected, const std::string& found,
                                  const std::string& file) {
  damaged(fmt::format("the attribute '{}' is missing or out of range", name), expected, found, file);
}

std::int64_t required_integer(hid_t object, const char* name, std::int64_t low, const std::string& file,
                              std::int64_t high = INT64_MAX) {
  const auto value = hdf5::read_integer(object, name, file);
  if (!value || *value < low || *value > high) {
    wrong_attribute(name,
                    high == INT64_MAX ? fmt::format("an integer of {} or more", low)
                                      : fmt::format("an integer from {} to {}", low, high),
                    value ? fmt::format("{}", *value) : "nothing", file);
  }
  return *value;
}

double required_real(hid_t object, const Parameter& row, const std::string& file) {
  const auto value = hdf5::read_real(object, row.name.c_str(), file);
  const double low = row.range.min;
  if (!value || !(row.range.min_open ? *value > low : *value >= low)) {
    wrong_attribute(row.name.c_str(),
                    row.range.min_open && low == 0.0 ? "a positive number" : "a number " + legal_values(row),
                    value ? fmt::format("{}", *value) : "nothing", file);
  }
  return *value;
}

// Empty where the attribute is not there.
std::vector<double> read_norms(hid_t state, const std::string& file) {
  const std::string doing = fmt::format("{}: reading the attribute {}", file, recent_norms);
  if (hdf5::check(H5Aexists(state, recent_norms), ExitCode::data_error, doing) == 0) return {};
  const hdf5::Attribute norms(hdf5::check(H5Aopen(state, recent_norms, H5P_DEFAULT), ExitCode::data_error, doing));
  const hdf5::Dataspace space(H5Aget_space(norms.id()));
  const hssize_t count = H5Sget_simple_extent_npoints(space.id());
  const hdf5::Datatype type(H5Aget_type(norms.id()));
  if (count < 1 || count > max_norms || H5Tget_class(type.id()) != H5T_FLOAT || !hdf5::is_plain_number(type)) {
    wrong_attribute(recent_norms, fmt::format("1 to {} real numbers", max_norms), fmt::format("{}", count), file);
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  hdf5::check(H5Aread(norms.id(), H5T_NATIVE_DOUBLE, values.data()), ExitCode::data_error, doing);
  return values;
}

std::string required_legal_value(hid_t object, const Parameter& row, const std::string& file) {
  std::string value = required_string(object, row.name.c_str(), file);
  if (!row.legal_values.empty() && std::ranges::find(row.legal_values, value) == row.legal_values.end()) {
    wrong_attribute(row.name.c_str(), legal_values(row), value, file);
  }
  return value;
}

deck::Config config_of(const deck::ModelConfig& model) {
  deck::Config config;
  config.model = model;
  return config;
}

Scalar read_value(hid_t parameters, const Parameter& row, const std::string& file) {
  switch (row.type) {
    case ValueType::integer:
      return required_integer(parameters, row.name.c_str(),
                              row.stored_nonzero ? 1 : static_cast<std::int64_t>(std::max(row.range.min, -0x1p62)),
                              file);
    case ValueType::real:
      return required_real(parameters, row, file);
    case ValueType::logical:
      return required_integer(parameters, row.name.c_str(), 0, file) != 0;
    case ValueType::string:
      break;
  }
  return required_legal_value(parameters, row, file);
}

void write_value(hid_t parameters, const char* name, const Scalar& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return hdf5::write_integer(parameters, name, *integer);
  if (const auto* real = std::get_if<double>(&value)) return hdf5::write_real(parameters, name, *real);
  if (const auto* logical = std::get_if<bool>(&value)) return hdf5::write_integer(parameters, name, *logical);
  hdf5::write_string(parameters, name, std::get<std::string>(value));
}

std::string text(const Scalar& value) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

}  // namespace

void damaged(const std::string& what, const std::string& expected, const std::string& found, const std::string& where,
             const std::string& change) {
  fail(ExitCode::data_error, {what, expected, found, where, change});
}

std::string required_string(hid_t object, const char* name, const std::string& file) {
  const auto value = hdf5::read_string(object, name, file);
  if (!value || value->empty())
    damaged(fmt::format("the attribute '{}' is missing or empty", name), "a text", "nothing", file);
  return *value;
}

void write_model(hid_t parameters, const deck::ModelConfig& model) {
  const deck::Config config = config_of(model), defaults;
  for (const Parameter& row : deck::parameters()) {
    const Scalar value = row.get(config);
    if (!is_stored(row, config) || (row.omitted_at_default && value == row.get(defaults))) continue;
    write_value(parameters, row.name.c_str(), value);
  }
}

deck::ModelConfig read_model(hid_t parameters, const std::string& file) {
  deck::Config config;
  for (const Parameter& row : deck::parameters()) {
    if (!is_stored(row, config)) continue;  // known by the rows before it
    if (row.omitted_at_default && hdf5::check(H5Aexists(parameters, row.name.c_str()), ExitCode::data_error,
                                              fmt::format("{}: looking for the attribute {}", file, row.name)) == 0)
      continue;
    row.set(config, read_value(parameters, row, file));
  }
  return config.model;
}

std::string model_differences(const deck::ModelConfig& wanted, const deck::ModelConfig& found) {
  const deck::Config here = config_of(wanted), there = config_of(found);
  std::string lines;
  for (const Parameter& row : deck::parameters()) {
    const Scalar want = row.get(here), have = row.get(there);
    if (!is_compared(row, here, there) || want == have) continue;
    lines += fmt::format("{}{}%{}: the deck says {}, the checkpoint {}", lines.empty() ? "" : "\n", row.group, row.name,
                         text(want), text(have));
  }
  return lines;
}

void write_state(hid_t state, const CheckpointState& counters) {
  for (const Counter& c : counters_of_state) hdf5::write_integer(state, c.name, counters.*c.member);
  const hsize_t count = counters.recent_norms.size();
  if (count == 0) return;
  const hdf5::Dataspace space(H5Screate_simple(1, &count, nullptr));
  const hdf5::Attribute norms(
      hdf5::check(H5Acreate2(state, recent_norms, H5T_IEEE_F64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT),
                  ExitCode::system_error, "writing the last gradient norms"));
  hdf5::check(H5Awrite(norms.id(), H5T_NATIVE_DOUBLE, counters.recent_norms.data()), ExitCode::system_error,
              "writing the last gradient norms");
}

CheckpointState read_state(hid_t state, const std::string& file) {
  CheckpointState counters;
  for (const Counter& c : counters_of_state) counters.*c.member = required_integer(state, c.name, c.low, file, c.high);
  counters.recent_norms = read_norms(state, file);
  return counters;
}

}  // namespace nanotron::io
