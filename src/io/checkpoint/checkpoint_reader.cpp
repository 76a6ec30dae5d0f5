#include "nanotron/io/checkpoint/checkpoint_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "io/checkpoint/checkpoint_image.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/io/blocks/parallel_hdf5.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "nanotron/io/checkpoint/verified_file.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "step_folders.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

constexpr index_t text_limit = 16 << 20;  // of /deck and /hugging_face, bytes
constexpr std::size_t max_data_files = 65536;
constexpr std::size_t longest_text = data::longest_digest;  // of /data, bytes: names and digits
constexpr const char* resume_key = "checkpoint%resume ('auto': the newest one, 'none': start from scratch)";

std::string read_text(hid_t file, const std::string& path, const std::string& name) {
  const hdf5::Dataset dataset = hdf5::open_dataset(file, path, name);
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  if (!hdf5::checked_shape(dataset, "/" + path, name).empty() || H5Tget_class(type.id()) != H5T_STRING ||
      H5Tis_variable_str(type.id()) > 0 || H5Tget_size(type.id()) > static_cast<std::size_t>(text_limit))
    damaged(fmt::format("/{} is refused", path), "one string of fixed length", "something else", name);
  std::string text(H5Tget_size(type.id()), '\0');
  hdf5::check(H5Dread(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()), ExitCode::data_error,
              fmt::format("{}: reading /{}", name, path));
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

data::TokenizerId read_tokenizer(hid_t file, const std::string& name) {
  if (!hdf5::exists(file, "tokenizer")) return {};
  const hdf5::Group group = hdf5::open_group(file, "tokenizer", name);
  const auto text = [&](const char* key) { return hdf5::read_string(group.id(), key, name).value_or(""); };
  return {text("name"), text("sha256"), text("vocabulary_xxh3_128")};
}

std::vector<DataFile> read_data(hid_t file, const std::string& name) {
  std::vector<DataFile> data;
  if (!hdf5::exists(file, "data")) return data;
  const hdf5::Group all = hdf5::open_group(file, "data", name);
  while (data.size() < max_data_files && hdf5::exists(all.id(), fmt::format("{}", data.size()))) {
    const hdf5::Group group = hdf5::open_group(all.id(), fmt::format("{}", data.size()), name);
    const auto text = [&](const char* key) {
      std::string value = hdf5::read_string(group.id(), key, name).value_or("");
      if (value.size() > longest_text)
        damaged(fmt::format("the attribute '{}' of /data is damaged", key),
                fmt::format("at most {} bytes", longest_text), fmt::format("{}", value.size()), name);
      return value;
    };
    data.push_back({.use = text("use"),
                    .name = text("name"),
                    .tokens = hdf5::read_integer(group.id(), "tokens", name).value_or(0),
                    .content = text("content"),
                    .sample = text("sample"),
                    .tokenizer = {"", text("tokenizer_sha256"), text("vocabulary_xxh3_128")},
                    .bos = hdf5::read_integer(group.id(), "bos_token_id", name)});
  }
  return data;
}

// Bytes of the dataset's type: 4 or 8 for float32 or float64, of a moment also 2 for bfloat16. Error(data_error) for
// other types.
std::size_t real_bytes(const hdf5::Dataset& dataset, const std::string& name, const std::string& file) {
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  const std::size_t bytes = H5Tget_size(type.id());
  const bool is_moment = name.starts_with("optimizer/");
  const bool is_bf16 = is_moment && H5Tequal(type.id(), native_type(ScalarType::bf16)) > 0;
  if (H5Tget_class(type.id()) != H5T_FLOAT || (!hdf5::is_plain_number(type) && !is_bf16))
    damaged(fmt::format("the dataset '{}' has the wrong type", name),
            is_moment ? "bfloat16, float32 or float64" : "float32 or float64",
            fmt::format("HDF5 type class {}, {} bytes", static_cast<int>(H5Tget_class(type.id())), bytes), file);
  return bytes;
}

// A tensor that has the type of all: the embedding, or the adapter of a linear layer where there are only adapters.
std::string any_parameter(const hdf5::File& file) {
  for (const char* module : {"self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "self_attn/o_proj",
                             "mlp/gate_proj", "mlp/up_proj", "mlp/down_proj"}) {
    const std::string name = fmt::format("parameters/model/layers/{}/lora_A/weight", module);
    if (hdf5::exists(file.id(), name)) return name;
  }
  return "parameters/model/embed_tokens/weight";
}

// Where a tensor of copies of a file of `bytes` begins, of the type that is in memory.
std::int64_t offset_of(const Slab& slab, std::int64_t bytes) {
  const hdf5::Datatype type(H5Dget_type(slab.dataset->id()));
  if (H5Tequal(type.id(), native_type(slab.type)) <= 0)
    fail(ExitCode::data_error, {.what = fmt::format("{} has a different type than {}", slab.name, name_of(slab.type))});
  const std::vector<index_t>& shape = slab.tensor->global_shape;
  const std::int64_t extent =
      std::accumulate(shape.begin(), shape.end(), static_cast<std::int64_t>(size_of(slab.type)), std::multiplies<>());
  if (extent == 0) return 0;
  const haddr_t dataset = H5Dget_offset(slab.dataset->id());
  const std::int64_t within = begin_in_dataset(*slab.tensor, slab.type);
  if (dataset == HADDR_UNDEF || extent + within > bytes || dataset > static_cast<haddr_t>(bytes - extent - within))
    fail(ExitCode::data_error, {.what = fmt::format("{} lies outside of its file", slab.name)});
  return static_cast<std::int64_t>(dataset) + within;
}

// The listing of rank 0, on all ranks. A name may contain any byte but zero, so zeros separate names; half-written
// folders have step -1.
StepFolders broadcast_folders(MPI_Comm world, const fs::path& directory) {
  const std::string text = comm::text_of_root(world, [&] {
    const StepFolders found = list_step_folders(directory);
    std::string lines;
    const auto add = [&](std::int64_t step, const fs::path& folder) {
      lines += fmt::format("{} {}", step, folder.string()) + '\0';
    };
    for (const auto& [step, folder] : found.steps) add(step, folder);
    for (const fs::path& folder : found.partial) add(-1, folder);
    return lines;
  });
  StepFolders result;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\0', begin);
    const std::size_t space = text.find(' ', begin);
    const std::int64_t step = std::stoll(text.substr(begin, space - begin));
    const fs::path folder = text.substr(space + 1, end - space - 1);
    if (step < 0)
      result.partial.push_back(folder);
    else
      result.steps.emplace_back(step, folder);
  }
  return result;
}

