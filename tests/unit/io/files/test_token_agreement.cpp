// ranks: 1 2 3
// Ranks that see different files under one path, as hosts with disks of their own do.

#include "nanotron/io/files/shared_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::io {
namespace {

using deck::Verify;
using test::Scratch;

constexpr std::size_t size = 2 * static_cast<std::size_t>(token_block) + 5;

class TokenAgreement : public ::testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_rank(test::world(), &rank);
    MPI_Comm_size(test::world(), &ranks);
  }
  // This rank's file, with one token changed.
  std::filesystem::path write(std::size_t changed = size, hid_t type = H5T_STD_U16LE, const char* tokenizer = "") {
    std::vector<std::uint32_t> tokens(size, 7);
    if (changed < size) tokens[changed] = 8;
    const std::filesystem::path path = scratch / fmt::format("{}.h5", rank);
    const hdf5::File file = test::new_file(path);
    test::put(file.id(), "tokens", type, H5T_NATIVE_UINT32, tokens, {size});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, std::vector<std::uint64_t>{0, changed}, {2});
    if (*tokenizer != 0) hdf5::write_string(file.id(), "tokenizer_sha256", tokenizer);
    return path;
  }
  std::string error_of(const std::filesystem::path& path, Verify verify, bool documents = false) {
    const data::TokenFile file(path);
    try {
      require_same_tokens(test::world(), file, "data%path", verify, documents, log);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data_error);
      return error.what();
    }
  }
  bool is_last() const { return ranks > 1 && rank == ranks - 1; }

  Log log{false};
  int rank = 0, ranks = 1;
  Scratch scratch{test::world()};
};

TEST_F(TokenAgreement, CopiesAgreeHoweverTheyAreStored) {
  const auto path = write(3, is_last() ? H5T_STD_U32BE : H5T_STD_U16LE);
  for (const Verify verify : {Verify::automatic, Verify::full, Verify::sample, Verify::none})
    EXPECT_EQ(error_of(path, verify, true), "");
}

TEST_F(TokenAgreement, OneTokenAnywhereIsFound) {
  if (ranks == 1) GTEST_SKIP();
  for (const std::size_t changed : {std::size_t{0}, static_cast<std::size_t>(token_block), size - 1}) {
    const std::string error = error_of(write(is_last() ? changed : size), Verify::automatic);
    EXPECT_NE(error.find("different token files"), std::string::npos) << changed;
    EXPECT_NE(error.find("0.h5 on host"), std::string::npos) << error;
    EXPECT_NE(error.find(fmt::format("{}.h5 on host", ranks - 1)), std::string::npos) << error;
    const std::size_t first = error.find("hash "), second = error.find("hash ", first + 1);
    ASSERT_NE(second, std::string::npos) << error;
    EXPECT_NE(error.substr(first, 21), error.substr(second, 21));
    EXPECT_EQ(error_of(scratch / fmt::format("{}.h5", rank), Verify::none), "");
  }
}

TEST_F(TokenAgreement, WhatBelongsToTheTokensIsComparedToo) {
  if (ranks == 1) GTEST_SKIP();
  EXPECT_NE(error_of(write(size, H5T_STD_U16LE, is_last() ? "ab" : "cd"), Verify::full), "") << "tokenizer";
  {
    const auto path = write();
    if (is_last()) {
      const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
      H5Ldelete(file.id(), "documents", H5P_DEFAULT);
      test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, std::vector<std::uint64_t>{0, 5}, {2});
    }
    EXPECT_EQ(error_of(path, Verify::full, false), "") << "not read by the run";
    EXPECT_NE(error_of(path, Verify::full, true), "");
  }
}

TEST_F(TokenAgreement, PartsOfAHashAddUp) {
  const data::TokenFile file(write(9));
  for (const bool sample : {false, true}) {
    const std::uint64_t whole = hash_part(file, sample, true, 0, 1);
    for (const int parts : {2, 3, 5}) {
      std::uint64_t sum = 0;
      for (int p = 0; p < parts; ++p) sum += hash_part(file, sample, true, p, parts);
      EXPECT_EQ(sum, whole);
    }
  }
}

// Of 70 blocks, zeros in a sparse file, a sample leaves out number 11 (and five others).
TEST_F(TokenAgreement, ASampleIsOfSixtyFourBlocks) {
  if (ranks > 1) GTEST_SKIP();
  const auto hash_with = [&](index_t block, bool sample) {
    const std::filesystem::path path = scratch / "large.h5";
    {
      const hdf5::File file = test::new_file(path);
      const hsize_t tokens = 70 * static_cast<hsize_t>(token_block), one = 1;
      const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
      H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY);
      H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER);
      const hdf5::Dataspace space(H5Screate_simple(1, &tokens, nullptr)), memory(H5Screate_simple(1, &one, nullptr));
      const hdf5::Dataset set(
          H5Dcreate2(file.id(), "tokens", H5T_STD_U16LE, space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT));
      const hsize_t at = static_cast<hsize_t>(block * token_block) + 77;
      const std::uint16_t token = 1;
      H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, &at, nullptr, &one, nullptr);
      EXPECT_GE(H5Dwrite(set.id(), H5T_NATIVE_UINT16, memory.id(), space.id(), H5P_DEFAULT, &token), 0);
    }
    return hash_part(data::TokenFile(path, data::TokenFile::Hashes::ignored), sample, false, 0, 1);
  };
  EXPECT_EQ(hash_with(11, true), hash_with(68, true)) << "both are left out";
  EXPECT_NE(hash_with(11, true), hash_with(12, true));
  EXPECT_NE(hash_with(69, true), hash_with(12, true)) << "the last is not";
  EXPECT_NE(hash_with(11, false), hash_with(68, false));
}

// A list of files; each rank is a host of its own, which has its copies.
TEST_F(TokenAgreement, OfAListOneTokenOfOneFileIsFound) {
  std::vector<std::filesystem::path> paths;
  const auto write_list = [&](std::size_t other) {
    paths.clear();
    for (std::size_t i = 0; i < 5; ++i) {
      paths.push_back(scratch / fmt::format("{}_{}.h5", rank, i));
      std::vector<std::uint32_t> tokens(1000 + i, 7);
      if (is_last() && i == other) tokens[500] = 8;
      const hdf5::File file = test::new_file(paths.back());
      test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {tokens.size()});
    }
  };
  const auto error_of_list = [&](MPI_Comm host, Verify verify) -> std::string {
    std::vector<data::TokenFile> files;
    std::vector<ListedTokens> listed;
    for (const auto& path : paths) files.emplace_back(path);
    for (const data::TokenFile& file : files) listed.push_back({&file, "data%path, 'x'"});
    try {
      require_same_tokens(test::world(), host, listed, verify, false, log);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data_error);
      return error.what();
    }
  };
  write_list(9);
  EXPECT_EQ(error_of_list(MPI_COMM_SELF, Verify::automatic), "");
  EXPECT_EQ(error_of_list(test::world(), Verify::automatic), "") << "one host";
  write_list(3);
  EXPECT_EQ(error_of_list(MPI_COMM_SELF, Verify::none), "");
  for (const Verify verify : {Verify::automatic, Verify::full, Verify::sample}) {
    const std::string error = error_of_list(MPI_COMM_SELF, verify);
    if (ranks == 1) continue;
    EXPECT_NE(error.find("different token files"), std::string::npos) << error;
    EXPECT_NE(error.find("0_3.h5 on host"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace nanotron::io
