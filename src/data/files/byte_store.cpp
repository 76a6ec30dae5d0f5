#include <H5FDpublic.h>
#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>
#endif
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>

#include "nanotron/base/error.hpp"
#include "nanotron/data/files/byte_store.hpp"

namespace nanotron::hdf5 {
namespace {

// What the file access property list carries to open().
struct Settings {
  const std::shared_ptr<ByteStore>* store;
};

struct Driver {
  H5FD_t base;  // first: HDF5 knows no more of it
  std::shared_ptr<ByteStore> store;
  haddr_t end_of_addresses;
  bool is_written;
};

Driver& driver(H5FD_t* file) { return *reinterpret_cast<Driver*>(file); }
const Driver& driver(const H5FD_t* file) { return *reinterpret_cast<const Driver*>(file); }

H5FD_t* open(const char*, unsigned flags, hid_t access, haddr_t) {
  const auto* const settings = static_cast<const Settings*>(H5Pget_driver_info(access));
  Driver* const made =
      settings == nullptr ? nullptr : new (std::nothrow) Driver{{}, *settings->store, 0, (flags & H5F_ACC_RDWR) != 0};
  return made == nullptr ? nullptr : &made->base;
}

herr_t close(H5FD_t* file) {
  delete &driver(file);
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const std::less<const ByteStore*> before;
  const ByteStore *const first = driver(a).store.get(), *const second = driver(b).store.get();
  return before(first, second) ? -1 : before(second, first) ? 1 : 0;
}

herr_t query(const H5FD_t*, unsigned long* features) {
  // SWMR: reads and writes are done in the order of the calls. H5Fget_eoa works with such drivers only.
  *features =
      H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_SUPPORTS_SWMR_IO;
  return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return driver(file).end_of_addresses; }
herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  driver(file).end_of_addresses = end;
  return 0;
}
haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) { return static_cast<haddr_t>(driver(file).store->bytes()); }

// Exceptions must not pass through HDF5.
template <class F>
herr_t guarded(const F& work) {
  try {
    work();
    return 0;
  } catch (...) {
    driver_failed(std::current_exception());
    return -1;
  }
}

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t position, std::size_t bytes, void* target) {
  ByteStore& store = *driver(file).store;
  // HDF5 also reads what it gave addresses to and has not written yet.
  const haddr_t unwritten = driver(file).is_written ? driver(file).end_of_addresses : 0;
  return guarded([&] {
    const haddr_t end = std::max<haddr_t>(static_cast<haddr_t>(store.bytes()), unwritten);
    if (position > end || bytes > end - position)
      nanotron::fail(ExitCode::data_error, {.what = fmt::format("{}: access past end of file", store.name())});
    store.read(target, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(position));
  });
}

herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t position, std::size_t bytes, const void* source) {
  return guarded([&] {
    driver(file).store->write(source, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(position));
  });
}

// The file gets the size that HDF5 has given addresses in.
herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
  ByteStore& store = *driver(file).store;
  const auto bytes = static_cast<std::int64_t>(driver(file).end_of_addresses);
  return store.bytes() == bytes ? 0 : guarded([&] { store.resize(bytes); });
}

hid_t register_driver() {
  static H5FD_class_t driver_class;
#ifdef H5FD_CLASS_VERSION
  driver_class.version = H5FD_CLASS_VERSION;
  driver_class.value = static_cast<H5FD_class_value_t>(256);  // of those for trying out; never stored
#endif
  driver_class.name = "nanotron_byte_store";
  driver_class.maxaddr = static_cast<haddr_t>(INT64_MAX);
  driver_class.fc_degree = H5F_CLOSE_STRONG;
  driver_class.fapl_size = sizeof(Settings);
  driver_class.open = open;
  driver_class.close = close;
  driver_class.cmp = compare;
  driver_class.query = query;
  driver_class.get_eoa = get_eoa;
  driver_class.set_eoa = set_eoa;
  driver_class.get_eof = get_eof;
  driver_class.read = read;
  driver_class.write = write;
  driver_class.truncate = truncate;
  return check(H5FDregister(&driver_class), ExitCode::system_error, "registering a file driver");
}

// Access to `store`, which has to be there until the file is opened. Clears what an earlier failure left.
PropertyList access_to(const std::shared_ptr<ByteStore>& store) {
  static const hid_t driver_id = register_driver();
  silence();
  driver_failed(nullptr);
  PropertyList access(H5Pcreate(H5P_FILE_ACCESS));
  const Settings settings{&store};
  check(H5Pset_driver(access.id(), driver_id, &settings), ExitCode::system_error, "choosing a file driver");
  return access;
}

std::shared_ptr<ByteStore> borrowed(ByteStore& store) { return {std::shared_ptr<void>(), &store}; }

File opened(const std::shared_ptr<ByteStore>& store, unsigned flags) {
  const PropertyList access = access_to(store);
  return File(check(H5Fopen(store->name().c_str(), flags, access.id()), ExitCode::data_error,
                    fmt::format("opening {}", store->name())));
}

File created(const ByteStore& store, const PropertyList& access) {
  return File(check(H5Fcreate(store.name().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), ExitCode::system_error,
                    fmt::format("creating {}", store.name())));
}

constexpr hsize_t alignment_threshold = hsize_t{64} << 10;
constexpr hsize_t alignment = hsize_t{1} << 20;  // the usual size of a Lustre stripe

[[noreturn]] void refuse_to_write(const ByteStore& store) {
  nanotron::fail(ExitCode::system_error, {.what = fmt::format("{} is open for reading only", store.name())});
}

}  // namespace

void ByteStore::write(const void*, std::int64_t, std::int64_t) { refuse_to_write(*this); }
void ByteStore::resize(std::int64_t) { refuse_to_write(*this); }

File open_through(ByteStore& store) { return opened(borrowed(store), H5F_ACC_RDONLY); }

File create_through(ByteStore& store) {
  const std::shared_ptr<ByteStore> kept = borrowed(store);
  const PropertyList access = access_to(kept);
  H5Pset_alignment(access.id(), alignment_threshold, alignment);
  H5Pset_libver_bounds(access.id(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110);
  return created(store, access);
}

File open_through(const std::shared_ptr<ByteStore>& store, Access access) {
  if (access == Access::create) return created(*store, access_to(store));
  return opened(store, access == Access::read ? H5F_ACC_RDONLY : H5F_ACC_RDWR);
}

}  // namespace nanotron::hdf5