// False too for a path that cannot be one.
bool is_folder(const fs::path& path) {
  std::error_code error;
  static_cast<void>(fs::status(path, error));
  if (error == std::errc::too_many_symbolic_link_levels || error == std::errc::filename_too_long) return false;
  return files::kind_of(path) == files::Kind::folder;
}

// The folder of checkpoints that a path names, on all ranks; empty when it names one step folder.
fs::path collection_at(MPI_Comm world, const fs::path& path, const std::string& key) {
  return comm::text_of_root(world, [&]() -> std::string {
    const auto absence = absence_of(path);
    if (!absence) return "";
    if (is_folder(path / "checkpoints")) return (path / "checkpoints").string();
    if (is_folder(path) && !files::exists(path / checkpoint_file_name) && !list_step_folders(path).steps.empty())
      return path.string();
    fail(ExitCode::data_error, {.what = fmt::format("checkpoint {} is refused: {}", path.string(), absence->reason),
                                .change = fmt::format("{} with {}", absence->change, key)});
  });
}

std::optional<CheckpointReader> newest_good(MPI_Comm world, const fs::path& directory, const std::string& key,
                                            Log& log) {
  const StepFolders found = broadcast_folders(world, directory);
  for (const fs::path& folder : found.partial) log.warn("checkpoint {} is skipped: half-written", folder.string());
  std::string refused;
  for (const auto& [step, folder] : found.steps) {
    try {
      return CheckpointReader::open(world, folder);
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::data_error) throw;
      log.warn("skipped: {}", reason(error));
      refused += fmt::format("{}{}", refused.empty() ? "" : "\n", reason(error));
    }
  }
  if (refused.empty()) return std::nullopt;
  fail(ExitCode::data_error, {.what = "there is no valid checkpoint",
                              .expected = "one that is complete and undamaged",
                              .found = refused,
                              .where = directory.string(),
                              .change = "restore one of them, or give another one with " + key});
}

// The checkpoint that the deck names.
CheckpointReader open_named(MPI_Comm world, const fs::path& folder, const std::string& key) {
  try {
    return CheckpointReader::open(world, folder);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::data_error) throw;
    fail(ExitCode::data_error,
         {.what = reason(error),
          .change = "give another one, or the folder of all, whose newest complete one is used, with " + key});
  }
}

}  // namespace

CheckpointReader::CheckpointReader(MPI_Comm world, fs::path folder)
    : world_(world),
      folder_(std::move(folder)),
      file_name_((folder_ / checkpoint_file_name).string()),
      key_(resume_key) {}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

