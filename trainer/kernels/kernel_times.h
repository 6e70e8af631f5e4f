// When kernels ran, and how long the ways to compute a product take.
#pragma once

#include <string>
#include <vector>

#include "parallel/base/product.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet {

// Says when a kernel or a copy of a GPU ran, or an operation of a CPU, where a norm without a gain
// has a name of its own. Times are seconds of SecondsNow().
struct TimedKernel {
  const char* name;    // a literal
  double asked = 0.0;  // when the host launched it; on a CPU `start`
  double start = 0.0, end = 0.0;
  ProductShape product = {};
};

// Names a product of a model; `bench products` measures what each way of computing it takes.
struct ProductTask {
  ProductShape shape;
  native::Element operand = native::Element::kFloat32;
  bool float_result = true;  // else of the operand's element
  bool accumulate = false;   // the result is added to what is there
  // These follow in a model: a bias and max(0, .) a forward product, ReLU's backward pass one of
  // inputs' gradients, the column sums for a bias one of weights' gradients.
  bool bias = false, relu = false;
  bool may_split = false;  // the sum may be cut into parts, which are added in a fixed order
  int repeats = 50;        // of the fastest way's result, for its bits; >= 1
};

struct ProductWay {
  std::string name;
  double seconds = 0.0;   // of a call; 0: there is no such way here
  std::string algorithm;  // how a library tells it from its others
  int candidates = 0;     // of which it is the fastest
  int unequal = 0;        // of the repeats: results with other bits than the first
};

// Times cuBLASLt's algorithms for the product, with and without what it can do on the way to
// memory, on the calling thread's current GPU, with operands that are not in its caches:
//   first      the heuristic's first algorithm, as products of a run take it
//   best       the fastest of what the heuristic proposes
//   split      the fastest where sums may be cut, partial sums being float32 in the workspace
//   plain      the fastest without an epilogue
//   plain + K  the fastest plain or split one, then the kernel K that does what an epilogue can
//   E          the fastest with the epilogue E, split where that is allowed
// A way that the task does not ask for is left out; one that cuBLASLt has nothing for has no
// seconds. Throws GpuError.
std::vector<ProductWay> TryProduct(const ProductTask& task);

}  // namespace deepnet
