#include "nanotron/data/files/hdf5.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "nanotron/data/files/byte_store.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::hdf5 {
namespace {

constexpr std::size_t longest_attribute = 1 << 20;

thread_local std::exception_ptr failure_of_driver;

// Why a call to HDF5 failed.
struct Explanation {
  int error = 0;            // errno, if a system call failed
  std::string system, all;  // its message; the lines of the stack from the innermost, which is the cause

  // EINVAL is left out: the file may say a position that cannot be.
  bool is_of_system() const {
    return error != 0 && error != EINVAL && data::exit_code_of(error) == ExitCode::system_error;
  }
};

// From HDF5's "... errno = 28, error message = 'No space left on device', buf = ...".
void find_errno(std::string_view line, Explanation& why) {
  constexpr std::string_view before_number = "errno = ", before_words = ", error message = '";
  const auto words = line.find(before_words), number = line.rfind(before_number, words);
  if (words == std::string_view::npos || number == std::string_view::npos) return;
  std::from_chars(line.data() + number + before_number.size(), line.data() + words, why.error);
  line.remove_prefix(words + before_words.size());
  why.system = line.substr(0, line.find('\''));
}

herr_t collect_line(unsigned, const H5E_error2_t* entry, void* target) {
  auto& why = *static_cast<Explanation*>(target);
  if (!entry->desc || !*entry->desc) return 0;
  if (why.system.empty()) find_errno(entry->desc, why);
  if (why.all.size() < 600) {
    if (!why.all.empty()) why.all += "; ";
    why.all += entry->desc;
  }
  return 0;
}

// Takes the error stack.
Explanation explain() {
  Explanation why;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_line, &why);
  H5Eclear2(H5E_DEFAULT);
  return why;
}

[[noreturn]] void fail_with(const Explanation& why, ExitCode code, const std::string& doing) {
  const std::string& words = why.system.empty() ? why.all : why.system;
  throw Error(code, fmt::format("error: {}\n  HDF5 says: {}", doing, words.empty() ? "no further details" : words));
}

void rethrow_driver_failure() {
  if (failure_of_driver == nullptr) return;
  H5Eclear2(H5E_DEFAULT);
  std::rethrow_exception(std::exchange(failure_of_driver, nullptr));
}

std::string file_of(hid_t object) {
  std::array<char, 4096> name{};
  H5Fget_name(object, name.data(), name.size());
  return name.data();
}

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin < path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

enum class LinkKind { missing, plain, foreign };

LinkKind link_kind(hid_t parent, const std::string& name) {
  silence();
  H5L_info_t info;
  if (H5Lexists(parent, name.c_str(), H5P_DEFAULT) <= 0 || H5Lget_info(parent, name.c_str(), &info, H5P_DEFAULT) < 0) {
    require_readable(parent, fmt::format("looking for '{}'", name));
    return LinkKind::missing;
  }
  return info.type == H5L_TYPE_HARD ? LinkKind::plain : LinkKind::foreign;
}

// The prefixes "a", "a/b", "a/b/c" of a path must all be hard links. (H5Lexists fails below a
// dataset.)
LinkKind path_kind(hid_t parent, const std::string& path) {
  std::string prefix;
  for (const std::string& part : split_path(path)) {
    prefix += prefix.empty() ? part : "/" + part;
    const LinkKind kind = link_kind(parent, prefix);
    if (kind != LinkKind::plain) return kind;
  }
  return LinkKind::plain;
}

void require_plain_path(hid_t parent, const std::string& path, const std::string& file, const char* kind) {
  switch (path_kind(parent, path)) {
    case LinkKind::plain:
      return;
    case LinkKind::missing:
      nanotron::fail(ExitCode::data_error, {fmt::format("the {} '{}' is missing", kind, path), "", "", file, ""});
    case LinkKind::foreign:
      nanotron::fail(ExitCode::data_error,
                     {fmt::format("'{}' is a link", path), fmt::format("a {} stored in the file", kind),
                      "a symbolic or external link", file, ""});
  }
}

Attribute open_scalar_attribute(hid_t object, const char* name, H5T_class_t wanted, const std::string& file) {
  silence();
  if (H5Aexists(object, name) <= 0) {
    require_readable(object, fmt::format("looking for attribute '{}'", name));
    return {};
  }
  Attribute attribute(check(H5Aopen(object, name, H5P_DEFAULT), ExitCode::data_error,
                            fmt::format("{}: opening attribute '{}'", file, name)));
  const Dataspace space(H5Aget_space(attribute.id()));
  const Datatype type(H5Aget_type(attribute.id()));
  if (H5Sget_simple_extent_npoints(space.id()) != 1 || H5Tget_class(type.id()) != wanted ||
      (wanted != H5T_STRING && !is_plain_number(type)))
    nanotron::fail(ExitCode::data_error, {fmt::format("attribute '{}' has the wrong type", name),
                                          wanted == H5T_INTEGER ? "one integer"
                                          : wanted == H5T_FLOAT ? "one real number"
                                                                : "one string",
                                          "another type or more than one value", file, ""});
  return attribute;
}

