#pragma once

// HDF5 handles, errors with HDF5's own messages, and scalar attributes. Used by the token file and by
// all of io/; the collective part is nanotron/io/parallel_hdf5.hpp.

#include <hdf5.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron::hdf5 {

/// Called when a file driver of ours cannot read: exceptions must not pass through HDF5. The next failure of HDF5 on
/// this thread, or the next object that it does not find, throws `failure` instead.
void driver_failed(std::exception_ptr failure);

/// Throws Error(code) with `doing` and the innermost lines of HDF5's error stack, or what driver_failed() was given.
/// Error(system_error) if a system call failed for a reason other than the path or the file.
[[noreturn]] void fail(ExitCode code, const std::string& doing);
/// Call it right after an HDF5 call that found nothing: throws as fail() if the reason is that the system, or a driver
/// of ours, could not read. `object` belongs to the file that the message names.
void require_readable(hid_t object, const std::string& doing);

/// Returns status, or fails when it is negative. `doing` names the file and the object.
template <class T>
T check(T status, ExitCode code, const std::string& doing) {
  if (status < 0) [[unlikely]]
    fail(code, doing);
  return status;
}

/// Owns one HDF5 identifier and closes it. Move-only.
template <herr_t (*close_function)(hid_t)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t owned) : id_(owned) {}
  ~Handle() { release(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      release();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
    }
    return *this;
  }
  hid_t id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now and reports a failure, which the destructor cannot. Always call this for written files.
  void close(ExitCode code, const std::string& doing) {
    if (id_ >= 0) check(close_function(std::exchange(id_, H5I_INVALID_HID)), code, doing);
  }

 private:
  void release() noexcept {
    if (id_ >= 0) close_function(id_);
    id_ = H5I_INVALID_HID;
  }
  hid_t id_ = H5I_INVALID_HID;
};

using File = Handle<H5Fclose>;
using Group = Handle<H5Gclose>;
using Dataset = Handle<H5Dclose>;
using Dataspace = Handle<H5Sclose>;
using Datatype = Handle<H5Tclose>;
using Attribute = Handle<H5Aclose>;
using PropertyList = Handle<H5Pclose>;

/// Stops HDF5 from printing its error stack to stderr. Every open function here calls it.
void silence();

/// Serial (no MPI) and without file locks, so that a file may be read while another process writes it.
File open_read_only(const std::filesystem::path& path);

/// Opens parent/path, where path may be "a/b/c". Every link in it must be a hard link: external and
/// symbolic ones are refused. Throws Error(data_error); `file` names the file in messages.
Dataset open_dataset(hid_t parent, const std::string& path, const std::string& file);
Group open_group(hid_t parent, const std::string& path, const std::string& file);
/// True when every part of path exists; never follows an external link.
bool exists(hid_t parent, const std::string& path);

/// Extents of a dataset. Error(data_error) for virtual and external storage and for filters other than
/// deflate (once), shuffle and fletcher32: HDF5's others trust the numbers that a file gives them.
std::vector<index_t> checked_shape(const Dataset& dataset, const std::string& name, const std::string& file);

/// Whether it is an integer of 1, 2, 4 or 8 bytes or an IEEE number of 4 or 8, of either byte order. HDF5 would convert
/// other types too, whose bit fields a file may place anywhere.
bool is_plain_number(const Datatype& type);

/// Scalar attributes. Readers return nullopt when the attribute is absent, and throw Error(data_error) when
/// it is not scalar or of another type. Strings are written as UTF-8 of fixed length, and those of
/// variable length are refused; read_any_string takes both, as h5py writes them into files of users.
std::optional<std::int64_t> read_integer(hid_t object, const char* name, const std::string& file);
std::optional<double> read_real(hid_t object, const char* name, const std::string& file);
std::optional<std::string> read_string(hid_t object, const char* name, const std::string& file);
std::optional<std::string> read_any_string(hid_t object, const char* name, const std::string& file);
void write_integer(hid_t object, const char* name, std::int64_t value);
void write_real(hid_t object, const char* name, double value);
/// refused: what it means that HDF5 does not write it; damage, if the file was not made by this program just now.
void write_string(hid_t object, const char* name, std::string_view value, ExitCode refused = ExitCode::system_error);

/// A fixed-length UTF-8 string type of this many bytes (at least 1), null-padded.
Datatype string_type(std::size_t bytes);

}  // namespace nanotron::hdf5
