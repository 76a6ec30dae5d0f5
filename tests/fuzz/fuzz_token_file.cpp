// A token file: all that training and generation read of it, compared with its hashes, and with the hashes ignored, as
// if they had been made for these bytes.
#include <vector>

#include "fuzz.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/data/order/documents.hpp"
#include "nanotron/data/tokens/token_file.hpp"

namespace {

using namespace nanotron;
using data::TokenFile;

constexpr index_t max_tokens = index_t{1} << 18;  // of a file that is packed well: its beginning and its end

void read_arrays(const TokenFile& file) {
  for (const data::StoredArray* const array : file.arrays()) {
    const index_t count = std::min(array->size(), max_tokens);
    const auto ignore = [](const data::StoredArray::Values&, index_t) {};
    if (count == 0) continue;
    array->for_each_piece(0, count, ignore);
    array->for_each_piece(array->size() - count, count, ignore);
  }
}

void read_tokens(const TokenFile& file) {
  const index_t count = std::min(file.size(), index_t{300});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count)), next(ids);
  file.read_unchecked(file.size() - count, count, ids.data());
  if (file.has_vocabulary()) {
    const std::string text = file.decode(ids).substr(0, 64);
    fuzz::ends_well({ExitCode::data_error}, [&] { file.encode(text); });
    file.is_ambiguous(text);
  }
  fuzz::ends_well({ExitCode::data_error}, [&] { file.read(0, count, ids.data()); });
  if (count > 1)
    fuzz::ends_well({ExitCode::data_error}, [&] { file.read_with_next(0, count - 1, ids.data(), next.data()); });
  file.change_since(file.status());
}

void load_batches(const TokenFile& file, deck::SequenceKind sequences, deck::DocumentMask mask) {
  deck::DataConfig data;
  data.sequence_length = 8;
  data.micro_batch_size = data.global_batch_size = 2;
  data.sequences = sequences;
  data.document_mask = mask;
  data.validation_fraction = 0.25;
  for (const auto split : {data::Split::training, data::Split::validation}) {
    fuzz::ends_well({ExitCode::data_error}, [&] {
      data::BatchLoader loader(data, 1, file, split, 0, 1);
      std::vector<std::int32_t> inputs(16), targets(16), starts(16);
      for (index_t sample = 0; sample < 8; sample += 2) {
        loader.load(sample, 0, inputs.data(), targets.data());
        loader.load_documents(sample, starts);
      }
    });
  }
}

void read_all(const std::filesystem::path& path, TokenFile::Hashes hashes) {
  TokenFile file(path, hashes);
  read_arrays(file);
  read_tokens(file);
  if (file.number_of_documents() <= max_tokens) {
    load_batches(file, deck::SequenceKind::stream, deck::DocumentMask::none);
    load_batches(file, deck::SequenceKind::stream, deck::DocumentMask::block_diagonal);
    if (file.size() <= max_tokens)
      load_batches(file, deck::SequenceKind::documents, deck::DocumentMask::block_diagonal);
  }
  file.require_vocab_size(50);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto path = fuzz::write(folder / "tokens.h5", {reinterpret_cast<const char*>(data), size});
  for (const auto hashes : {TokenFile::Hashes::compared, TokenFile::Hashes::ignored})
    fuzz::ends_well({ExitCode::data_error}, [&] { read_all(path, hashes); });
  return 0;
}