void write_scalar(hid_t object, const char* name, hid_t type, const void* value,
                  ExitCode refused = ExitCode::system_error) {
  const Dataspace space(H5Screate(H5S_SCALAR));
  const std::string doing = fmt::format("writing attribute '{}'", name);
  Attribute attribute(check(H5Acreate2(object, name, type, space.id(), H5P_DEFAULT, H5P_DEFAULT), refused, doing));
  check(H5Awrite(attribute.id(), type, value), refused, doing);
}

}  // namespace

void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

void driver_failed(std::exception_ptr failure) { failure_of_driver = std::move(failure); }

void require_readable(hid_t object, const std::string& doing) {
  rethrow_driver_failure();
  const Explanation why = explain();
  if (why.is_of_system()) fail_with(why, ExitCode::system_error, fmt::format("{}: {}", file_of(object), doing));
}

void fail(ExitCode code, const std::string& doing) {
  rethrow_driver_failure();
  const Explanation why = explain();
  fail_with(why, why.is_of_system() ? ExitCode::system_error : code, doing);
}

File open_read_only(const std::filesystem::path& path) {
  return open_through(std::make_shared<FileStore>(path, Access::read), Access::read);
}

Dataset open_dataset(hid_t parent, const std::string& path, const std::string& file) {
  require_plain_path(parent, path, file, "dataset");
  return Dataset(check(H5Dopen2(parent, path.c_str(), H5P_DEFAULT), ExitCode::data_error,
                       fmt::format("{}: opening dataset '{}'", file, path)));
}

Group open_group(hid_t parent, const std::string& path, const std::string& file) {
  require_plain_path(parent, path, file, "group");
  return Group(check(H5Gopen2(parent, path.c_str(), H5P_DEFAULT), ExitCode::data_error,
                     fmt::format("{}: opening group '{}'", file, path)));
}

bool exists(hid_t parent, const std::string& path) { return path_kind(parent, path) == LinkKind::plain; }

std::vector<index_t> checked_shape(const Dataset& dataset, const std::string& name, const std::string& file) {
  const auto refuse = [&](const std::string& found) {
    nanotron::fail(ExitCode::data_error, {fmt::format("the dataset '{}' is not supported", name),
                                          "a simple array stored in the file", found, file, ""});
  };
  const PropertyList creation(check(H5Dget_create_plist(dataset.id()), ExitCode::data_error,
                                    fmt::format("{}: reading about '{}'", file, name)));
  const H5D_layout_t layout = H5Pget_layout(creation.id());
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED && layout != H5D_COMPACT) refuse("virtual or unknown storage");
  if (H5Pget_external_count(creation.id()) != 0) refuse("storage in external files");
  const int filters = H5Pget_nfilters(creation.id());
  int deflates = 0;
  if (filters < 0) refuse("unreadable filters");
  if (filters > 3) refuse(fmt::format("{} filters", filters));
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(creation.id(), static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      refuse(fmt::format("the filter {}", filter));
    deflates += filter == H5Z_FILTER_DEFLATE;
  }
  if (deflates > 1) refuse("values deflated more than once");
  const Dataspace space(check(H5Dget_space(dataset.id()), ExitCode::data_error,
                              fmt::format("{}: reading the shape of '{}'", file, name)));
  const int rank = H5Sget_simple_extent_ndims(space.id());
  if (H5Sget_simple_extent_type(space.id()) == H5S_NULL || rank < 0) refuse("no values");
  std::array<hsize_t, H5S_MAX_RANK> extents{};
  H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr);
  return {extents.begin(), extents.begin() + rank};
}

