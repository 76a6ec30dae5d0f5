// NCCL with one rank: what a machine with one GPU can show of it. A group of one rank would not call it.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {
namespace {

constexpr std::size_t n = 100000;

class Doubles {
 public:
  Doubles() { NANOTRON_CHECK_GPU(gpuMalloc(reinterpret_cast<void**>(&data_), n * sizeof(double))); }
  explicit Doubles(const std::vector<double>& values) : Doubles() {
    NANOTRON_CHECK_GPU(gpuMemcpy(data_, values.data(), n * sizeof(double), gpuMemcpyHostToDevice));
  }
  ~Doubles() { gpuFree(data_); }
  Doubles(const Doubles&) = delete;
  Doubles& operator=(const Doubles&) = delete;
  double* data() const { return data_; }
  std::vector<double> values(const Stream& stream) const {
    NANOTRON_CHECK_GPU(gpuStreamSynchronize(stream.get()));
    std::vector<double> host(n);
    NANOTRON_CHECK_GPU(gpuMemcpy(host.data(), data_, n * sizeof(double), gpuMemcpyDeviceToHost));
    return host;
  }

 private:
  double* data_ = nullptr;
};

TEST(NcclAlone, EveryCollectiveIsACopy) {
  const Communicator self = Communicator::duplicate(MPI_COMM_SELF);
  const std::unique_ptr<Channel> nccl = make_nccl_channel(self, deck::CollectiveEngine::blocks);
  gpuStream_t own = nullptr;
  NANOTRON_CHECK_GPU(gpuStreamCreate(&own));
  const Stream stream(own);
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = 1.0 / static_cast<double>(i + 1);
  const Doubles data(values), gathered, scattered, exchanged;
  constexpr DataType type = DataType::fp64;
  const std::array counts{n};

  nccl->all_reduce(data.data(), n, type, ReduceOp::sum, stream);
  nccl->broadcast(data.data(), n, type, 0, stream);
  nccl->all_gather(data.data(), n, gathered.data(), type, stream);
  nccl->wait(nccl->start_reduce_scatter(gathered.data(), scattered.data(), n, type, ReduceOp::sum, stream));
  nccl->wait(nccl->start_all_reduce(scattered.data(), n, type, ReduceOp::max, stream));
  nccl->all_to_all(scattered.data(), counts, exchanged.data(), counts, type, stream);
  EXPECT_EQ(exchanged.values(stream), values);
  nccl->wait(nccl->start_all_to_all(exchanged.data(), n, gathered.data(), type, stream));
  EXPECT_EQ(gathered.values(stream), values);
  NANOTRON_CHECK_GPU(gpuStreamDestroy(own));
}

}  // namespace
}  // namespace nanotron::comm
