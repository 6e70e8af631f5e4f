// The two constants of each stack that keep 1,000 layers trainable: the weight of the residual
// stream, and the gain with which branches start.
//
// DEEPNORM (DeepNet, section 2): x <- LN(alpha * x + f(x)), with the matrices of f that are linear
// in the output (values, attention output, both of the feed-forward block) started beta times
// smaller. N encoder and M decoder layers:
//
//              alpha                   beta
//   encoder    0.81 (N^4 M)^(1/16)     0.87 (N^4 M)^(-1/16)
//   decoder    (3 M)^(1/4)             (12 M)^(-1/4)
//   alone      (2 L)^(1/4)             (8 L)^(-1/4)       one stack of L layers, either of them
//
// 0.81 and 0.87 are used as the paper prints them (exactly 27^(-1/16) and 27^(1/16) / sqrt 2). With
// `adam` the constants balance updates whose size does not depend on the gradient's: alpha =
// k^(1/2) and beta = k^(-1/2) in a stack of k sub-layers (2N, 3M; alone 2L). Other schemes: all
// four are 1 here; see trainer/model/scheme.h. Why it works: docs/design/residuals.md.
//
// Example:
//   ModelSpec model;  // DEEPNORM, 100 encoder and 100 decoder layers
//   MakeDepthScaling(model);  // {3.4157, 0.2063, 4.1618, 0.1699}
#pragma once

#include "proto/model.pb.h"

namespace deepnet {

// Factors, all > 0.
struct DepthScaling {
  double encoder_alpha = 1.0;  // on the residual stream of every encoder sub-layer
  double encoder_beta = 1.0;   // gain of Xavier's deviation, encoder
  double decoder_alpha = 1.0;  // as above, decoder (both attentions and the feed-forward block)
  double decoder_beta = 1.0;

  friend bool operator==(const DepthScaling&, const DepthScaling&) = default;
};

// Returns the constants by the formulas of `model.residual()`, except those that `model.deepnorm()`
// sets; 1 for a stack that the model does not have. The layer counts of the other stacks must be at
// least 1 (launch/validate refuses less).
DepthScaling MakeDepthScaling(const ModelSpec& model);

}  // namespace deepnet
