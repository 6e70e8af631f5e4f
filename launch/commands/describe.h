// The effect of a scheme on each stack (trainer/model/depth_scaling.h), as `describe` and `lab
// audit` print it.
#pragma once

#include <string>

#include "proto/model.pb.h"

namespace deepnet {

// A line of heads, a line for each stack that the model has, a line that explains them:
//   POST_LN_INIT               alpha            beta            q, k
//     encoder                 1.0000  0.1667..1.0000  0.1667..1.0000
//   alpha: on the stream; gains of ...
std::string ScalingText(const ModelSpec& model);

// {"layers": 6, "least_alpha": 1, "greatest_alpha": 1, "least_beta": ..., "greatest_beta": ...,
//  "least_query_key": ..., "greatest_query_key": ...}
std::string ScalingJson(const ModelSpec& model, int stack);

}  // namespace deepnet
