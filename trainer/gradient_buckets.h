// The parts of a rank's gradient that are handed over to be summed, each as soon as it is complete.
#pragma once

#include <vector>

#include "parallel/plan/shard.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// In the order of the gradient. The output layer, to which the loss adds, is one of its own,
// complete with a virtual replica's last forward pass. The other layers of a chunk are cut where
// LayerGroupEnds has a group end: complete when its last backward pass, or its last weight
// gradients if they are deferred, is through with the bucket's first layer.
std::vector<GradientBucket> MakeBuckets(const Transformer& model);

}  // namespace deepnet
