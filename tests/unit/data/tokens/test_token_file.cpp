// ranks: 1
#include "nanotron/data/tokens/token_file.hpp"
#include "support/test_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "nanotron/base/timer.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

#ifdef __SANITIZE_ADDRESS__
// A flipped size makes HDF5 ask for terabytes; it copes with malloc saying no, and so must the
// sanitizer.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace nanotron::data {
namespace {

using test::expect_error;
using test::new_file;
using test::put;
using test::Scratch;

std::vector<std::int32_t> read_all(const TokenFile& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.size()));
  file.read(0, file.size(), tokens.data());
  return tokens;
}

void expect_sample_tokens(const TokenFile& file, std::uint32_t vocab_size) {
  const auto expected = test::sample_tokens(static_cast<std::size_t>(file.size()), vocab_size);
  const auto tokens = read_all(file);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(tokens[i], static_cast<std::int32_t>(expected[i])) << i;
  std::int32_t middle[3];
  file.read(5, 3, middle);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(middle[i], static_cast<std::int32_t>(expected[5 + i]));
}

TEST(TokenFile, ReadsEveryStorageAndType) {
  const Scratch scratch(test::world());
  hdf5::PropertyList packed(H5Pcreate(H5P_DATASET_CREATE)), compact(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t chunk = 100;
  H5Pset_chunk(packed.id(), 1, &chunk);
  H5Pset_shuffle(packed.id());
  H5Pset_deflate(packed.id(), 4);
  H5Pset_layout(compact.id(), H5D_COMPACT);
  for (const hid_t type : {H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U16BE, H5T_STD_U32BE})
    for (const hid_t creation : {hid_t{H5P_DEFAULT}, packed.id(), compact.id()}) {
      test::make_token_file(scratch / "tokens.h5", 1234, 60000, type, creation);
      const TokenFile file(scratch / "tokens.h5");
      EXPECT_EQ(file.size(), 1234);
      EXPECT_EQ(file.vocab_size(), 60000);
      EXPECT_FALSE(file.eos_token_id().has_value());
      expect_sample_tokens(file, 60000);
    }
}

hdf5::PropertyList packed_chunks(hsize_t values) {
  hdf5::PropertyList packed(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_chunk(packed.id(), 1, &values);
  H5Pset_deflate(packed.id(), 1);
  return packed;
}

TEST(TokenFile, PackedChunksThatFitIntoMemoryAreUnpackedOnce) {
  const Scratch scratch(test::world());
  constexpr index_t chunk = 1 << 21, chunks = 4;
  test::make_token_file(scratch / "tokens.h5", chunks * chunk, 60000, H5T_STD_U16LE, packed_chunks(chunk).id());
  const TokenFile file(scratch / "tokens.h5");
  const auto seconds_of = [&](int reads) {
    const double begin = wall_seconds();
    std::int32_t token = 0;
    for (int i = 0; i < reads; ++i) file.read(i % chunks * chunk + i, 1, &token);
    return wall_seconds() - begin;
  };
  const double unpacking = seconds_of(chunks);
  EXPECT_LT(seconds_of(50 * chunks), 10 * unpacking);
  EXPECT_EQ(file.arrays()[0]->unpacked_again(), 0);
}

TEST(TokenFile, PackedChunksOfAnySizeAreRefusedOrTold) {
  const Scratch scratch(test::world());
  constexpr index_t too_large = 17 << 20;
  test::make_token_file(scratch / "tokens.h5", too_large, 3, H5T_STD_U32LE, packed_chunks(too_large).id());
  test::expect_error(ExitCode::data_error, "h5repack -f NONE -l CONTI", [&] { TokenFile(scratch / "tokens.h5"); });
  constexpr index_t chunk = 10 << 20;
  test::make_token_file(scratch / "large.h5", 4 * chunk, 3, H5T_STD_U16LE, packed_chunks(chunk).id());
  const TokenFile large(scratch / "large.h5");
  EXPECT_EQ(large.arrays()[0]->unpacked_again(), 2 * chunk);
  std::int32_t token = 0;
  large.read(3 * chunk + 2, 1, &token);
  EXPECT_EQ(token, ((3 * chunk + 2) * (3 * chunk + 9)) % 3);
}

TEST(TokenFile, AttributesAndVocabulary) {
  const Scratch scratch(test::world());
  {
    const hdf5::File file = new_file(scratch / "tokens.h5");
    put<std::uint16_t>(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, {0, 1, 2, 3}, {4});
    put<std::uint64_t>(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, {0, 2}, {2});
    const hdf5::Group vocabulary(H5Gcreate2(file.id(), "vocabulary", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    put<char>(vocabulary.id(), "bytes", H5T_STD_U8LE, H5T_NATIVE_CHAR, {'a', 'b', 'a', 'b', 'c'}, {5});
    put<std::uint64_t>(vocabulary.id(), "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, {0, 1, 2, 5, 5}, {5});
    hdf5::write_integer(file.id(), "eos_token_id", 3);
    hdf5::write_string(file.id(), "tokenizer", "toy");
    hdf5::write_real(file.id(), "unigram_entropy", 1.25);
  }
  const TokenFile file(scratch / "tokens.h5");
  EXPECT_EQ(file.vocab_size(), 4);
  EXPECT_EQ(file.eos_token_id(), 3);
  EXPECT_EQ(file.tokenizer().name, "toy");
  EXPECT_EQ(file.unigram_entropy(), 1.25);
  EXPECT_EQ(file.number_of_documents(), 2);
  EXPECT_EQ(file.decode(std::vector<std::int32_t>{2, 0, 3, 9, -1}), "abca<9><-1>");
  EXPECT_EQ(file.encode("aabcb"), (std::vector<std::int32_t>{0, 2, 1}));
  EXPECT_FALSE(file.is_ambiguous("aabcb"));
  EXPECT_EQ(file.tokenizer().vocabulary.size(), 32u);
  expect_error(ExitCode::data_error, "vocabulary", [&] { file.encode("x"); });
}

// Another token may begin with that byte.
TEST(TokenFile, TellsWhereNoTokenMatches) {
  const Scratch scratch(test::world());
  {
    const hdf5::File file = new_file(scratch / "tokens.h5");
    put<std::uint16_t>(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, {0}, {1});
    put<std::uint64_t>(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, {0}, {1});
    const hdf5::Group vocabulary(H5Gcreate2(file.id(), "vocabulary", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    put<char>(vocabulary.id(), "bytes", H5T_STD_U8LE, H5T_NATIVE_CHAR, {'a', 'b'}, {2});
    put<std::uint64_t>(vocabulary.id(), "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, {0, 2}, {2});
  }
  const TokenFile file(scratch / "tokens.h5");
  expect_error(ExitCode::data_error, "no token matches at byte 0 of the text", [&] { file.encode("ac"); });
  expect_error(ExitCode::data_error, "no token matches at byte 4 of the text", [&] { file.encode("ababac"); });
}

TEST(TokenFile, ReadsTheFilesOfTheTools) {
  const TokenFile file(test::test_folder() / "golden/llama/tokens.h5");
  EXPECT_EQ(file.size(), 2561);
  EXPECT_EQ(file.vocab_size(), 131);
  EXPECT_NO_THROW(read_all(file));
}

TEST(TokenFile, RefusesIdsOutsideOfTheVocabulary) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 50, 40);
  {
    const hdf5::File file(H5Fopen((scratch / "tokens.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    H5Adelete(file.id(), "vocab_size");
    hdf5::write_integer(file.id(), "vocab_size", 30);
  }
  TokenFile file(scratch / "tokens.h5");
  expect_error(ExitCode::data_error, "at position 3 of /tokens", [&] { read_all(file); });
  expect_error(ExitCode::data_error, "model%vocab_size", [&] { file.require_vocab_size(20); });
  file.require_vocab_size(40);
  EXPECT_NO_THROW(read_all(file));
  std::int32_t out[4];
  expect_error(ExitCode::data_error, "outside of the file", [&] { file.read(48, 3, out); });
  expect_error(ExitCode::data_error, "outside of the file", [&] { file.read(-1, 2, out); });
}

/// Writes a file with `fill` and expects it to be refused with these words.
void expect_refused(const std::string& words, const std::function<void(hid_t)>& fill) {
  const Scratch scratch(test::world());
  {
    const hdf5::File file = new_file(scratch / "tokens.h5");
    fill(file.id());
  }
  expect_error(ExitCode::data_error, words, [&] { TokenFile(scratch / "tokens.h5"); });
  expect_error(ExitCode::data_error, "tokens.h5", [&] { TokenFile(scratch / "tokens.h5"); });
}

TEST(TokenFile, RefusesWrongContents) {
  const std::vector<std::uint16_t> six{0, 1, 2, 3, 4, 5};
  const auto tokens = [&](hid_t file) { put(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, six, {6}); };
  expect_refused("missing", [](hid_t) {});
  expect_refused("2 dimensions", [&](hid_t file) {
    put(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, six, {2, 3});
  });
  for (const hid_t type : {H5T_STD_I32LE, H5T_STD_U8LE, H5T_STD_U64LE, H5T_IEEE_F32LE})
    expect_refused("uint16 or uint32", [&](hid_t file) { put(file, "tokens", type, H5T_NATIVE_UINT16, six, {6}); });
  expect_refused("empty",
                 [&](hid_t file) { put<std::uint16_t>(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, {}, {0}); });
  for (const auto& [type, found] :
       {std::pair{H5T_STD_I64LE, "signed integers of 8 bytes"}, std::pair{H5T_IEEE_F64LE, "real numbers of 8 bytes"},
        std::pair{H5T_C_S1, "strings of 1 bytes"}})
    expect_refused(found, [&, type = type](hid_t file) {
      tokens(file);
      put<std::uint16_t>(file, "documents", type, H5T_NATIVE_UINT16, {}, {2});
    });
  expect_refused("vocab_size", [&](hid_t file) {
    tokens(file);
    hdf5::write_integer(file, "vocab_size", -5);
  });
  expect_refused("vocab_size", [&](hid_t file) {
    tokens(file);
    hdf5::write_string(file, "vocab_size", "many");
  });
  expect_refused("eos_token_id", [&](hid_t file) {
    tokens(file);
    hdf5::write_integer(file, "vocab_size", 6);
    hdf5::write_integer(file, "eos_token_id", 6);
  });
  expect_refused("vocabulary is damaged", [&](hid_t file) {
    tokens(file);
    const hdf5::Group group(H5Gcreate2(file, "vocabulary", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    put<char>(group.id(), "bytes", H5T_STD_U8LE, H5T_NATIVE_CHAR, {'a', 'b'}, {2});
    put<std::uint64_t>(group.id(), "offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, {0, 9, 2}, {3});
  });
}

TEST(TokenFile, RefusesWhatLiesElsewhere) {
  const std::vector<std::uint16_t> two{0, 1};
  expect_refused("is a link", [](hid_t file) {
    H5Lcreate_external("other.h5", "/tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refused("is a link", [&](hid_t file) {
    put(file, "real", H5T_STD_U16LE, H5T_NATIVE_UINT16, two, {2});
    H5Lcreate_soft("/real", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refused("external files", [&](hid_t file) {
    const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_external(creation.id(), "/dev/null", 0, 4);
    put<std::uint16_t>(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, {}, {2}, creation.id());
  });
  expect_refused("virtual", [&](hid_t file) {
    const hsize_t length = 2;
    const hdf5::Dataspace space(H5Screate_simple(1, &length, nullptr));
    const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_virtual(creation.id(), space.id(), "other.h5", "/tokens", space.id());
    put<std::uint16_t>(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, {}, {2}, creation.id());
  });
}

TEST(TokenFile, RefusesFilesThatAreCutOrNoHdf5) {
  const Scratch scratch(test::world());
  expect_error(ExitCode::data_error, "tokenize", [&] { TokenFile(scratch / "none.h5"); });
  expect_error(ExitCode::data_error, "a directory", [&] { TokenFile(scratch.path()); });
  expect_error(ExitCode::data_error, "not a regular file", [&] { TokenFile("/dev/null"); });
  test::make_token_file(scratch / "tokens.h5", 5000, 100);
  const auto whole = test::read_bytes(scratch / "tokens.h5");
  for (std::size_t cut = 0; cut < whole.size(); cut += 97) {
    test::write_bytes(scratch / "cut.h5", {whole.begin(), whole.begin() + std::ptrdiff_t(cut)});
    expect_error(ExitCode::data_error, "cut.h5", [&] { TokenFile(scratch / "cut.h5"); });
  }
  expect_error(ExitCode::data_error, "truncated or damaged", [&] { TokenFile(scratch / "cut.h5"); });
}

// A directory instead of the file's descriptor: no read succeeds.
TEST(TokenFile, WhatTheSystemCannotReadIsNeitherAbsentNorDamaged) {
  const Scratch scratch(test::world());
  hdf5::PropertyList chunked(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t chunk = 100;
  H5Pset_chunk(chunked.id(), 1, &chunk);
  test::make_token_file(scratch / "tokens.h5", 1000, 100, H5T_STD_U16LE, chunked.id());
  const auto broken = [&] {
    const int directory = ::open(scratch.path().c_str(), O_RDONLY | O_DIRECTORY);
    for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(open.path(), gone) != scratch / "tokens.h5") continue;
      const int descriptor = std::stoi(open.path().filename().string());
      ASSERT_EQ(::dup2(directory, descriptor), descriptor);
    }
    ::close(directory);
  };
  {
    const hdf5::File file = hdf5::open_read_only(scratch / "tokens.h5");
    broken();
    expect_error(ExitCode::system_error, "tokens.h5 cannot be read", [&] { hdf5::exists(file.id(), "loss_mask"); });
  }
  const hdf5::File file = hdf5::open_read_only(scratch / "tokens.h5");
  const hdf5::Dataset tokens = hdf5::open_dataset(file.id(), "tokens", "tokens.h5");
  broken();
  std::vector<std::uint16_t> out(1000);
  expect_error(ExitCode::system_error, "Is a directory", [&] {
    hdf5::check(H5Dread(tokens.id(), H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()),
                ExitCode::data_error, "reading tokens");
  });
  expect_error(ExitCode::data_error, "No such file", [&] { hdf5::open_read_only(scratch / "none.h5"); });
  expect_error(ExitCode::data_error, "too long", [&] { TokenFile(scratch / std::string(300, 'x')); });
}

TEST(TokenFile, SaysWhatIsThereInPlaceOfHdf5) {
  const Scratch scratch(test::world());
  const auto refused = [&](const char* name, const std::string& bytes, const std::string& found) {
    test::write_bytes(scratch / name, {bytes.begin(), bytes.end()});
    expect_error(ExitCode::data_error, found, [&] { TokenFile(scratch / name); });
    expect_error(ExitCode::data_error, "nanotron_tokenize.py", [&] { TokenFile(scratch / name); });
  };
  refused("empty.h5", "", "an empty file");
  refused("story.txt", "Once upon a time\nthere was \xC3\xA9", "a text file that begins with \"Once upon a time\"");
  refused("story.txt", "Once upon a time", "nanotron_tokenize.py " + (scratch / "story.txt").string());
  const std::string ids{"\x01\x00\x05\x00\xFF\x10", 6};
  refused("train.bin", ids, "bare numbers (.bin), as nanoGPT");
  refused("train.bin", ids, "doc/data.md");
  refused("text_document.idx", std::string("MMIDIDX\0\0\1", 10), "the index (.idx) of a Megatron-LM data set");
  refused("text_document.bin", ids, "the data (.bin) of a Megatron-LM data set");
  refused("a.parquet", std::string("PAR1\0", 5), "a Parquet file");
  refused("a.dat", ids, "a binary file of another format");
  // dev/data/data_common.py of llm.c: the magic, version 1 or 7, the number of tokens, in int32.
  refused("gpt2.bin", std::string("\x88\xD8\x34\x01\x01\0\0\0\x10\0\0\0", 12), "of llm.c (GPT-2's tokenizer)");
  refused("llama3.bin", std::string("\xA1\xD9\x34\x01\x07\0\0\0\x10\0\0\0", 12), "of llm.c (Llama 3's tokenizer)");
  test::write_bytes(scratch / "lfs.h5", [] {
    const std::string pointer = "version https://git-lfs.github.com/spec/v1\n";
    return std::vector<char>(pointer.begin(), pointer.end());
  }());
  expect_error(ExitCode::data_error, "Git LFS", [&] { TokenFile(scratch / "lfs.h5"); });
}

TEST(TokenFile, SurvivesFlippedBytes) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 500, 100);
  const auto whole = test::read_bytes(scratch / "tokens.h5");
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    auto bytes = whole;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    test::write_bytes(scratch / "flipped.h5", bytes);
    try {
      read_all(TokenFile(scratch / "flipped.h5"));
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data_error) << error.what();
    }
  }
}

}  // namespace
}  // namespace nanotron::data
