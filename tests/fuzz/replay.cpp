// main() of a fuzz target without libFuzzer: test_fuzz_<target> <folder of inputs>, replays all of them, then as many
// random mutations as NANOTRON_FUZZ_MUTATIONS says (300, within 10 s; 3000 with NANOTRON_FULL), drawn with
// NANOTRON_SEED. What fails is kept in a folder that is named. Inputs run in a child process; where one ends inside of
// libhdf5, called with a file that we let it parse, it is counted apart (SECURITY.md) and another child continues after
// it. One that does not end there begins again, alone: memory that HDF5 has damaged may loop once, a loop repeats.
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "fuzz.hpp"

#ifdef NANOTRON_WITH_SANITIZERS
extern "C" void __sanitizer_set_death_callback(void (*)());  // NOLINT: names of the compiler's
extern "C" int __lsan_do_recoverable_leak_check();           // NOLINT
#endif

namespace {

namespace fs = std::filesystem;
using nanotron::fuzz::require;

constexpr int in_hdf5 = 86, late_in_hdf5 = 87;                   // exit codes of a child
constexpr unsigned patience = 20;                                // seconds for an input
constexpr double max_seconds = 10;                               // of mutations
[[maybe_unused]] constexpr rlim_t max_memory = rlim_t{4} << 30;  // addresses; sanitizers take more

struct Input {
  std::string name, bytes;
};

std::vector<Input> corpus_of(const fs::path& folder) {
  std::vector<Input> corpus;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.push_back({entry.path().filename().string(), {std::istreambuf_iterator<char>(file), {}}});
  }
  std::sort(corpus.begin(), corpus.end(), [](const Input& a, const Input& b) { return a.name < b.name; });
  return corpus;
}

// One change of the bytes: other bits, another integer, a piece left out, doubled, or of another input.
void mutate(std::string& bytes, const std::string& other, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  static constexpr std::array<std::uint64_t, 8> integers{0,        1,          0x7F,       0xFFFF,
                                                         1U << 31, 1ULL << 32, 1ULL << 63, ~std::uint64_t{0}};
  const std::size_t at = below(bytes.size()), length = std::min(bytes.size() - at, 1 + below(64));
  switch (bytes.empty() ? 5 : random() % 7) {
    case 0:
    case 1:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      break;
    case 2:
      bytes[at] = static_cast<char>(random());
      break;
    case 3: {
      const std::uint64_t value = integers[below(integers.size())];
      std::memcpy(bytes.data() + at, &value, std::min(bytes.size() - at, std::size_t{1} << below(4)));
      break;
    }
    case 4:
      bytes.erase(at, length);
      break;
    case 5:
      bytes.insert(at, other.substr(below(other.size()), 1 + below(64)));
      break;
    default:
      bytes.insert(at, bytes.substr(at, length));
  }
}

Input mutation(const std::vector<Input>& corpus, unsigned seed, std::size_t number) {
  std::seed_seq sequence{seed, static_cast<unsigned>(number)};
  std::mt19937 random(sequence);
  Input input = corpus[random() % corpus.size()];
  for (std::size_t i = 1 + random() % 4; i > 0; --i)
    mutate(input.bytes, corpus[random() % corpus.size()].bytes, random);
  input.name = "mutation_" + std::to_string(number) + "_of_" + input.name;
  return input;
}

// Whether the innermost call that is none of the system's or the compiler's libraries is one of HDF5.
[[gnu::noinline]] bool is_in_hdf5() {
  std::array<void*, 64> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 1; i < count; ++i) {  // 0: this function
    Dl_info info{};
    const std::string_view library = dladdr(frames[static_cast<std::size_t>(i)], &info) != 0 ? info.dli_fname : "";
    if (library.find("libhdf5") != std::string_view::npos) return true;
    const auto is_of_system = [&](const char* name) { return library.find(name) != std::string_view::npos; };
    const bool is_handler = i <= 3;  // of this file; sanitizers put one frame before them
    if (!is_handler && !is_of_system("/libc.so") && !is_of_system("/libasan.so") && !is_of_system("/libubsan.so") &&
        !is_of_system("/libz.so") && !is_of_system("/libsz.so") && !is_of_system("/libaec.so") && !library.empty())
      return false;
  }
  return false;
}