std::optional<CheckpointReader> CheckpointReader::find(MPI_Comm world, const fs::path& directory,
                                                       const std::string& resume, Log& log) {
  if (resume == "none") return std::nullopt;
  if (resume == "auto") return newest_good(world, directory, resume_key, log);
  if (resume.empty())
    fail(ExitCode::deck_error, {.what = "checkpoint%resume is empty",
                                .expected = "'auto', 'none', or the path of a checkpoint",
                                .change = "leave the key out for 'auto'"});
  return at(world, resume, resume_key, log);
}

CheckpointReader CheckpointReader::at(MPI_Comm world, const fs::path& given, const std::string& key, Log& log) {
  fs::path path = given;
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  if (path.filename() == checkpoint_file_name) path = path.parent_path();
  const fs::path collection = collection_at(world, path, key);
  std::optional<CheckpointReader> found;
  if (collection.empty())
    found.emplace(open_named(world, path, key));
  else if (auto newest = newest_good(world, collection, key, log))
    found.emplace(std::move(*newest));
  if (!found) {
    fail(ExitCode::data_error, {.what = "there is no checkpoint in the folder",
                                .expected = "a folder step_XXXXXXXX with a manifest",
                                .found = "none",
                                .where = whole_path(collection),
                                .change = "give another folder with " + key});
  }
  found->key_ = key;
  return std::move(*found);
}

std::int64_t CheckpointReader::newest_listed(MPI_Comm world, const fs::path& directory) {
  for (const auto& [step, folder] : broadcast_folders(world, directory).steps) {
    const std::string there =
        comm::text_of_root(world, [&folder = folder] { return std::string(absence_of(folder) ? "" : "yes"); });
    if (!there.empty()) return step;
  }
  return -1;
}

CheckpointReader CheckpointReader::open(MPI_Comm world, const fs::path& folder) {
  CheckpointReader reader(world, folder);
  try {
    const Manifest manifest = verify_folder(world, folder);
    reader.manifest_hash_ = manifest.hash;
    require_same_file(world, reader.file_name_, ExitCode::system_error, 10.0, comm::leads_host());
    collectively(world, [&] {
      reader.store_ = std::make_unique<VerifiedFile>(reader.file_name_, manifest);
      reader.file_ = hdf5::open_through(*reader.store_);
      reader.read_info();
    });
    if (reader.info_.state.step != manifest.step)
      fail(ExitCode::data_error, {.what = fmt::format("the manifest is of step {}, the file of step {}", manifest.step,
                                                      reader.info_.state.step)});
  } catch (const Error& error) {
    throw Error(error.exit_code(),
                format({.what = fmt::format("checkpoint {} is refused: {}", folder.string(), reason(error))}));
  }
  return reader;
}

CheckpointReader CheckpointReader::over(MPI_Comm world, const fs::path& folder,
                                        std::unique_ptr<hdf5::ByteStore> metadata,
                                        std::unique_ptr<TensorSource> image) {
  CheckpointReader reader(world, folder);
  collectively(world, [&] {
    reader.store_ = std::move(metadata);
    reader.image_ = std::move(image);
    reader.file_name_ = reader.store_->name();
    reader.file_ = hdf5::open_through(*reader.store_);
    reader.read_info();
  });
  return reader;
}

void CheckpointReader::read_info() {
  const auto format = hdf5::read_string(file_.id(), "format", file_name_);
  if (format != checkpoint_format)
    damaged("this HDF5 file is not a checkpoint", checkpoint_format, format.value_or("nothing"), file_name_);
  const auto version = hdf5::read_integer(file_.id(), "version", file_name_);
  if (version != checkpoint_version)
    damaged("the checkpoint has another format version", fmt::format("{}", checkpoint_version),
            version ? fmt::format("{}", *version) : "nothing", file_name_, other_version);
  info_.bits = hdf5::read_string(file_.id(), "bits", file_name_).value_or("");
  const hdf5::Group parameters = hdf5::open_group(file_.id(), "parameters", file_name_);
  info_.model = read_model(parameters.id(), file_name_);
  const hdf5::Group state = hdf5::open_group(file_.id(), "state", file_name_);
  info_.state = read_state(state.id(), file_name_);
  info_.tokenizer = read_tokenizer(file_.id(), file_name_);
  info_.data = read_data(file_.id(), file_name_);
  info_.deck = read_text(file_.id(), "deck", file_name_);
  if (hdf5::exists(file_.id(), "adapters")) info_.adapters = read_text(file_.id(), "adapters", file_name_);
  if (hdf5::exists(file_.id(), "hugging_face")) info_.hugging_face = read_text(file_.id(), "hugging_face", file_name_);
  info_.has_optimizer = hdf5::exists(file_.id(), "optimizer");
  if (info_.has_optimizer) {
    const hdf5::Group optimizer = hdf5::open_group(file_.id(), "optimizer", file_name_);
    info_.optimizer = required_string(optimizer.id(), "name", file_name_);
  }
  if (hdf5::exists(file_.id(), "compression")) {
    const hdf5::Group compression = hdf5::open_group(file_.id(), "compression", file_name_);
    info_.compression_layout = required_string(compression.id(), "layout", file_name_);
  }
  const std::string name = any_parameter(file_);
  const hdf5::Dataset weight = hdf5::open_dataset(file_.id(), name, file_name_);
  info_.master = real_bytes(weight, name, file_name_) == 8 ? ScalarType::fp64 : ScalarType::fp32;
}

