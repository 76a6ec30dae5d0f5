// ranks: 1
#include "nanotron/data/files/byte_store.hpp"

#include <gtest/gtest.h>

#include "support/file_size_limit.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::hdf5 {
namespace {

TEST(FileStore, IsWhatHdf5Reads) {
  const test::Scratch scratch(test::world());
  {
    const auto store = std::make_shared<FileStore>(scratch / "a.h5", Access::create);
    File file = open_through(store, Access::create);
    write_integer(file.id(), "number", 41);
    file.close(ExitCode::system_error, "closing");
    store->close();
  }
  {
    const auto store = std::make_shared<FileStore>(scratch / "a.h5", Access::update);
    const File file = open_through(store, Access::update);
    write_integer(file.id(), "other", 42);
  }
  const File file(H5Fopen((scratch / "a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  EXPECT_EQ(read_integer(file.id(), "number", ""), 41);
  EXPECT_EQ(read_integer(file.id(), "other", ""), 42);
}

// HDF5's own driver fails to close such a file, and the process ends with SIGSEGV at its exit.
TEST(FileStore, AFileThatCannotBeWrittenCloses) {
  const test::Scratch scratch(test::world());
  const auto store = std::make_shared<FileStore>(scratch / "a.h5", Access::create);
  File file = open_through(store, Access::create);
  {
    const hsize_t n = 100000;
    const Dataspace space(H5Screate_simple(1, &n, nullptr));
    const Dataset values(
        H5Dcreate2(file.id(), "values", H5T_NATIVE_DOUBLE, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    const test::FileSizeLimit limit(1000);
    EXPECT_GE(
        H5Dwrite(values.id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, std::vector<double>(n, 1.0).data()), 0);
    test::expect_error(ExitCode::system_error, "a.h5 cannot be written", [&] { store->require_written(); });
    EXPECT_GE(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), 0);
  }
  file.close(ExitCode::data_error, "closing");
  EXPECT_EQ(H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_FILE), 0);
  test::expect_error(ExitCode::system_error, "a.h5 cannot be written", [&] { store->close(); });
}

TEST(FileStore, FollowsALinkToReadOnly) {
  const test::Scratch scratch(test::world());
  std::filesystem::create_symlink(scratch / "elsewhere", scratch / "a.h5");
  test::expect_error(ExitCode::system_error, "symbolic links", [&] { FileStore(scratch / "a.h5", Access::create); });
  EXPECT_FALSE(std::filesystem::exists(scratch / "elsewhere"));
  test::write_bytes(scratch / "elsewhere", {'a'});
  EXPECT_EQ(FileStore(scratch / "a.h5", Access::read).bytes(), 1);
}

}  // namespace
}  // namespace nanotron::hdf5
