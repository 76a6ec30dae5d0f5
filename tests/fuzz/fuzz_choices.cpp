// A file of multiple-choice questions: opened, packed into sequences both ways, and read.
#include <vector>

#include "fuzz.hpp"
#include "nanotron/data/choices/choice_file.hpp"
#include "nanotron/data/choices/choice_sequences.hpp"

namespace {

using namespace nanotron;

void read_all(const std::filesystem::path& path) {
  const data::ChoiceFile file(path);
  file.hash_of_tables();
  for (const auto packing : {data::ChoicePacking::one, data::ChoicePacking::several}) {
    const data::ChoiceSequences sequences(file, 16, packing);
    std::vector<std::int32_t> inputs(16), targets(16), starts(16);
    index_t scored = 0, expected = 0;
    for (index_t i = 0; i < sequences.count(); ++i) {
      sequences.read(i, {0, 16}, inputs.data(), targets.data());
      sequences.document_starts(i, starts);
      scored += sequences.targets(i);
    }
    for (const data::Choice& choice : file.choices()) expected += choice.scored;
    fuzz::require(scored == expected, "not every token of a choice is a target once");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto path = fuzz::write(folder / "choices.h5", {reinterpret_cast<const char*>(data), size});
  fuzz::ends_well({ExitCode::data_error}, [&] { read_all(path); });
  return 0;
}