void CheckpointReader::require_model(const deck::ModelConfig& wanted) const {
  const std::string differences = model_differences(wanted, info_.model);
  if (differences.empty()) return;
  fail(ExitCode::deck_error, {.what = "the checkpoint is of a different model",
                              .found = differences,
                              .where = folder_.string(),
                              .change = "correct &model, or give another one with " + key_});
}

std::string CheckpointReader::path_of(const StateGroup& group) const {
  const std::string path = "optimizer/" + group.name;
  const bool is_there = info_.has_optimizer && hdf5::exists(file_.id(), path.c_str());
  return (group.or_parameters && !is_there ? "parameters" : path) + "/";
}

bool CheckpointReader::has_types_of(std::span<const StateGroup> moments, ScalarType master) const {
  if (!image_) return true;
  const auto is_of_type = [&](const StateGroup& group) {
    const std::string path = path_of(group) + dataset_of(group.tensors.front());
    const hdf5::Dataset dataset = hdf5::open_dataset(file_.id(), path, file_name_);
    return H5Tequal(hdf5::Datatype(H5Dget_type(dataset.id())).id(), native_type(group.type)) > 0;
  };
  return info_.master == master && std::ranges::all_of(moments, is_of_type);
}

void CheckpointReader::read(std::span<const StateTensor> parameters, std::span<const StateGroup> moments,
                            ScalarType master) {
  std::vector<Slab> slabs;
  collectively(world_, [&] {
    open_group("parameters/", parameters, master, slabs);
    for (const StateGroup& group : moments) {
      if (info_.has_optimizer || group.or_parameters) open_group(path_of(group), group.tensors, group.type, slabs);
    }
  });
  read_tensors(slabs);
}

void CheckpointReader::read_compression(std::span<const StateTensor> tensors, ScalarType master) {
  std::vector<Slab> slabs;
  collectively(world_, [&] { open_group("compression/", tensors, master, slabs); });
  read_tensors(slabs);
}

void CheckpointReader::read_tensors(std::span<const Slab> slabs) {
  if (!image_) return read_slabs(world_, slabs);
  std::vector<PlacedTensor> placed;
  collectively(world_, [&] {
    for (const Slab& slab : slabs) placed.push_back({slab.tensor, slab.type, offset_of(slab, image_->bytes())});
  });
  image_->read(placed);
}

void CheckpointReader::open_group(const std::string& group, std::span<const StateTensor> tensors, ScalarType type,
                                  std::vector<Slab>& slabs) const {
  std::unordered_map<std::string, std::shared_ptr<const hdf5::Dataset>> opened;
  for (const StateTensor& tensor : tensors) {
    const std::string path = group + dataset_of(tensor);
    std::shared_ptr<const hdf5::Dataset>& dataset = opened[path];
    if (!dataset) dataset = open_tensor(path, dataset_shape(tensor));
    slabs.push_back({dataset, &tensor, type, fmt::format("{}: {}", file_name_, group + tensor.name)});
  }
}

std::shared_ptr<const hdf5::Dataset> CheckpointReader::open_tensor(const std::string& path,
                                                                   const std::vector<index_t>& expected) const {
  auto dataset = std::make_shared<const hdf5::Dataset>(hdf5::open_dataset(file_.id(), path, file_name_));
  const std::vector<index_t> shape = hdf5::checked_shape(*dataset, path, file_name_);
  if (shape != expected)
    damaged(fmt::format("the dataset '{}' has the wrong shape", path), fmt::format("({})", fmt::join(expected, ", ")),
            fmt::format("({})", fmt::join(shape, ", ")), file_name_,
            "resume with the &model the checkpoint was written with");
  real_bytes(*dataset, path, file_name_);
  return dataset;
}

}  // namespace nanotron::io
