// ranks: 1
// Token files of a long list: made from a head, opened when they are read, few at a time.
#include "nanotron/data/tokens/token_head.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/data/tokens/token_file.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using test::expect_error;
using test::Scratch;

constexpr std::uint32_t vocabulary = 100;

void make_whole(const std::filesystem::path& path, std::size_t tokens, hid_t type = H5T_STD_U16LE,
                hid_t creation = H5P_DEFAULT) {
  test::make_token_file(path, tokens, vocabulary, type, creation);
  {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, std::vector<std::uint64_t>{0, 5, 9}, {3});
    std::vector<std::uint8_t> mask(tokens);
    for (std::size_t i = 0; i < tokens; ++i) mask[i] = i % 3 == 0;
    test::put(file.id(), "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, mask, {tokens});
    hdf5::write_string(file.id(), "tokenizer_sha256", "ab12");
    hdf5::write_integer(file.id(), "eos_token_id", 3);
  }
  add_hashes(path, 64);
}

std::vector<std::int32_t> tokens_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.size()));
  file.read(0, file.size(), ids.data());
  return ids;
}

std::vector<std::uint8_t> mask_of(const TokenFile& file) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(file.size()));
  file.loss_mask().read(0, mask);
  return mask;
}

std::size_t descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// Contiguous, and in chunks of another byte order, which HDF5 reads.
TEST(TokenHead, IsAllThatAFileNeedsToBeRead) {
  const Scratch scratch(test::world());
  const hdf5::PropertyList chunked(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t chunk = 100;
  H5Pset_chunk(chunked.id(), 1, &chunk);
  H5Pset_deflate(chunked.id(), 3);
  for (const auto& [type, creation] : {std::pair{H5T_STD_U16LE, hid_t{H5P_DEFAULT}}, {H5T_STD_U32BE, chunked.id()}}) {
    const auto path = scratch / fmt::format("{}.h5", creation);
    make_whole(path, 1000, type, creation);
    const TokenFile whole(path);
    const TokenHead head = unpacked(packed(whole.head()));
    const TokenFile listed(head, std::make_shared<OpenFiles>());
    EXPECT_FALSE(listed.stays_open());
    EXPECT_EQ(tokens_of(listed), tokens_of(whole));
    EXPECT_EQ(mask_of(listed), mask_of(whole));
    EXPECT_EQ(listed.read_documents(), whole.read_documents());
    EXPECT_EQ(listed.vocab_size(), whole.vocab_size());
    EXPECT_EQ(listed.eos_token_id(), 3);
    EXPECT_EQ(listed.tokenizer().sha256, "ab12");
    EXPECT_EQ(listed.hashes().content, whole.hashes().content);
    EXPECT_EQ(listed.metadata_hash(), whole.metadata_hash());
    EXPECT_EQ(content_of(listed), content_of(whole));
    EXPECT_EQ(listed.change_since(listed.status()), TokenFile::Change::none);
  }
  EXPECT_THROW(unpacked("short"), Error);
}

TEST(TokenHead, DamageIsFoundWhenItIsRead) {
  const Scratch scratch(test::world());
  const auto path = scratch / "a.h5";
  make_whole(path, 1000);
  const TokenFile listed(TokenFile(path).head(), std::make_shared<OpenFiles>());
  std::vector<char> bytes = test::read_bytes(path);
  bytes[static_cast<std::size_t>(TokenFile(path).head().tokens.offset) + 200] ^= 1;
  test::write_bytes(path, bytes);
  expect_error(ExitCode::data_error, "changed during the run: block 1 of /tokens", [&] { tokens_of(listed); });
}

TEST(TokenHead, AFileThatWasReplacedIsRefused) {
  const Scratch scratch(test::world());
  make_whole(scratch / "a.h5", 1000);
  make_whole(scratch / "b.h5", 1000);
  const auto open_files = std::make_shared<OpenFiles>();
  const TokenFile listed(TokenFile(scratch / "a.h5").head(), open_files);
  std::filesystem::rename(scratch / "b.h5", scratch / "a.h5");
  EXPECT_EQ(listed.change_since(listed.status()), TokenFile::Change::replaced);
  expect_error(ExitCode::data_error, "token file changed during the run", [&] { tokens_of(listed); });
  std::filesystem::remove(scratch / "a.h5");
  expect_error(ExitCode::data_error, "No such file", [&] { tokens_of(listed); });
}

TEST(OpenFiles, AreFew) {
  const Scratch scratch(test::world());
  constexpr std::size_t files = OpenFiles::max_descriptors + 40;
  const auto open_files = std::make_shared<OpenFiles>();
  std::vector<TokenFile> all;
  const std::size_t before = descriptors();
  for (std::size_t i = 0; i < files; ++i) {
    const auto path = scratch / fmt::format("{}.h5", i);
    test::make_token_file(path, 100 + i, vocabulary);
    all.emplace_back(TokenFile(path).head(), open_files);
  }
  EXPECT_EQ(descriptors(), before);
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t i = 0; i < files; ++i) {
      const std::vector<std::int32_t> ids = tokens_of(all[i]);
      EXPECT_EQ(ids.size(), 100 + i);
      EXPECT_LE(descriptors(), before + OpenFiles::max_descriptors);
    }
  }
  EXPECT_EQ(open_files->descriptors.size(), OpenFiles::max_descriptors);
  all.clear();
  EXPECT_EQ(descriptors(), before);
}

TEST(HandlePool, ClosesWhatWasNotUsedForLongest) {
  HandlePool pool(2);
  int opened = 0;
  const auto get = [&](const int& owner) {
    return *std::static_pointer_cast<int>(pool.get(&owner, [&] { return std::make_shared<int>(++opened); }));
  };
  const int a = 0, b = 0, c = 0;
  EXPECT_EQ(get(a), 1);
  EXPECT_EQ(get(b), 2);
  EXPECT_EQ(get(a), 1);
  EXPECT_EQ(get(c), 3);  // closes b
  EXPECT_EQ(get(a), 1);
  EXPECT_EQ(get(b), 4);
  pool.close(&b);
  EXPECT_EQ(pool.size(), 1U);
}

}  // namespace
}  // namespace nanotron::data
