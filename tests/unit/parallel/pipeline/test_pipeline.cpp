// ranks: 1 2 3 4
// What a pipeline hands from stage to stage, seen by stages that write down who was there.

#include "nanotron/parallel/pipeline/pipeline.hpp"

#include <gtest/gtest.h>

#include "support/device_values.hpp"
#include "support/world.hpp"

namespace nanotron::parallel {
namespace {

using deck::PpSchedule;

// A micro-batch m is a matrix of m + 1; every stage s computes x <- 3 x + s forward and dx <- 5 dx + s backward. The
// last stage begins the gradient with its output.
class Recorder final : public PipelineStages<double> {
 public:
  static constexpr index_t rows = 7, columns = 11;

  Recorder(const PipelineSchedule& schedule, int rank, const Device& device)
      : schedule_(schedule), rank_(rank), exec_(device.exec()) {
    const Slots slots = assign_slots(schedule.actions[static_cast<std::size_t>(rank)], schedule.virtual_stages);
    for (const index_t count : slots.of_stage) {
      inputs_.emplace_back();
      outputs_.emplace_back();
      for (index_t i = 0; i < count; ++i) {
        inputs_.back().emplace_back("input", rows, columns);
        outputs_.back().emplace_back("output", rows, columns);
      }
    }
    for (index_t i = 0; i < gradient_buffers(schedule, rank); ++i) gradients_.emplace_back("dx", rows, columns);
  }

  Matrix<double> input(index_t virtual_stage, index_t slot) override { return view(inputs_, virtual_stage, slot); }
  Matrix<double> output(index_t virtual_stage, index_t slot) override { return view(outputs_, virtual_stage, slot); }
  Matrix<double> gradient_buffer(index_t i) override {
    return Matrix<double>(gradients_[static_cast<std::size_t>(i)].data(), rows, columns);
  }

  void forward(const Action& a, index_t slot) override {
    const int stage = schedule_.stage_of(rank_, a.virtual_stage);
    if (stage == 0) fill(input(a.virtual_stage, slot), static_cast<double>(a.micro_batch) + 1);
    EXPECT_EQ(value(input(a.virtual_stage, slot)), behind(stage, a.micro_batch)) << "input of stage " << stage;
    fill(output(a.virtual_stage, slot), behind(stage + 1, a.micro_batch));
    ++forwards;
  }

  void backward(const Action& a, index_t slot, Matrix<double> dx) override {
    const int stage = schedule_.stage_of(rank_, a.virtual_stage);
    EXPECT_EQ(value(output(a.virtual_stage, slot)), behind(stage + 1, a.micro_batch)) << "output of stage " << stage;
    if (stage + 1 == schedule_.stages()) fill(dx, value(output(a.virtual_stage, slot)));
    EXPECT_EQ(value(dx), in_front_of(stage + 1, a.micro_batch)) << "gradient behind stage " << stage;
    fill(dx, in_front_of(stage, a.micro_batch));
    ++backwards;
  }

  void backward_weight(const Action& a, index_t slot) override {
    EXPECT_EQ(value(input(a.virtual_stage, slot)), behind(schedule_.stage_of(rank_, a.virtual_stage), a.micro_batch));
    ++weights;
  }

  index_t forwards = 0, backwards = 0, weights = 0;

 private:
  using Memory = Kokkos::View<double**, Kokkos::LayoutRight, MemorySpace>;

  static Matrix<double> view(std::vector<std::vector<Memory>>& all, index_t virtual_stage, index_t slot) {
    return Matrix<double>(all[static_cast<std::size_t>(virtual_stage)][static_cast<std::size_t>(slot)].data(), rows,
                          columns);
  }
  void fill(const Matrix<double>& m, double value) const {
    test::set_values(m, std::vector<double>(rows * columns, value), exec_);
  }
  double value(const Matrix<double>& m) const {
    const std::vector<double> values = test::values_of(m, exec_);
    for (const double x : values) EXPECT_EQ(x, values.front());
    return values.front();
  }
  // The activations between stage - 1 and stage.
  static double behind(int stage, index_t micro_batch) {
    double x = static_cast<double>(micro_batch) + 1;
    for (int s = 0; s < stage; ++s) x = 3 * x + s;
    return x;
  }
  // Their gradient.
  double in_front_of(int stage, index_t micro_batch) const {
    double dx = behind(schedule_.stages(), micro_batch);
    for (int s = schedule_.stages() - 1; s >= stage; --s) dx = 5 * dx + s;
    return dx;
  }

  const PipelineSchedule& schedule_;
  int rank_;
  ExecutionSpace exec_;
  std::vector<std::vector<Memory>> inputs_, outputs_;
  std::vector<Memory> gradients_;
};

TEST(Pipeline, EveryStageGetsWhatTheOneBeforeItMade) {
  comm::Group group(comm::Communicator::duplicate(test::world()), test::device_transport());
  Timers timers;
  Device device(timers);
  const std::pair<PpSchedule, int> cases[] = {{PpSchedule::gpipe, 1},
                                              {PpSchedule::one_f_one_b, 1},
                                              {PpSchedule::interleaved_1f1b, 2},
                                              {PpSchedule::interleaved_1f1b, 3},
                                              {PpSchedule::zero_bubble, 2}};
  for (const auto& [kind, virtual_stages] : cases) {
    if (group.size() == 1 && kind == PpSchedule::interleaved_1f1b) continue;  // a rank does not write to itself
    for (const index_t micro_batches : {index_t{1}, index_t{2}, index_t{5}, index_t{9}}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(kind) << " virtual_stages " << virtual_stages << " m "
                                      << micro_batches);
      const PipelineSchedule schedule = make_schedule(kind, group.size(), virtual_stages, micro_batches);
      Recorder recorder(schedule, group.rank(), device);
      if (group.transport() == comm::Transport::nccl && kind == PpSchedule::interleaved_1f1b && group.size() > 2 &&
          micro_batches >= 2 * group.size() && micro_batches % group.size() != 0) {
        EXPECT_THROW(Pipeline<double>(schedule, group, recorder, device), Error);
        continue;
      }
      Pipeline<double> pipeline(schedule, group, recorder, device);
      for (int step = 1; step <= 2; ++step) {
        pipeline.run();
        pipeline.run_forward();
        EXPECT_EQ(recorder.forwards, 2 * step * virtual_stages * micro_batches);
        EXPECT_EQ(recorder.backwards, step * virtual_stages * micro_batches);
        EXPECT_EQ(recorder.weights, kind == PpSchedule::zero_bubble ? recorder.backwards : 0);
      }
    }
  }
}

}  // namespace
}  // namespace nanotron::parallel
