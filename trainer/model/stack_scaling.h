// What a scheme does to a stack in numbers, read off the values that the model itself is made from
// (trainer/model/scheme.h): how heavily sub-layers hold on to their stream, how large their
// matrices start. Where sub-layers differ, from the smallest to the greatest. Pure.
//
// Example, DEEPNORM with 100 encoder and 100 decoder layers:
//   MakeStackScaling(model, 0);  // {.alpha = {3.4157, 3.4157}, .beta = {0.2063, 0.2063},
//                                //  .query_key = {1, 1}}
#pragma once

#include "proto/model.pb.h"

namespace deepnet {

struct ValueRange {
  double least = 0.0, greatest = 0.0;

  friend bool operator==(const ValueRange&, const ValueRange&) = default;
};

// Factors; all 0 for a stack that the model does not have.
struct StackScaling {
  ValueRange alpha;      // on the stream where a branch joins it: alpha, times omega at first
  ValueRange beta;       // gain of values, attention outputs and feed-forward matrices
  ValueRange query_key;  // gain of queries and keys

  friend bool operator==(const StackScaling&, const StackScaling&) = default;
};

// `stack`: 0 encoder, 1 decoder. Gains are of Xavier's deviation sqrt(2 / (in + out)).
StackScaling MakeStackScaling(const ModelSpec& model, int stack);

}  // namespace deepnet
