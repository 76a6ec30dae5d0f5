#pragma once

#include "nanotron/comm/watch/step_traffic.hpp"

namespace nanotron::nn {

/// What a part of the model communicates per micro-batch. output: the part of forward that recomputation in backward
/// does not repeat; not in `forward`. again: what backward repeats of forward unless recomputation does; not in
/// `backward`. weights: of the weight gradients; not in `backward`.
struct PassTraffic {
  comm::StepTraffic forward{}, backward{}, output{}, again{}, weights{};

  PassTraffic& operator+=(const PassTraffic& other) {
    forward += other.forward;
    backward += other.backward;
    output += other.output;
    again += other.again;
    weights += other.weights;
    return *this;
  }
};

inline PassTraffic operator+(PassTraffic a, const PassTraffic& b) { return a += b; }

}  // namespace nanotron::nn
