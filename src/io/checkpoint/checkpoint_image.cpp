#include "checkpoint_image.hpp"

#include <fmt/format.h>

#include <unordered_map>

#include "checkpoint_attributes.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/agreement.hpp"
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
  write_model(create_group(file.id(), "parameters").id(), contents.model);
  write_state(create_group(file.id(), "state").id(), contents.state);
  write_tokenizer(file.id(), contents.tokenizer);
  write_data(file.id(), contents.data);
  write_text(file.id(), "deck", contents.deck);
  if (!contents.hugging_face.empty()) write_text(file.id(), "hugging_face", contents.hugging_face);
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
      if (!made.contains(path)) made[path] = create_dataset(file.id(), path, tensor, type);
      begins.push_back(made[path] + begin_in_dataset(tensor, type));
    }
  });
  file.close(ExitCode::system_error, fmt::format("closing {}", image.name()));
  return begins;
}

}  // namespace nanotron::io
