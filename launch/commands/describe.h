// `describe` and `lab audit` print these alike: the effect of a scheme on each stack
// (trainer/model/scheme.h) and ranges.
#pragma once

#include <string>

#include "parallel/base/json.h"
#include "proto/model.pb.h"

namespace deepnet {

// A line of heads, a line for each stack that the model has, a line that explains them:
//   POST_LN_INIT               alpha            beta            q, k
//     encoder                 1.0000  0.1667..1.0000  0.1667..1.0000
//   alpha: on the stream; gains of ...
std::string ScalingText(const ModelSpec& model);

// Returns the same of one stack, 0 the encoder, for programs.
JsonObject ScalingJson(const ModelSpec& model, int stack);

// "0.2500", or "0.2500..1.0000" where the two differ.
std::string RangeText(double least, double greatest);

}  // namespace deepnet
