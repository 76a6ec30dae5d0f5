#pragma once

#include "nanotron/comm/step_traffic.hpp"

namespace nanotron::nn {

/// What a part of the model communicates per micro-batch.
struct PassTraffic {
  comm::StepTraffic forward{}, backward{};

  PassTraffic& operator+=(const PassTraffic& other) {
    forward += other.forward;
    backward += other.backward;
    return *this;
  }
};

inline PassTraffic operator+(PassTraffic a, const PassTraffic& b) { return a += b; }

}  // namespace nanotron::nn
