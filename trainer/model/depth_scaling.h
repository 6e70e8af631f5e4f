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

// The numbers of a stack's sub-layers, from the smallest to the greatest.
struct ValueRange {
  double least = 0.0, greatest = 0.0;

  friend bool operator==(const ValueRange&, const ValueRange&) = default;
};

// A stack as its scheme makes it, for people to read. All 0 for a stack that the model does not
// have.
struct StackScaling {
  ValueRange alpha;      // on the stream where a branch joins it: alpha, times omega at first
  ValueRange beta;       // gain of values, attention outputs and feed-forward matrices
  ValueRange query_key;  // gain of queries and keys

  friend bool operator==(const StackScaling&, const StackScaling&) = default;
};

// Reads the numbers off the values that the model itself is made from (trainer/model/scheme.h), for
// any scheme. `stack`: 0 encoder, 1 decoder. Gains are factors on Xavier's deviation
// sqrt(2 / (in + out)).
//
// Example, DEEPNORM with 100 encoder and 100 decoder layers:
//   MakeStackScaling(model, 0);  // {.alpha = {3.4157, 3.4157}, .beta = {0.2063, 0.2063},
//                                //  .query_key = {1, 1}}
StackScaling MakeStackScaling(const ModelSpec& model, int stack);

}  // namespace deepnet
