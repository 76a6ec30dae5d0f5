#include "nanotron/nn/residual_stream.hpp"

#include "nanotron/base/error.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class WholeStream final : public ResidualStream<T> {
 public:
  WholeStream(const StreamSize& size, comm::Group& tp) : tokens_(size.tokens), tp_(&tp) {}

  index_t rows() const override { return tokens_; }
  bool is_split() const override { return false; }
  Matrix<const T> gather(Device&, Matrix<const T> x) override { return x; }
  Matrix<T> addend(Matrix<T> y) override { return y; }
  comm::Request start_sum(Device& device, Matrix<T> y) override {
    return comm::start_all_reduce(*tp_, y.data(), y.size(), comm::ReduceOp::sum, device.stream());
  }

 private:
  index_t tokens_;
  comm::Group* tp_;
};

template <class T>
class SplitStream final : public ResidualStream<T> {
 public:
  SplitStream(const StreamSize& size, comm::Group& tp, Arena& arena)
      : tokens_(size.tokens),
        rows_(stream_rows(deck::TpMode::reduce_scatter, size)),
        gathered_(arena.take<T>(MemoryKind::workspace, rows_ * size.tp_size, size.width)),
        addend_(arena.take<T>(MemoryKind::workspace, rows_ * size.tp_size, size.width)),
        tp_(&tp) {}

  index_t rows() const override { return rows_; }
  bool is_split() const override { return true; }

  Matrix<const T> gather(Device& device, Matrix<const T> x) override {
    comm::all_gather(*tp_, x.data(), checked_size(x), gathered_.data(), device.stream());
    return Matrix<const T>(gathered_.data(), tokens_, x.extent(1));
  }
  Matrix<T> addend(Matrix<T> y) override { return Matrix<T>(addend_.data(), tokens_, y.extent(1)); }
  comm::Request start_sum(Device& device, Matrix<T> y) override {
    return comm::start_reduce_scatter(*tp_, addend_.data(), y.data(), checked_size(y), comm::ReduceOp::sum,
                                      device.stream());
  }

 private:
  std::size_t checked_size(const Matrix<const T>& x) const {
    NANOTRON_REQUIRE(static_cast<index_t>(x.extent(0)) == rows_ && x.extent(1) == gathered_.extent(1),
                     "{} x {} of a stream of {} x {}", x.extent(0), x.extent(1), rows_, gathered_.extent(1));
    return x.size();
  }

  index_t tokens_, rows_;
  Matrix<T> gathered_, addend_;  // (rows of all ranks, width)
  comm::Group* tp_;
};

}  // namespace

index_t stream_rows(deck::TpMode mode, const StreamSize& size) {
  return mode == deck::TpMode::all_reduce ? size.tokens : (size.tokens + size.tp_size - 1) / size.tp_size;
}

template <class T>
std::unique_ptr<ResidualStream<T>> make_residual_stream(deck::TpMode mode, const StreamSize& size,
                                                        comm::Group& tp, Arena& arena) {
  if (mode == deck::TpMode::reduce_scatter && size.tp_size > 1) {
    return std::make_unique<SplitStream<T>>(size, tp, arena);
  }
  return std::make_unique<WholeStream<T>>(size, tp);
}

template std::unique_ptr<ResidualStream<double>> make_residual_stream(deck::TpMode, const StreamSize&,
                                                                      comm::Group&, Arena&);
template std::unique_ptr<ResidualStream<float>> make_residual_stream(deck::TpMode, const StreamSize&,
                                                                     comm::Group&, Arena&);
template std::unique_ptr<ResidualStream<bf16>> make_residual_stream(deck::TpMode, const StreamSize&,
                                                                    comm::Group&, Arena&);

}  // namespace nanotron::nn
