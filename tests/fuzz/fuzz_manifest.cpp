// manifest.json: parsed, and what is written of it is parsed as the same.
#include "fuzz.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nanotron;
  io::Manifest manifest;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!fuzz::ends_well({ExitCode::data_error}, [&] { manifest = io::parse_manifest(text); })) return 0;
  const std::string written = io::to_json(manifest);
  const io::Manifest again = io::parse_manifest(written);
  fuzz::require(again.step == manifest.step && again.bytes == manifest.bytes &&
                    again.block_bytes == manifest.block_bytes && again.blocks == manifest.blocks,
                "another manifest is read than was written");
  fuzz::require(io::to_json(again) == written, "another manifest is written than was read");
  return 0;
}
