// How a backward pass tells which layers have all their gradients.
#pragma once

#include <functional>

namespace deepnet {

// Called with a layer's position in the chain of the whole model, after the pass has added
// everything that it adds to that layer's gradients. A pass calls it for each of its layers, from
// the last to the first.
using LayerDone = std::function<void(int layer)>;

}  // namespace deepnet
