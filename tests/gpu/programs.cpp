// The programs of a bundle (tests/gpu.sh) as one, which is the one that it is called as: they share nearly all code.
#include <fmt/core.h>

#include <filesystem>
#include <string>

int main_of_nanotron_hpc(int argc, char** argv);
int main_of_nanotron_bench(int argc, char** argv);
int main_of_nanotron_generate(int argc, char** argv);
int main_of_nanotron_gpu_tests(int argc, char** argv);

int main(int argc, char** argv) {
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
  if (name == "nanotron_hpc") return main_of_nanotron_hpc(argc, argv);
  if (name == "nanotron_bench") return main_of_nanotron_bench(argc, argv);
  if (name == "nanotron_generate") return main_of_nanotron_generate(argc, argv);
  if (name == "nanotron_gpu_tests") return main_of_nanotron_gpu_tests(argc, argv);
  fmt::print(stderr, "'{}': call it as nanotron_hpc, nanotron_bench, nanotron_generate or nanotron_gpu_tests\n", name);
  return 64;
}
