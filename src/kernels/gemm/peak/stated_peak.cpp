#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"

#include <array>

namespace nanotron::kernels {
namespace {

struct StatedPeak {
  std::string_view part_of_name;
  double fp8, bf16, fp32, fp64;  // TFLOP/s
};

// The first row whose words are in the name counts. From the data sheets "NVIDIA H100 Tensor Core GPU", "NVIDIA H200
// Tensor Core GPU", "NVIDIA GH200 Grace Hopper Superchip", "NVIDIA A100 Tensor Core GPU", "NVIDIA Blackwell
// Architecture" (HGX B200, GB200), "NVIDIA L40S", "NVIDIA V100", "AMD Instinct MI250X Accelerator" and those of MI300A
// and MI300X; figures "with sparsity" halved, of matrix cores.
constexpr std::array<StatedPeak, 14> table{{{"H100 PCIe", 1513.0, 756.0, 51.0, 51.0},
                                            {"H100 NVL", 1671.0, 835.0, 60.0, 60.0},
                                            {"H200 NVL", 1671.0, 835.0, 60.0, 60.0},
                                            {"H100", 1979.0, 989.0, 67.0, 67.0},
                                            {"H200", 1979.0, 989.0, 67.0, 67.0},  // and GH200
                                            {"A100", 0.0, 312.0, 19.5, 19.5},
                                            {"GB200", 5000.0, 2500.0, 80.0, 40.0},
                                            {"B200", 4500.0, 2250.0, 75.0, 37.0},
                                            {"L40S", 733.0, 362.0, 91.6, 1.4},
                                            {"V100-SXM2", 0.0, 0.0, 15.7, 7.8},
                                            {"V100-PCIE", 0.0, 0.0, 14.0, 7.0},
                                            {"MI250X", 0.0, 191.5, 47.9, 47.9},  // of a die
                                            {"MI300A", 1961.0, 980.6, 122.6, 122.6},
                                            {"MI300X", 2615.0, 1307.4, 163.4, 163.4}}};

}  // namespace

double stated_peak(std::string_view device, ScalarType type) {
  if (device.find("MIG") != std::string_view::npos) return 0.0;
  for (const StatedPeak& row : table) {
    if (device.find(row.part_of_name) == std::string_view::npos) continue;
    switch (type) {
      case ScalarType::fp64:
        return 1e12 * row.fp64;
      case ScalarType::fp32:
        return 1e12 * row.fp32;
      case ScalarType::bf16:
        return 1e12 * row.bf16;
      default:
        return 1e12 * row.fp8;
    }
  }
  return 0.0;
}

}  // namespace nanotron::kernels
