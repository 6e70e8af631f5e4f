// What the paper gives DEEPNORM, from the numbers of layers alone: the side of the audit that
// shares no code with the model (trainer/model/depth_scaling.h is not asked). Pure.
#pragma once

#include "proto/model.pb.h"

namespace deepnet {

struct PaperScaling {
  double alpha = 1.0;  // on the residual stream
  double beta = 1.0;   // gain of values, attention outputs and feed-forward matrices
};

// Of a stack that `model` (DEEPNORM) has: DeepNet, figure 2, or section 4.3 for a stack alone; what
// model.deepnorm asks for instead as docs/design/residuals.md says.
PaperScaling PaperScalingOf(const ModelSpec& model, int stack);

}  // namespace deepnet
