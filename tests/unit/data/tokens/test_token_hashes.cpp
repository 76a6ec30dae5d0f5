// ranks: 1
#include "nanotron/data/tokens/token_hashes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include "nanotron/data/tokens/token_file.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using test::expect_error;
using test::put;
using test::Scratch;

constexpr std::size_t tokens = 1000;
constexpr std::uint32_t vocabulary = 100;

// With documents and a loss mask, and hashes of blocks of 64.
void make_hashed(const std::filesystem::path& path, hid_t type = H5T_STD_U16LE, hid_t creation = H5P_DEFAULT) {
  test::make_token_file(path, tokens, vocabulary, type, creation);
  {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    std::vector<std::uint64_t> starts(150);
    for (std::size_t i = 0; i < starts.size(); ++i) starts[i] = 6 * i;
    put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
    std::vector<std::uint8_t> mask(tokens);
    for (std::size_t i = 0; i < tokens; ++i) mask[i] = i % 3 == 0;
    put(file.id(), "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, mask, {tokens});
    hdf5::write_string(file.id(), "tokenizer", "toy");
    hdf5::write_real(file.id(), "unigram_entropy", 1.25);
  }
  add_hashes(path, 64);
}

void flip(const std::filesystem::path& path, std::int64_t byte, int bits = 1) {
  const int file = ::open(path.c_str(), O_RDWR);
  unsigned char value = 0;
  ASSERT_EQ(::pread(file, &value, 1, byte), 1);
  value = static_cast<unsigned char>(value ^ bits);
  ASSERT_EQ(::pwrite(file, &value, 1, byte), 1);
  ::close(file);
}

std::int64_t offset_of(const std::filesystem::path& path, const char* dataset) {
  const hdf5::File file = hdf5::open_read_only(path);
  const hdf5::Dataset set = hdf5::open_dataset(file.id(), dataset, path.string());
  return static_cast<std::int64_t>(H5Dget_offset(set.id()));
}

std::vector<std::int32_t> read(const TokenFile& file, index_t first, index_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  file.read(first, count, ids.data());
  return ids;
}

TEST(TokenHashes, EveryStorageReadsAsWithout) {
  const Scratch scratch(test::world());
  hdf5::PropertyList packed(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t chunk = 100;
  H5Pset_chunk(packed.id(), 1, &chunk);
  H5Pset_deflate(packed.id(), 4);
  const auto expected = test::sample_tokens(tokens, vocabulary);
  std::optional<std::uint64_t> content;
  for (const hid_t type : {H5T_STD_U16LE, H5T_STD_U16BE}) {
    for (const hid_t creation : {hid_t{H5P_DEFAULT}, packed.id()}) {
      make_hashed(scratch / "tokens.h5", type, creation);
      const TokenFile file(scratch / "tokens.h5");
      EXPECT_EQ(file.hashes().block, 64);
      EXPECT_EQ(content.value_or(file.hashes().content), file.hashes().content) << "the content is not the storage";
      content = file.hashes().content;
      for (index_t first = 0; first < 1000; first += 37) {
        for (const index_t count : {index_t{1}, index_t{63}, index_t{64}, index_t{65}, index_t{300}}) {
          const index_t here = std::min<index_t>(count, 1000 - first);
          const auto ids = read(file, first, here);
          for (index_t i = 0; i < here; ++i)
            ASSERT_EQ(ids[static_cast<std::size_t>(i)], static_cast<std::int32_t>(expected[std::size_t(first + i)]));
          if (first + here == 1000) continue;
          std::vector<std::int32_t> inputs(ids.size()), next(ids.size());
          file.read_with_next(first, here, inputs.data(), next.data());
          ASSERT_EQ(inputs, ids);
          ASSERT_EQ(next, read(file, first + 1, here));
        }
      }
      EXPECT_EQ(file.read_documents().back(), 6u * 149u);
    }
  }
}

// The tools write the same: 100 tokens by nanotron_tokenize are checked in tests/tools; here the shapes of the format.
TEST(TokenHashes, PiecesLargerThanTheBuffer) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 300001, vocabulary, H5T_STD_U32LE);
  const auto plain = read(TokenFile(scratch / "tokens.h5"), 5, 299000);
  for (const index_t block : {smallest_hash_block, hash_block, index_t{5000}, largest_hash_block}) {
    add_hashes(scratch / "tokens.h5", block);
    EXPECT_EQ(read(TokenFile(scratch / "tokens.h5"), 5, 299000), plain) << block;
  }
}

