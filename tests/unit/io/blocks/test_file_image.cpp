// ranks: 1
#include "nanotron/io/blocks/file_image.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::io {
namespace {

std::string text_of(FileImage& image) {
  std::string text(static_cast<std::size_t>(image.bytes()), '?');
  image.read(text.data(), image.bytes(), 0);
  return text;
}

TEST(FileImage, KeepsTheLastOfOverlappingWrites) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    FileImage image("image");
    std::string expected;
    for (int i = 0; i < 12; ++i) {
      const std::size_t at = random() % 90;
      const std::string text(random() % 30, static_cast<char>('a' + i));
      if (text.empty()) continue;
      image.write(text.data(), std::ssize(text), static_cast<std::int64_t>(at));
      if (expected.size() < at + text.size()) expected.resize(at + text.size(), '\0');
      expected.replace(at, text.size(), text);
      ASSERT_EQ(text_of(image), expected);
      std::int64_t end = -1;
      for (const auto& [position, bytes] : image.extents()) {
        ASSERT_GT(position, end);  // neither overlapping nor adjacent
        end = position + std::ssize(bytes);
      }
    }
  }
}

TEST(FileImage, IsAFileThatHdf5Reads) {
  const test::Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "made.h5";
  FileImage image(path.string());
  {
    hdf5::File file = hdf5::create_through(image);
    hdf5::write_string(file.id(), "format", "a text");
    hdf5::write_integer(file.id(), "number", 42);
    const hsize_t n = hsize_t{1} << 20;
    const hdf5::Dataspace space(H5Screate_simple(1, &n, nullptr));
    const hdf5::PropertyList own(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_alloc_time(own.id(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(own.id(), H5D_FILL_TIME_NEVER);
    const hdf5::Dataset large(
        H5Dcreate2(file.id(), "large", H5T_NATIVE_DOUBLE, space.id(), H5P_DEFAULT, own.id(), H5P_DEFAULT));
    EXPECT_EQ(H5Dget_offset(large.id()) % (1 << 20), 0u);
  }
  EXPECT_GT(image.bytes(), 8 << 20);
  std::size_t held = 0;
  for (const auto& [position, bytes] : image.extents()) held += bytes.size();
  EXPECT_LT(held, 100000u);  // what was not written takes no memory
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path, std::ios::binary) << text_of(image);
  const hdf5::File file = hdf5::open_read_only(path);
  EXPECT_EQ(hdf5::read_string(file.id(), "format", ""), "a text");
  EXPECT_EQ(hdf5::read_integer(file.id(), "number", ""), 42);
  EXPECT_EQ(hdf5::checked_shape(hdf5::open_dataset(file.id(), "large", ""), "large", ""),
            std::vector<index_t>{1 << 20});
}

}  // namespace
}  // namespace nanotron::io
