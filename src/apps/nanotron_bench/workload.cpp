#include "workload.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "nanotron/base/files.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/files/byte_store.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/trainer/start/deck_features.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr std::int64_t batches = 4;  // global batches in the file

struct FileSize {
  std::int64_t tokens = 0;
  std::int64_t vocabulary = 0;
};

// model%vocab_size; if the deck leaves it open, the vocab_size of the deck's token file.
std::int64_t vocabulary_of(const deck::Config& config) {
  if (config.model.vocab_size > 0) return config.model.vocab_size;
  for (const deck::NamedFile& file : deck::named_files(config.data.path)) {
    if (!files::exists(file.path)) continue;
    const std::int64_t vocabulary = data::TokenFile(file.path).vocab_size();
    if (vocabulary > 0) return vocabulary;
  }
  fail(ExitCode::deck_error, {.what = "vocabulary size unknown",
                              .expected = "model%vocab_size in the deck, or its token file",
                              .where = deck::files_text(config.data.path),
                              .change = "--set model.vocab_size=8192"});
}

void write_tokens(const std::filesystem::path& path, const FileSize& size) {
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(size.tokens));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double u = uniform(1, stream_id("bench"), i);
    tokens[i] = static_cast<std::uint32_t>(std::min<std::int64_t>(
        static_cast<std::int64_t>(u * static_cast<double>(size.vocabulary)), size.vocabulary - 1));
  }
  constexpr ExitCode code = ExitCode::system_error;
  const std::string doing = "writing " + path.string();
  const auto store = std::make_shared<hdf5::FileStore>(path, hdf5::Access::create);
  hdf5::File file = hdf5::open_through(store, hdf5::Access::create);
  const hsize_t extent = tokens.size();
  {
    const hdf5::Dataspace space(hdf5::check(H5Screate_simple(1, &extent, nullptr), code, doing));
    const hdf5::Dataset dataset(
        hdf5::check(H5Dcreate2(file.id(), "tokens", H5T_STD_U32LE, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                    code, doing));
    hdf5::check(H5Dwrite(dataset.id(), H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data()), code, doing);
    hdf5::write_integer(file.id(), "vocab_size", size.vocabulary);
  }
  file.close(code, doing);
  store->close();
  data::add_hashes(path);  // as the tools write
}

FileSize size_from_root(const Options& options, const comm::Communicator& world) {
  FileSize size;
  comm::collectively(world.get(), [&] {
    if (world.rank() != 0) return;
    const deck::Config config = trainer::read_deck(options.deck, options.overrides);
    size = {batches * config.data.global_batch_size * config.data.sequence_length + 1, vocabulary_of(config)};
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(&size, 2, MPI_INT64_T, 0, world.get()));
  return size;
}

}  // namespace

Workload::Workload(const Options& options, const comm::Communicator& world)
    : folder_{world.split_by_node().rank() == 0, {}} {
  const FileSize size = size_from_root(options, world);
  folder_.path = comm::text_of_root(world.get(), [] {
    const auto name = fmt::format("nanotron_bench_{}", getpid());
    return (std::filesystem::temp_directory_path() / name).string();
  });
  const std::string tokens = (folder_.path / "tokens.h5").string();
  comm::collectively(world.get(), [&] {
    if (!folder_.owned) return;
    std::filesystem::create_directories(folder_.path);
    write_tokens(tokens, size);
  });
  std::vector<std::string> overrides = options.overrides;
  for (const std::string& set : {"data.path=" + tokens, std::string("data.weights=''"), std::string("data.stages=''"),
                                 std::string("data.rampup_batch_size=0"), std::string("data.rampup_increment=0"),
                                 std::string("data.rampup_samples=0"), std::string("data.validation_path=''"),
                                 std::string("data.validation_fraction=0"), std::string("data.validation_every=0"),
                                 fmt::format("model.vocab_size={}", size.vocabulary),
                                 "run.output_dir=" + folder_.path.string(), std::string("checkpoint.resume=none")}) {
    overrides.push_back(set);
  }
  config_ = trainer::load_config(world.get(), options.deck, overrides, trainer::GridRanks::of_world);
}

Workload::Folder::~Folder() {
  std::error_code ignored;
  if (owned && !path.empty()) std::filesystem::remove_all(path, ignored);
}

}  // namespace nanotron::apps::bench
