#include <H5FDpublic.h>
#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>
#endif
#include <fmt/format.h>

#include <functional>
#include <new>

#include "nanotron/base/error.hpp"
#include "nanotron/io/verified_file.hpp"

// A file driver of HDF5 (H5FDregister) that reads through a VerifiedFile.

namespace nanotron::io {
namespace {

// What the file access property list carries to open().
struct Settings {
  VerifiedFile* source;
};

struct Driver {
  H5FD_t base;  // first: HDF5 knows no more of it
  VerifiedFile* source;
  haddr_t end_of_addresses;
};

Driver& driver(H5FD_t* file) { return *reinterpret_cast<Driver*>(file); }
const Driver& driver(const H5FD_t* file) { return *reinterpret_cast<const Driver*>(file); }

H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
  const auto* const settings = static_cast<const Settings*>(H5Pget_driver_info(access));
  Driver* const made = settings == nullptr ? nullptr : new (std::nothrow) Driver{{}, settings->source, 0};
  return made == nullptr ? nullptr : &made->base;
}

herr_t close(H5FD_t* file) {
  delete &driver(file);
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const std::less<const VerifiedFile*> before;
  return before(driver(a).source, driver(b).source) ? -1 : before(driver(b).source, driver(a).source) ? 1 : 0;
}

herr_t query(const H5FD_t*, unsigned long* features) {
  *features = H5FD_FEAT_DATA_SIEVE;
  return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return driver(file).end_of_addresses; }
herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  driver(file).end_of_addresses = end;
  return 0;
}
haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) { return static_cast<haddr_t>(driver(file).source->bytes()); }

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t position, std::size_t bytes, void* target) {
  VerifiedFile& source = *driver(file).source;
  try {
    const auto end = static_cast<haddr_t>(source.bytes());
    if (position > end || bytes > end - position)
      fail(ExitCode::data_error, {.what = fmt::format("{} refers to bytes behind its end", source.name())});
    source.read(target, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(position));
    return 0;
  } catch (...) {
    hdf5::driver_failed(std::current_exception());
    return -1;
  }
}

herr_t write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, std::size_t, const void*) { return -1; }

hid_t register_driver() {
  static H5FD_class_t driver_class;
#ifdef H5FD_CLASS_VERSION
  driver_class.version = H5FD_CLASS_VERSION;
  driver_class.value = static_cast<H5FD_class_value_t>(256);  // of those for trying out; never stored
#endif
  driver_class.name = "nanotron_verified";
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
  return hdf5::check(H5FDregister(&driver_class), ExitCode::system_error, "registering a file driver");
}

}  // namespace

hdf5::File open_verified(VerifiedFile& source) {
  static const hid_t driver_id = register_driver();
  hdf5::silence();
  hdf5::driver_failed(nullptr);
  const hdf5::PropertyList access(H5Pcreate(H5P_FILE_ACCESS));
  const Settings settings{&source};
  hdf5::check(H5Pset_driver(access.id(), driver_id, &settings), ExitCode::system_error, "choosing a file driver");
  return hdf5::File(hdf5::check(H5Fopen(source.name().c_str(), H5F_ACC_RDONLY, access.id()), ExitCode::data_error,
                                fmt::format("opening {}", source.name())));
}

}  // namespace nanotron::io