bool is_plain_number(const Datatype& type) {
  const H5T_order_t order = H5Tget_order(type.id());
  const std::size_t bytes = H5Tget_size(type.id());
  if (order != H5T_ORDER_LE && order != H5T_ORDER_BE) return false;
  const auto is = [&](hid_t little, hid_t big) {
    return H5Tequal(type.id(), order == H5T_ORDER_LE ? little : big) > 0;
  };
  if (H5Tget_class(type.id()) == H5T_FLOAT)
    return is(H5T_IEEE_F32LE, H5T_IEEE_F32BE) || is(H5T_IEEE_F64LE, H5T_IEEE_F64BE);
  const bool is_signed = H5Tget_sign(type.id()) == H5T_SGN_2;
  switch (bytes) {
    case 1:
      return is_signed ? is(H5T_STD_I8LE, H5T_STD_I8BE) : is(H5T_STD_U8LE, H5T_STD_U8BE);
    case 2:
      return is_signed ? is(H5T_STD_I16LE, H5T_STD_I16BE) : is(H5T_STD_U16LE, H5T_STD_U16BE);
    case 4:
      return is_signed ? is(H5T_STD_I32LE, H5T_STD_I32BE) : is(H5T_STD_U32LE, H5T_STD_U32BE);
    case 8:
      return is_signed ? is(H5T_STD_I64LE, H5T_STD_I64BE) : is(H5T_STD_U64LE, H5T_STD_U64BE);
    default:
      return false;
  }
}

std::optional<std::int64_t> read_integer(hid_t object, const char* name, const std::string& file) {
  const Attribute attribute = open_scalar_attribute(object, name, H5T_INTEGER, file);
  if (!attribute) return std::nullopt;
  std::int64_t value = 0;
  check(H5Aread(attribute.id(), H5T_NATIVE_INT64, &value), ExitCode::data_error,
        fmt::format("{}: reading attribute '{}'", file, name));
  return value;
}

std::optional<double> read_real(hid_t object, const char* name, const std::string& file) {
  const Attribute attribute = open_scalar_attribute(object, name, H5T_FLOAT, file);
  if (!attribute) return std::nullopt;
  double value = 0.0;
  check(H5Aread(attribute.id(), H5T_NATIVE_DOUBLE, &value), ExitCode::data_error,
        fmt::format("{}: reading attribute '{}'", file, name));
  return value;
}

namespace {

std::string read_fixed(const Attribute& attribute, const Datatype& type, const char* name, const std::string& file) {
  if (H5Tget_size(type.id()) > longest_attribute)
    nanotron::fail(ExitCode::data_error, {fmt::format("attribute '{}' is damaged", name),
                                          fmt::format("a text of at most {} bytes", longest_attribute),
                                          fmt::format("{} bytes", H5Tget_size(type.id())), file, ""});
  std::string value(H5Tget_size(type.id()), '\0');
  check(H5Aread(attribute.id(), type.id(), value.data()), ExitCode::data_error,
        fmt::format("{}: reading attribute '{}'", file, name));
  value.resize(std::strlen(value.c_str()));
  return value;
}

}  // namespace

std::optional<std::string> read_string(hid_t object, const char* name, const std::string& file) {
  const Attribute attribute = open_scalar_attribute(object, name, H5T_STRING, file);
  if (!attribute) return std::nullopt;
  const Datatype type(H5Aget_type(attribute.id()));
  // HDF5 1.10 copies as many bytes as the heap says into memory for as many as the attribute says (H5HG_read).
  if (H5Tis_variable_str(type.id()) != 0)
    nanotron::fail(ExitCode::data_error,
                   {fmt::format("attribute '{}' is a string of variable length", name),
                    "one of fixed length, as this program writes them", "", file,
                    fmt::format("write it with h5py: attrs['{0}'] = numpy.bytes_(attrs['{0}'].encode())", name)});
  return read_fixed(attribute, type, name, file);
}

std::optional<std::string> read_any_string(hid_t object, const char* name, const std::string& file) {
  const Attribute attribute = open_scalar_attribute(object, name, H5T_STRING, file);
  if (!attribute) return std::nullopt;
  const Datatype type(H5Aget_type(attribute.id()));
  if (H5Tis_variable_str(type.id()) <= 0) return read_fixed(attribute, type, name, file);
  char* text = nullptr;
  check(H5Aread(attribute.id(), type.id(), &text), ExitCode::data_error,
        fmt::format("{}: reading attribute '{}'", file, name));
  std::string value = text ? text : "";
  H5free_memory(text);
  return value;
}

void write_integer(hid_t object, const char* name, std::int64_t value) {
  write_scalar(object, name, H5T_NATIVE_INT64, &value);
}

void write_real(hid_t object, const char* name, double value) { write_scalar(object, name, H5T_NATIVE_DOUBLE, &value); }

void write_string(hid_t object, const char* name, std::string_view value, ExitCode refused) {
  const Datatype type = string_type(value.size());
  const std::string bytes(value.empty() ? std::string_view("\0", 1) : value);
  write_scalar(object, name, type.id(), bytes.data(), refused);
}

Datatype string_type(std::size_t bytes) {
  Datatype type(check(H5Tcopy(H5T_C_S1), ExitCode::system_error, "making a string type"));
  H5Tset_size(type.id(), std::max<std::size_t>(bytes, 1));
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
  return type;
}

}  // namespace nanotron::hdf5
