#include "nanotron/trainer/start/network_variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "nanotron/deck/namelist/source_text.hpp"

namespace nanotron::trainer {
namespace {

using deck::to_lower;
using Value = std::optional<std::string>;  // nothing: the variable is not set

Value value_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : Value(text);
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : to_lower(text)) {
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

bool is_on(const Value& value) { return value && !value->empty() && *value != "0"; }
bool is_off(const Value& value) { return value && (*value == "0" || to_lower(*value) == "off"); }
template <class... Words>
bool is_one_of(const Value& value, const Words&... words) {
  return value && ((to_lower(*value) == words) || ...);
}

bool is_loopback(const Value& value) { return is_one_of(value, "lo", "=lo"); }
bool is_tcp(const Value& value) { return is_one_of(value, "tcp", "udp", "sockets", "net", "tcp;ofi_rxm"); }
bool is_low_latency(const Value& value) { return is_one_of(value, "ll"); }
bool is_local(const Value& value) { return is_one_of(value, "loc", "0"); }
bool is_socket(const Value& value) { return is_one_of(value, "socket"); }
bool is_memhooks(const Value& value) { return is_one_of(value, "memhooks"); }

// A list of transports to use, none of which is one of a fast network.
bool is_slow_list(const Value& value) {
  if (!value || value->empty() || value->front() == '^') return false;
  return std::ranges::none_of(words_of(*value), [](const std::string& word) {
    return word == "all" || word == "ib" || word.starts_with("rc") || word.starts_with("dc") ||
           word.starts_with("ud") || word.starts_with("ugni") || word.starts_with("srd");
  });
}

// On Slingshot, whose sites set variables of its provider, NCCL needs them to be safe.
bool is_slingshot() {
  return value_of("FI_CXI_DEFAULT_CQ_SIZE") || value_of("FI_CXI_RX_MATCH_MODE") ||
         to_lower(value_of("FI_PROVIDER").value_or("")) == "cxi";
}
bool is_missing_on_slingshot(const Value& value) { return !value && is_slingshot(); }
bool is_off_on_slingshot(const Value& value) { return is_slingshot() && (!value || is_off(value)); }

struct Row {
  const char* name;
  bool (*is_bad)(const Value&);
  const char* effect;
  const char* change;
  const char* source;
  bool of_gpus;  // of NCCL, or beside it
};

constexpr const char* nccl = "docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html";
constexpr const char* cscs = "docs.cscs.ch/software/communication/nccl";
constexpr const char* isambard = "docs.isambard.ac.uk/user-documentation/guides/nccl";

const std::vector<Row> rows{
    {"NCCL_IB_DISABLE", is_on, "NCCL does not use InfiniBand but TCP, several times slower", "unset it", nccl, true},
    {"NCCL_NET", is_socket, "NCCL sends over TCP, several times slower", "unset it, or name the site's plugin", nccl,
     true},
    {"NCCL_P2P_DISABLE", is_on, "GPUs of a node do not use NVLink, which is several times slower", "unset it",
     "github.com/NVIDIA/nccl/issues/631", true},
    {"NCCL_SHM_DISABLE", is_on, "ranks of a node that have no NVLink send over the network", "unset it", nccl, true},
    {"NCCL_PROTO", is_low_latency, "large messages reach at most half of the bandwidth", "unset it, or '^LL128'",
     "arxiv.org/abs/2507.04786", true},
    {"NCCL_NET_GDR_LEVEL", is_local, "GPU memory passes through the host on its way to the network", "PHB", nccl, true},
    {"NCCL_SOCKET_IFNAME", is_loopback, "ranks of other hosts are not reached: the start of NCCL hangs",
     "name the network's interface", nccl, true},
    {"CUDA_LAUNCH_BLOCKING", is_on, "each kernel waits for the one before, and collectives may deadlock", "unset it",
     "docs.nvidia.com/cuda/cuda-c-programming-guide", true},
    {"MPICH_GPU_SUPPORT_ENABLED", is_on, "GPU-aware MPI beside NCCL may deadlock, and host messages are slower", "0",
     cscs, true},
    {"FI_MR_CACHE_MONITOR", is_memhooks, "memory hooks of libfabric, CUDA and MPI deadlock", "userfaultfd",
     "github.com/ofiwg/libfabric/issues/9003", true},
    {"FI_MR_CACHE_MONITOR", is_missing_on_slingshot, "NCCL over Slingshot may hang", "userfaultfd", isambard, true},
    {"FI_CXI_DISABLE_HOST_REGISTER", is_off_on_slingshot, "NCCL over Slingshot may hang", "1", isambard, true},
    {"FI_PROVIDER", is_tcp, "messages use TCP, several times slower than the network's own provider", "unset it",
     "ofiwg.github.io/libfabric/main/man/fi_provider.7.html", false},
    {"UCX_TLS", is_slow_list, "UCX uses no InfiniBand transport but TCP, several times slower", "unset it, or add rc",
     "openucx.readthedocs.io/en/master/faq.html", false},
};

}  // namespace

std::vector<std::string> network_warnings(Processor processor) {
  std::vector<std::string> warnings;
  for (const Row& row : rows) {
    const Value value = value_of(row.name);
    if ((row.of_gpus && processor == Processor::cpu) || !row.is_bad(value)) continue;
    const std::string found =
        value ? fmt::format("{} = '{}'", row.name, *value) : fmt::format("{} is not set", row.name);
    warnings.push_back(fmt::format("{}: {}; change: {} ({})", found, row.effect, row.change, row.source));
  }
  return warnings;
}

}  // namespace nanotron::trainer
