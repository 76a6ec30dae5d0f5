#pragma once

// Where HDF5 reads and writes the bytes of a file: a file driver of HDF5 (H5FDregister) over an interface of ours. All
// files of the programs are opened through it. HDF5 keeps a file that it could not close, and ends the process by a
// signal when it tries again at exit; here nothing that the system does lets a close fail.

#include <cstdint>
#include <memory>
#include <string>

#include "nanotron/data/files/hdf5.hpp"

namespace nanotron::hdf5 {

class ByteStore {
 public:
  virtual ~ByteStore() = default;
  virtual const std::string& name() const = 0;
  virtual std::int64_t bytes() const = 0;
  /// Exceptions of these become those of the call of HDF5 that needed the bytes.
  virtual void read(void* target, std::int64_t bytes, std::int64_t position) = 0;
  virtual void write(const void* source, std::int64_t bytes, std::int64_t position);  // Error(system_error): read-only
  virtual void resize(std::int64_t bytes);                                            // the same
};

/// Opens an existing file for reading. `store` must outlive it. Error(data_error) where it is no HDF5 file.
File open_through(ByteStore& store);
/// A new file, of our layout: objects of 64 KiB and more begin at multiples of 1 MiB, format of HDF5 1.10.
/// Error(system_error). `store` must outlive it.
File create_through(ByteStore& store);

enum class Access { read, update, create };
/// A file of the layout that HDF5 gives it; it keeps the store. Errors as above.
File open_through(const std::shared_ptr<ByteStore>& store, Access access);

}  // namespace nanotron::hdf5
