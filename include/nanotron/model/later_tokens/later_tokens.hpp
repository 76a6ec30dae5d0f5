#pragma once

// Layers that predict tokens after the next one (multi-token prediction, DeepSeek-V3 technical report, section 2.2).
// They are appended to the layers of the model, one for each distance k = 1, ..., D. With t_i the input at position i,
// h^0 the hidden states after the final norm, E the token embedding and `head` the output head, both shared:
//
//   x^k_i = W [norm(E t_(i+k)) | norm(h^(k-1)_i)]      W (h, 2h): eh_proj; norms: enorm, hnorm
//   h^k   = norm(layer(x^k))                           a decoder layer as the last one; norm: shared_head.norm
//   p^k_i = head(h^k_i)                                predicts t_(i+k+1)
//
// Training minimises  sum_i loss(p^0_i) + lambda / D sum_k sum_i loss(p^k_i), over the number of targets of p^0. Where
// i + k or its target is past the end of the sequence or of the document, there is no input and no target.
//
// On each rank of a tensor-parallel group W is whole and multiplies the rows of the hidden states that the rank has.

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::model {

/// Of a micro-batch, (appended layers, tokens) each: inputs; targets; losses, overwritten. weight: of each loss beside
/// that of the next token.
struct LaterTokens {
  Vector<const std::int32_t> inputs{}, targets{};
  Vector<double> losses{};
  double weight = 0.0;
};

template <class T>
class AppendedLayers;  // src/model/later_tokens/appended_layers.hpp

void check_later_tokens(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
