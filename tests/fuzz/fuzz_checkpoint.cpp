// checkpoint.h5, read to its last tensor: beside the manifest of other bytes, which refuses it before HDF5 sees it, and
// beside one that was made for these.
#include <xxhash.h>

#include "fuzz.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "tiny_checkpoint.hpp"

namespace {

using namespace nanotron;

void read_all(const std::filesystem::path& folder) {
  auto reader = io::CheckpointReader::open(fuzz::session(), folder);
  deck::changes_since(reader.info().deck, deck::Config());
  reader.require_model(fuzz::TinyState::model());
  fuzz::TinyState state;
  reader.read(state.parameters(), state.moments(), ScalarType::fp32);
  if (reader.info().compression_layout == "dp 1") reader.read_compression(state.compression(), ScalarType::fp32);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder scratch;
  static const fuzz::TinyCheckpoint whole(scratch.path(), true);
  static const auto folder = scratch / "step_00000005";
  std::filesystem::create_directories(folder);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  fuzz::write(folder / io::checkpoint_file_name, bytes);

  fuzz::write(folder / io::manifest_file_name, whole.manifest);
  const bool is_read = fuzz::ends_well({ExitCode::data_error}, [&] { read_all(folder); });
  fuzz::require(is_read == (bytes == whole.file), "bytes with other hashes are read, or those with the same refused");

  if (bytes.empty()) return 0;
  const io::Manifest manifest{.step = 5, .bytes = std::ssize(bytes), .blocks = {XXH3_64bits(data, size)}};
  fuzz::write(folder / io::manifest_file_name, to_json(manifest));
  fuzz::ends_well({ExitCode::data_error, ExitCode::deck_error}, [&] { read_all(folder); });
  return 0;
}
