#pragma once
// List files: '@blend.txt' in data%path, data%validation_path or a stage of data%stages stands for the token files that
// a text names.
//
//   # a weight and a path; paths begin at the folder of the list
//   0.7  web/part-0.h5
//   0.3  "with blanks/part-1.h5"
//
// A word is a path, or name=path, and a number before it is its weight. Several on a line are one after another, as in
// the files of Megatron-LM's --data-args-path. All have weights, or none.

#include <map>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/data.hpp"

namespace nanotron::deck::detail {

/// The list files that the keys name.
std::vector<std::string> lists_in(const DataConfig& data);

/// Replaces them by what they list. sources: the numbers of their texts in origin.sources. In data.stages a list
/// becomes weights of all files in their order; files that only stages list are added to data.path, with weight 0
/// before. Notes where each line of data.path and data.validation_path comes from: origin.spots["data.path(17)"].
void expand_lists(const std::map<std::string, std::size_t>& sources, DataConfig& data, Origin& origin,
                  Findings& findings);

}  // namespace nanotron::deck::detail