[[gnu::noinline]] void leave_if_in_hdf5(int code) {
  if (is_in_hdf5()) _exit(code);
}

[[maybe_unused, gnu::noinline]] void on_death() { leave_if_in_hdf5(in_hdf5); }

void on_signal(int signal) {
  leave_if_in_hdf5(signal == SIGALRM ? late_in_hdf5 : in_hdf5);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void catch_ends() {
  static std::array<char, 1 << 16> memory;
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
#ifdef NANOTRON_WITH_SANITIZERS
  __sanitizer_set_death_callback(on_death);
  for (const int signal : {SIGABRT, SIGALRM}) sigaction(signal, &action, nullptr);
#else
  const rlimit limit{max_memory, max_memory};
  setrlimit(RLIMIT_AS, &limit);
  for (const int signal : {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
#endif
}

void run(const Input& input) {
  alarm(patience);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.bytes.data()), input.bytes.size());
  alarm(0);
}

unsigned number_of(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 2, "usage: test_fuzz_<target> <folder of inputs>");
  const auto now = static_cast<unsigned>(std::chrono::system_clock::now().time_since_epoch().count() / 1000000);
  const unsigned seed = number_of("NANOTRON_SEED", now);
  const std::vector<Input> corpus = corpus_of(argv[1]);
  require(!corpus.empty(), "there are no inputs");
  const bool is_full = std::getenv("NANOTRON_FULL") != nullptr;
  const std::size_t all = corpus.size() + number_of("NANOTRON_FUZZ_MUTATIONS", is_full ? 3000 : 300);
  const auto begin = std::chrono::steady_clock::now();
  const auto goes_on = [&](std::size_t i) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    return i < all && (is_full || i < corpus.size() || passed.count() < max_seconds);
  };
  const auto input = [&](std::size_t i) { return i < corpus.size() ? corpus[i] : mutation(corpus, seed, i); };
  auto& next = *static_cast<std::size_t*>(
      mmap(nullptr, sizeof(std::size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::size_t failed = 0, of_hdf5 = 0, late = all;
  const fs::path of_mpi = fs::temp_directory_path() / ("nanotron_fuzz_mpi_" + std::to_string(getpid())),
                 kept = fs::temp_directory_path() / ("nanotron_fuzz_failures_" + std::to_string(getpid()));
  std::error_code ignored;
  fs::create_directories(of_mpi);  // its files, which processes that end early leave
  setenv("TMPDIR", of_mpi.c_str(), 1);
  for (next = 0; goes_on(next);) {
    const pid_t child = fork();
    if (child == 0) {
      catch_ends();
      for (; goes_on(next); ++next) run(input(next));
#ifdef NANOTRON_WITH_SANITIZERS
      if (__lsan_do_recoverable_leak_check() != 0) _exit(1);
#endif
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    fs::remove_all(nanotron::fuzz::Folder::of(child), ignored);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0 && !goes_on(next)) break;  // an input that ends the process has failed, whatever its code
    if (code == late_in_hdf5 && std::exchange(late, next) != next) continue;
    if (code == in_hdf5) {
      ++of_hdf5;
    } else {
      ++failed;
      fs::create_directories(kept);
      const std::string name = next < all ? input(next).name : "leak";
      if (next < all) nanotron::fuzz::write(kept / name, input(next).bytes);
      std::printf("FAILED: %s (status %d), kept in %s\n", name.c_str(), status, kept.c_str());
    }
    ++next;
  }
  fs::remove_all(of_mpi, ignored);
  std::printf("%zu inputs and %zu mutations, NANOTRON_SEED=%u: %zu failed, %zu ended inside of libhdf5\n",
              corpus.size(), next - corpus.size(), seed, failed, of_hdf5);
  return failed == 0 ? 0 : 1;
}
