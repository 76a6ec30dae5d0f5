#include "overlap.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "nanotron/nn/linear/hidden_states.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr std::array chunk_counts{1, 2, 4, 8};  // the first: one after the other

enum class Side { gather, sum };  // the stream is before the product, or behind it

// x (tokens, in) -> (tokens, out) with the weight as it lies or transposed.
struct Product {
  const char* name;
  Side side;
  kernels::Op op;
  index_t in, out;
};

std::vector<Product> gemm_mode_of(const model::LocalSizes& s) {
  using kernels::Op;
  std::vector<Product> list{{"gather, q k v", Side::gather, Op::transpose, s.hidden, s.query + 2 * s.key},
                            {"gather, gate up", Side::gather, Op::transpose, s.hidden, 2 * s.intermediate},
                            {"gather, down backward", Side::gather, Op::none, s.hidden, s.intermediate},
                            {"attention out, sum", Side::sum, Op::transpose, s.query, s.hidden},
                            {"down, sum", Side::sum, Op::transpose, s.intermediate, s.hidden},
                            {"gate up backward, sum", Side::sum, Op::none, 2 * s.intermediate, s.hidden}};
  std::erase_if(list, [](const Product& p) { return p.in == 0 || p.out == 0; });  // no shared expert
  return list;
}

// A split stream of the tp group for each number of chunks, with the memory it takes.
template <class T>
class Streams {
 public:
  Streams(const Bench& bench, const nn::HiddenShape& size) {
    for (std::size_t i = 0; i < chunk_counts.size(); ++i) {
      const auto make = [&](Arena& arena) {
        return nn::make_hidden_states<T>(deck::TpMode::reduce_scatter, size, {.chunks = chunk_counts[i]},
                                         bench.grid.tp(), arena);
      };
      Arena planning = Arena::planning();
      static_cast<void>(make(planning));
      arenas_[i].emplace(planning.plan());
      streams_[i] = make(*arenas_[i]);
    }
  }
  nn::HiddenStates<T>& operator[](std::size_t i) const { return *streams_[i]; }

 private:
  std::array<std::optional<Arena>, chunk_counts.size()> arenas_;
  std::array<std::unique_ptr<nn::HiddenStates<T>>, chunk_counts.size()> streams_;
};

template <class T>
class OverlapBench {
 public:
  OverlapBench(const Bench& bench, const model::LocalSizes& s)
      : bench_(bench),
        s_(s),
        device_(timers_),
        streams_(bench, {.tokens = s.tokens, .width = s.hidden, .tp_size = bench.grid.tp().size()}),
        stream_memory_(streams_[0].rows() * s.hidden) {}

  // The least of rounds in which everything is measured in turn: others on the host only ever add time.
  void run(const Product& p, Table& table) {
    const Buffer<T> weight(p.in * p.out), tokens(s_.tokens * std::max(p.in, p.out));
    const Kokkos::View<std::byte*, MemorySpace> workspace(
        "workspace", kernels::gemm_workspace_bytes<T>(device_.gemm_mode(), s_.tokens, p.out, p.in));
    device_.set_gemm_workspace(Vector<std::byte>(workspace.data(), workspace.size()));
    const bool transposed = p.op == kernels::Op::transpose;
    const nn::RowGemm<T> product{p.op, weight.matrix(transposed ? p.out : p.in, transposed ? p.in : p.out), {}};
    const Matrix<T> rows = stream_memory_.matrix(streams_[0].rows(), s_.hidden);
    const Matrix<T> inner = tokens.matrix(s_.tokens, p.side == Side::gather ? p.out : p.in);

    std::vector<double> alone, moved;
    std::array<std::vector<double>, chunk_counts.size()> both;
    for (int round = 0; round < bench_.options.rounds; ++round) {
      alone.push_back(seconds([&] { multiply_alone(p, product, inner); }));
      moved.push_back(seconds([&] { move_alone(p, rows); }));
      for (std::size_t i = 0; i < both.size(); ++i) {
        both[i].push_back(seconds([&] { together(p, streams_[i], product, rows, inner); }));
      }
    }
    const double compute = spread_of(alone).least, communication = spread_of(moved).least;
    const double in_turn = spread_of(both[0]).least;
    for (std::size_t i = 1; i < both.size(); ++i) {
      const double overlapped = spread_of(both[i]).least;
      table.rows.push_back({p.name, name_of(scalar_type_of<T>), std::int64_t{chunk_counts[i]}, compute * 1e3,
                            communication * 1e3, in_turn * 1e3, overlapped * 1e3, overlapped / in_turn,
                            std::max(compute, communication) / in_turn});
    }
  }

 private:
  template <class Work>
  double seconds(Work&& work) {
    return comm::max(bench_.grid.tp(),
                     seconds_of(device_, bench_.grid.world(), bench_.options.seconds / 4, work).least);
  }
  // In the stream's own memory of all tokens.
  void multiply_alone(const Product& p, const nn::RowGemm<T>& product, const Matrix<T>& inner) {
    const Matrix<T> all = streams_[0].addend({});
    if (p.side == Side::gather) {
      product(device_, all, inner);
    } else {
      product(device_, inner, all);
    }
  }
  void move_alone(const Product& p, const Matrix<T>& rows) {
    if (p.side == Side::gather) {
      streams_[0].gather(device_, rows);
    } else {
      streams_[0].start_sum(device_, rows).wait();
    }
  }
  void together(const Product& p, nn::HiddenStates<T>& stream, const nn::RowGemm<T>& product, const Matrix<T>& rows,
                const Matrix<T>& inner) {
    if (p.side == Side::gather) {
      stream.gather_multiply(device_, {rows, {}}, product, inner);
    } else {
      stream.multiply_sum(device_, product, inner, rows).wait();
    }
  }

  const Bench& bench_;
  model::LocalSizes s_;
  Timers timers_;
  Device device_;
  Streams<T> streams_;
  Buffer<T> stream_memory_;
};

}  // namespace

void measure_overlap(const Bench& bench, const std::vector<ScalarType>& types) {
  if (bench.grid.tp().size() == 1) return bench.report.line("\nOverlap: tp = 1, nothing to measure");
  const model::LocalSizes s = bench.sizes();
  Table table{
      .key = "overlap",
      .title = fmt::format("Products in chunks beside their gathers and sums: {} tokens, tp = {} by {}", s.tokens,
                           bench.grid.tp().size(), bench.grid.tp().path()),
      .columns = {{"what", "what"},
                  {"type", "type"},
                  {"chunks", "chunks"},
                  {"ms product", "product_ms", 3},
                  {"ms moved", "moved_ms", 3},
                  {"ms in turn", "in_turn_ms", 3},
                  {"ms in chunks", "chunks_ms", 3},
                  {"of in turn", "ratio", 2},
                  {"at best", "bound", 2}},
      .rows = {},
      .note =
          "of in turn: time in chunks over that of one chunk; at best: the longer of product and communication alone"};
  for (const ScalarType type : types) {
    with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
      OverlapBench<T> overlap(bench, s);
      for (const Product& p : gemm_mode_of(s)) overlap.run(p, table);
    });
  }
  bench.report.add(table);
}

}  // namespace nanotron::apps::bench
