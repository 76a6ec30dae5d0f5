#pragma once
// What &parallel says of tensor and context parallelism.

namespace nanotron::deck {

enum class TpMode { all_reduce, reduce_scatter };
enum class GatheredInputs { gather_again, keep };
enum class CpMode { ring, all_to_all };

}  // namespace nanotron::deck
