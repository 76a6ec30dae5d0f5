// The table of a copy on another host (checkpoint%neighbour_every_steps): as it is, and with the hash that fits. What
// it says of the blocks is compared with a file, and its metadata read as those of a checkpoint.
#include <xxhash.h>

#include "fuzz.hpp"
#include "io/copies/copy_folder.hpp"
#include "io/copies/distributed_image.hpp"
#include "tiny_checkpoint.hpp"

namespace {

using namespace nanotron;

void restore(const std::string& bytes, const std::filesystem::path& blocks) {
  const io::CopyTable table = io::parse_copy_table(bytes);
  fuzz::require(io::to_bytes(table) == bytes, "another table is written than was read");
  io::verify_copy(blocks, table);
  auto image = std::make_unique<io::FileImage>("copies");
  io::unpack_extents(table.metadata, *image);
  image->resize(table.file.bytes);
  std::vector<io::StoredCopy> held{{table, blocks}};
  auto distributed = std::make_unique<io::DistributedImage>(fuzz::session(), table.file, std::move(held));
  auto reader = io::CheckpointReader::over(fuzz::session(), "copies", std::move(image), std::move(distributed));
  fuzz::TinyState state;
  if (reader.has_types_of(state.moments(), ScalarType::fp32))
    reader.read(state.parameters(), state.moments(), ScalarType::fp32);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  static const auto blocks = [&] {
    const fuzz::TinyCopy copy(folder.path());
    return fuzz::write(folder / "blocks", copy.blocks);
  }();
  std::string bytes(reinterpret_cast<const char*>(data), size);
  fuzz::ends_well({ExitCode::data_error}, [&] { restore(bytes, blocks); });
  if (size < sizeof(std::uint64_t)) return 0;
  const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size() - sizeof hash);
  bytes.replace(bytes.size() - sizeof hash, sizeof hash, reinterpret_cast<const char*>(&hash), sizeof hash);
  fuzz::ends_well({ExitCode::data_error}, [&] { restore(bytes, blocks); });
  return 0;
}