// Each byte of the data: reads of its block fail and name it, others do not.
TEST(TokenHashes, NameTheBlockOfAFlippedByte) {
  const Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "tokens.h5";
  make_hashed(path);
  const std::int64_t begin = offset_of(path, "tokens");
  for (std::int64_t byte = 0; byte < 2 * 1000; byte += 7) {
    flip(path, begin + byte);
    const TokenFile file(path);
    const std::int64_t block = byte / 128, first = 64 * block, last = std::min<std::int64_t>(first + 64, 1000) - 1;
    const std::string words = fmt::format("damaged in block {} of /tokens (values {} to {})", block, first, last);
    expect_error(ExitCode::data_error, words, [&] { read(file, byte / 2, 1); });
    expect_error(ExitCode::data_error, path.string(), [&] { read(file, 0, 1000); });
    expect_error(ExitCode::data_error, "nanotron_verify.py", [&] { read(file, 0, 1000); });
    EXPECT_NO_THROW(read(file, 0, first));
    flip(path, begin + byte);
  }
  EXPECT_NO_THROW(read(TokenFile(path), 0, 1000));
  flip(path, offset_of(path, "documents") + 40);
  expect_error(ExitCode::data_error, "block 0 of /documents", [&] { TokenFile(path).read_documents(); });
  flip(path, offset_of(path, "documents") + 40);
  flip(path, offset_of(path, "loss_mask") + 999);
  const TokenFile file(path);
  std::vector<std::int32_t> targets(10);
  EXPECT_NO_THROW(file.loss_mask().apply(0, targets));
  expect_error(ExitCode::data_error, "block 15 of /loss_mask", [&] { file.loss_mask().apply(990, targets); });
}

TEST(TokenHashes, OfTheHashesAndTheMetadata) {
  const Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "tokens.h5";
  make_hashed(path);
  flip(path, offset_of(path, "hashes/tokens") + 17);
  expect_error(ExitCode::data_error, "the hashes of the token file are damaged", [&] { TokenFile{path}; });
  make_hashed(path);
  const auto change = [&](const std::function<void(hid_t)>& work) {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    work(file.id());
  };
  const auto refused = [&](const std::string& words, const std::function<void(hid_t)>& work) {
    make_hashed(path);
    change(work);
    expect_error(ExitCode::data_error, words, [&] { TokenFile{path}; });
  };
  refused("sizes or attributes", [](hid_t file) {
    H5Adelete(file, "vocab_size");
    hdf5::write_integer(file, "vocab_size", 101);
  });
  refused("sizes or attributes", [](hid_t file) { H5Adelete(file, "unigram_entropy"); });
  refused("sizes or attributes", [](hid_t file) { hdf5::write_string(file, "tokenizer_sha256", "ab"); });
  refused("sizes or attributes", [](hid_t file) { H5Ldelete(file, "loss_mask", H5P_DEFAULT); });
  refused("missing", [](hid_t file) { H5Ldelete(file, "hashes/documents", H5P_DEFAULT); });
  for (const hid_t type : {H5T_STD_I64LE, H5T_STD_U32LE, H5T_IEEE_F64LE}) {
    refused("/hashes/tokens has the wrong type", [type](hid_t file) {
      H5Ldelete(file, "hashes/tokens", H5P_DEFAULT);
      put(file, "hashes/tokens", type, H5T_NATIVE_UINT64, std::vector<std::uint64_t>(16, 1), {16});
    });
  }
  refused("of an unknown kind", [](hid_t file) {
    const hdf5::Group group = hdf5::open_group(file, "hashes", "");
    H5Adelete(group.id(), "algorithm");
    hdf5::write_string(group.id(), "algorithm", "md5");
  });
  refused("out of range", [](hid_t file) {
    const hdf5::Group group = hdf5::open_group(file, "hashes", "");
    H5Adelete(group.id(), "block");
    hdf5::write_integer(group.id(), "block", 0);
  });
}

