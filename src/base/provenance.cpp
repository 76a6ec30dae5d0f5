#include "nanotron/base/provenance.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "nanotron/base/build_info.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/process.hpp"

namespace nanotron {
namespace {

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text);  // Open MPI counts the terminating zero in length
  version.erase(std::find(version.begin(), version.end(), '\n'), version.end());
  return version;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// "0-3: node1; 4-7: node2".
std::string folded(const std::vector<std::string>& places) {
  std::string text;
  for (std::size_t first = 0; first < places.size();) {
    std::size_t last = first;
    while (last + 1 < places.size() && places[last + 1] == places[first]) ++last;
    text += fmt::format("{}{}: {}", first ? "; " : "",
                        first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last), places[first]);
    first = last + 1;
  }
  return text;
}

}  // namespace

Provenance build_provenance() {
  namespace info = build_info;
  Provenance rows{{"program", program_invocation_short_name},
                  {"version", info::project_version},
                  {"git_hash", info::git_hash},
                  {"git_dirty", info::git_dirty ? "yes" : "no"},
                  {"build_type", info::build_type},
                  {"compiler", info::compiler},
                  {"compile_flags", info::compile_flags},
                  {"mpi", mpi_library()},
                  {"hdf5", info::hdf5_version},
                  {"kokkos", fmt::format("{} ({})", info::kokkos_version, info::kokkos_devices)},
                  {"blas", info::blas},
                  {"onednn", info::dnnl_version},
                  {"cuda", info::cuda}};
#ifdef NANOTRON_WITH_GPU
  const Provenance libraries = gpu_libraries();
  rows.insert(rows.end(), libraries.begin(), libraries.end());
#endif
  return rows;
}

std::string place_of_process() {
  std::string place = host_name();
#ifdef NANOTRON_WITH_GPU
  int device = 0;
  gpuDeviceProp properties{};
  char bus[32] = "";
  if (gpuGetDevice(&device) == gpuSuccess && gpuGetDeviceProperties(&properties, device) == gpuSuccess &&
      gpuDeviceGetPCIBusId(bus, sizeof bus, device) == gpuSuccess) {
    place += fmt::format(", GPU {} ({})", bus, properties.name);
  }
#endif
  return place;
}

Provenance run_provenance(const std::vector<std::string>& places) {
  Provenance rows{{"start_time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
                  {"command", command_line()},
                  {"user", std::getenv("USER") ? std::getenv("USER") : fmt::format("uid {}", getuid())},
                  {"directory", std::filesystem::current_path().string()},
                  {"ranks", fmt::format("{}", places.size())},
                  {"hosts", folded(places)}};
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST",
                           "SLURM_RESTART_COUNT", "PBS_JOBID", "PBS_JOBNAME", "PBS_QUEUE", "PJM_JOBID", "PJM_JOBNAME",
                           "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    if (const char* value = std::getenv(name)) rows.emplace_back(name, value);
  }
  return rows;
}

std::string source_date() { return build_info::source_date; }

std::string to_text(const Provenance& provenance) {
  std::string text;
  for (const auto& [key, value] : provenance) text += fmt::format("{}: {}\n", key, value);
  return text;
}

}  // namespace nanotron
