#include "benches.hpp"

#include <chrono>
#include <thread>

#include "nanotron/parallel/pipeline/pipeline.hpp"

namespace nanotron::apps::bench {
namespace {

using parallel::Action;
using parallel::Work;

// Sleeps for as long as a virtual stage of a model would take; with two of them per rank each has half the layers.
class Delays final : public parallel::PipelineStages<float> {
 public:
  Delays(const parallel::PipelineSchedule& schedule, double unit, index_t rows, index_t columns)
      : unit_(unit / schedule.virtual_stages), memory_(rows * columns), rows_(rows), columns_(columns) {}

  // The contents do not matter, so all calls return one buffer.
  Matrix<float> input(index_t, index_t) override { return memory_.matrix(rows_, columns_); }
  Matrix<float> output(index_t, index_t) override { return memory_.matrix(rows_, columns_); }
  Matrix<float> gradient_buffer(index_t) override { return memory_.matrix(rows_, columns_); }
  void forward(const Action&, index_t) override { sleep(1); }
  void backward(const Action& a, index_t, Matrix<float>) override { sleep(a.work == Work::backward ? 2 : 1); }
  void backward_weight(const Action&, index_t) override { sleep(1); }

 private:
  void sleep(int units) const { std::this_thread::sleep_for(std::chrono::duration<double>(units * unit_)); }

  double unit_;
  Buffer<float> memory_;
  index_t rows_, columns_;
};

struct Kind {
  const char* name;
  deck::PpSchedule schedule;
  int virtual_stages;
};

constexpr Kind kinds[] = {{"gpipe", deck::PpSchedule::gpipe, 1},
                          {"1f1b", deck::PpSchedule::one_f_one_b, 1},
                          {"interleaved_1f1b", deck::PpSchedule::interleaved_1f1b, 2},
                          {"zero_bubble", deck::PpSchedule::zero_bubble, 2}};

}  // namespace

void measure_pipelines(const Bench& bench, const std::vector<ScalarType>&) {
  constexpr double unit = 0.02;  // seconds of a rank's forward
  comm::Group ranks(comm::Communicator::duplicate(bench.grid.world().mpi()), bench.grid.tp().transport());
  if (ranks.size() == 1) return bench.report.line("\nPipelines: one rank, nothing to measure");
  Table table{
      .key = "pipelines",
      .title = fmt::format("Pipelines of {} ranks, delays of {:.0f} ms instead of a forward", ranks.size(), unit * 1e3),
      .columns = {{"schedule", "schedule"},
                  {"micro-batches", "micro_batches"},
                  {"% bubble, theory", "counted"},
                  {"% measured", "measured"},
                  {"ms idle, theory", "counted_ms"},
                  {"ms measured", "measured_ms"}},
      .rows = {},
      .note = "idle: time of a step minus the work of its busiest rank; theory: all forwards take the same time"};
  Timers timers;
  Device device(timers);
  const model::LocalSizes s = bench.sizes();
  for (const Kind& kind : kinds) {
    const index_t micro_batches = 2 * ranks.size();
    const parallel::PipelineSchedule schedule =
        parallel::make_schedule(kind.schedule, ranks.size(), kind.virtual_stages, micro_batches);
    const parallel::Timeline timeline = parallel::simulate(schedule);
    Delays delays(schedule, unit, s.hidden_rows, s.hidden);
    parallel::Pipeline<float> pipeline(schedule, ranks, delays, device);
    double least = 1e300;
    for (int i = 0; i < 4; ++i) {
      comm::barrier(ranks);
      const double begin = wall_seconds();
      pipeline.run();
      least = std::min(least, comm::max(ranks, wall_seconds() - begin));
    }
    const double unit_of_stage = unit / kind.virtual_stages, work = static_cast<double>(timeline.work) * unit_of_stage;
    table.rows.push_back({kind.name, micro_batches, 100.0 * timeline.bubble(), 100.0 * (1.0 - work / least),
                          static_cast<double>(timeline.length - timeline.work) * unit_of_stage * 1e3,
                          (least - work) * 1e3});
  }
  bench.report.add(table);
}

}  // namespace nanotron::apps::bench
