// `describe` and `lab audit` print these alike: the effect of a scheme on each stack
// (trainer/model/depth_scaling.h), ranges and lists.
#pragma once

#include <string>

#include "absl/strings/str_join.h"

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

// "0.2500", or "0.2500..1.0000" where the two differ.
std::string RangeText(double least, double greatest);

// Returns `items` as elements of a JSON array, one to a line.
template <typename Items, typename ToJson>
std::string JsonLines(const Items& items, const ToJson& to_json) {
  return absl::StrJoin(items, ",\n    ",
                       [&](std::string* out, const auto& item) { *out += to_json(item); });
}

}  // namespace deepnet
