#include "benches.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "nanotron/nn/linear/tensor_parallel_region.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr std::array chunk_counts{1, 2, 4, 8};  // 1: no overlap

enum class Side { gather, sum };  // all-gather before the GEMM, or reduce-scatter after it

// The GEMM x (tokens, in) -> (tokens, out), with the weight as stored or transposed.
struct GemmShape {
  const char* name;
  Side side;
  kernels::Op op;
  index_t in, out;
};

std::vector<GemmShape> gemms_of(const model::LocalSizes& s) {
  using kernels::Op;
  std::vector<GemmShape> list{{"all-gather, q k v", Side::gather, Op::transpose, s.hidden, s.query + 2 * s.key},
                              {"all-gather, gate up", Side::gather, Op::transpose, s.hidden, 2 * s.intermediate},
                              {"all-gather, down backward", Side::gather, Op::none, s.hidden, s.intermediate},
                              {"attention out, reduce-scatter", Side::sum, Op::transpose, s.query, s.hidden},
                              {"down, reduce-scatter", Side::sum, Op::transpose, s.intermediate, s.hidden},
                              {"gate up backward, reduce-scatter", Side::sum, Op::none, 2 * s.intermediate, s.hidden}};
  std::erase_if(list, [](const GemmShape& p) { return p.in == 0 || p.out == 0; });  // no shared expert
  return list;
}

// A sequence-parallel region of the tp group for each number of chunks, with its memory.
template <class T>
class Regions {
 public:
  Regions(const Bench& bench, const nn::HiddenShape& size) {
    for (std::size_t i = 0; i < chunk_counts.size(); ++i) {
      const auto make = [&](Arena& arena) {
        return nn::make_tensor_parallel_region<T>(deck::TpMode::reduce_scatter, size, {.chunks = chunk_counts[i]},
                                                  bench.grid.tp(), arena);
      };
      Arena planning = Arena::planning();
      static_cast<void>(make(planning));
      arenas_[i].emplace(planning.plan());
      regions_[i] = make(*arenas_[i]);
    }
  }
  nn::TensorParallelRegion<T>& operator[](std::size_t i) const { return *regions_[i]; }

 private:
  std::array<std::optional<Arena>, chunk_counts.size()> arenas_;
  std::array<std::unique_ptr<nn::TensorParallelRegion<T>>, chunk_counts.size()> regions_;
};

template <class T>
class OverlapBench {
 public:
  OverlapBench(const Bench& bench, const model::LocalSizes& s)
      : bench_(bench),
        s_(s),
        device_(timers_),
        regions_(bench, {.tokens = s.tokens, .width = s.hidden, .tp_size = bench.grid.tp().size()}),
        rows_memory_(regions_[0].rows() * s.hidden) {}

  // Min over rounds in which everything is measured in turn: other processes on the host only add time.
  void run(const GemmShape& p, Table& table) {
    const Buffer<T> weight(p.in * p.out), tokens(s_.tokens * std::max(p.in, p.out));
    const Kokkos::View<std::byte*, MemorySpace> workspace(
        "workspace", kernels::gemm_workspace_bytes<T>(device_.gemm_mode(), built_for, s_.tokens, p.out, p.in));
    device_.set_gemm_workspace(Vector<std::byte>(workspace.data(), workspace.size()));
    const bool transposed = p.op == kernels::Op::transpose;
    const nn::RowGemm<T> gemm{p.op, weight.matrix(transposed ? p.out : p.in, transposed ? p.in : p.out), {}};
    const Matrix<T> rows = rows_memory_.matrix(regions_[0].rows(), s_.hidden);
    const Matrix<T> inner = tokens.matrix(s_.tokens, p.side == Side::gather ? p.out : p.in);

    std::vector<double> alone, moved;
    std::array<std::vector<double>, chunk_counts.size()> both;
    for (int round = 0; round < bench_.options.rounds; ++round) {
      alone.push_back(seconds([&] { multiply_alone(p, gemm, inner); }));
      moved.push_back(seconds([&] { move_alone(p, rows); }));
      for (std::size_t i = 0; i < both.size(); ++i) {
        both[i].push_back(seconds([&] { together(p, regions_[i], gemm, rows, inner); }));
      }
    }
    const double compute = spread_of(alone).min, communication = spread_of(moved).min;
    const double in_turn = spread_of(both[0]).min;
    for (std::size_t i = 1; i < both.size(); ++i) {
      const double overlapped = spread_of(both[i]).min;
      table.rows.push_back({p.name, name_of(scalar_type_of<T>), std::int64_t{chunk_counts[i]}, compute * 1e3,
                            communication * 1e3, in_turn * 1e3, overlapped * 1e3, overlapped / in_turn,
                            std::max(compute, communication) / in_turn});
    }
  }

 private:
  template <class Work>
  double seconds(Work&& work) {
    return comm::max(bench_.grid.tp(), seconds_of(device_, bench_.grid.world(), bench_.options.seconds / 4, work).min);
  }
  // The GEMM only, on the region's buffer of all tokens.
  void multiply_alone(const GemmShape& p, const nn::RowGemm<T>& gemm, const Matrix<T>& inner) {
    const Matrix<T> all = regions_[0].partial_sum({});
    if (p.side == Side::gather) {
      gemm(device_, all, inner);
    } else {
      gemm(device_, inner, all);
    }
  }
  void move_alone(const GemmShape& p, const Matrix<T>& rows) {
    if (p.side == Side::gather) {
      regions_[0].gather(device_, rows);
    } else {
      regions_[0].start_sum(device_, rows).wait();
    }
  }
  void together(const GemmShape& p, nn::TensorParallelRegion<T>& region, const nn::RowGemm<T>& gemm,
                const Matrix<T>& rows, const Matrix<T>& inner) {
    if (p.side == Side::gather) {
      region.all_gather_gemm(device_, {rows, {}}, gemm, inner);
    } else {
      region.gemm_reduce(device_, gemm, inner, rows).wait();
    }
  }

  const Bench& bench_;
  model::LocalSizes s_;
  Timers timers_;
  Device device_;
  Regions<T> regions_;
  Buffer<T> rows_memory_;
};

}  // namespace

void measure_overlap(const Bench& bench, const std::vector<ScalarType>& types) {
  if (bench.grid.tp().size() == 1) return bench.report.line("\nOverlap: tp = 1, nothing to measure");
  const model::LocalSizes s = bench.sizes();
  Table table{
      .key = "overlap",
      .title = fmt::format("GEMMs in chunks, overlapped with all-gather and reduce-scatter: {} tokens, tp = {} by {}",
                           s.tokens, bench.grid.tp().size(), bench.grid.tp().path()),
      .columns = {{"what", "what"},
                  {"type", "type"},
                  {"chunks", "chunks"},
                  {"ms GEMM", "gemm_ms", 3},
                  {"ms communication", "moved_ms", 3},
                  {"ms 1 chunk", "in_turn_ms", 3},
                  {"ms in chunks", "chunks_ms", 3},
                  {"ratio", "ratio", 2},
                  {"best ratio", "bound", 2}},
      .rows = {},
      .note =
          "ratio: time in chunks / time in 1 chunk; best ratio: as if only the longer of GEMM and communication took "
          "time"};
  for (const ScalarType type : types) {
    with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
      OverlapBench<T> overlap(bench, s);
      for (const GemmShape& p : gemms_of(s)) overlap.run(p, table);
    });
  }
  bench.report.add(table);
}

}  // namespace nanotron::apps::bench