TEST(TokenHashes, RefuseWhatWasNeverWritten) {
  const Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "tokens.h5";
  const auto never = [&](const std::string& words, const hdf5::PropertyList& creation, hsize_t count,
                         std::size_t written = 0) {
    {
      const hdf5::File file = test::new_file(path);
      const hdf5::Dataspace space(H5Screate_simple(1, &count, nullptr));
      const hdf5::Dataset set(
          H5Dcreate2(file.id(), "tokens", H5T_STD_U16LE, space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT));
      const hsize_t start = 0, some = written;
      const hdf5::Dataspace memory(H5Screate_simple(1, &some, nullptr));
      const std::vector<std::uint16_t> ones(written, 1);
      if (written > 0) H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, &start, nullptr, &some, nullptr);
      if (written > 0) H5Dwrite(set.id(), H5T_NATIVE_UINT16, memory.id(), space.id(), H5P_DEFAULT, ones.data());
    }
    expect_error(ExitCode::data_error, words, [&] { TokenFile{path}; });
  };
  hdf5::PropertyList late(H5Pcreate(H5P_DATASET_CREATE)), early(H5Pcreate(H5P_DATASET_CREATE)),
      chunked(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_alloc_time(early.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(early.id(), H5D_FILL_TIME_NEVER);
  const hsize_t chunk = 1000;
  H5Pset_chunk(chunked.id(), 1, &chunk);
  never("was not written completely", late, hsize_t{1} << 33);
  never("was not written completely", chunked, 10000);
  never("of 10 chunks", chunked, 10000, 4500);
  never("a hole of", early, 1 << 24, 100);
  add_hashes(path);  // zeros that are meant
  EXPECT_NO_THROW(TokenFile{path});
}

// No memory is asked for by a number that the file cannot bear out.
TEST(TokenHashes, RefuseSizesThatDoNotFit) {
  const Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "tokens.h5";
  test::make_token_file(path, 100, 40);
  {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, std::vector<std::uint64_t>(102, 1), {102});
  }
  expect_error(ExitCode::data_error, "at most 100 documents", [&] { TokenFile{path}; });
  test::make_token_file(path, 100, 40);
  {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    put<std::uint64_t>(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, {}, {hsize_t{1} << 60});
  }
  expect_error(ExitCode::data_error, "/documents was not written completely", [&] { TokenFile{path}; });
}

TEST(TokenHashes, TellWhetherTheFileChanged) {
  const Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "tokens.h5";
  make_hashed(path);
  const TokenFile file(path);
  EXPECT_EQ(file.change_since(file.status()), TokenFile::Change::none);
  std::filesystem::copy_file(path, scratch / "other.h5");
  std::filesystem::rename(scratch / "other.h5", path);
  EXPECT_EQ(file.change_since(file.status()), TokenFile::Change::replaced);
  EXPECT_NO_THROW(read(file, 0, 1000));
  const TokenFile again(path);
  flip(path, offset_of(path, "tokens") + 3);
  const auto later = std::filesystem::last_write_time(path) + std::chrono::seconds(2);
  std::filesystem::last_write_time(path, later);
  EXPECT_EQ(again.change_since(again.status()), TokenFile::Change::written);
  expect_error(ExitCode::data_error, "changed during the run", [&] { read(again, 0, 10); });
  make_hashed(scratch / "cut.h5");
  const TokenFile cut(scratch / "cut.h5");
  const std::int64_t begin = offset_of(scratch / "cut.h5", "tokens");
  std::filesystem::resize_file(scratch / "cut.h5", static_cast<std::uintmax_t>(begin) + 500);
  expect_error(ExitCode::data_error, "changed during the run", [&] { read(cut, 0, 1000); });
}

}  // namespace
}  // namespace nanotron::data
