#pragma once

// The file of the log-probabilities of the answers of all pairs by the reference model: text, which numpy.loadtxt
// reads.
//
//   # log-probabilities of chosen and rejected answers by the reference model
//   # pairs = 2
//   # data = 3c0f...           of each file of pairs, its TokenHashes::content
//   # weights = checkpoint 17ab...
//   # compute = bf16
//   -12.25 -17.5               a line for each pair, in the order of the files
//   -3.125 -8.75
//   # hash = 9e41...           of all bytes before this line

#include <cstdint>
#include <string>
#include <vector>

namespace nanotron::trainer {

struct ReferenceFile {
  std::vector<std::uint64_t> data;        // what identifies the files of pairs
  std::string weights, compute;           // of the reference model; its precision%compute
  std::vector<double> log_probabilities;  // (pairs, 2): chosen, rejected
};

std::string text_of(const ReferenceFile& file);

/// Error(data_error), with `path`, for a text that text_of() has not written, or that was changed.
ReferenceFile parse_reference(const std::string& text, const std::string& path);

}  // namespace nanotron::trainer
