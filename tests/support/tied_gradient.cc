#include "tests/support/tied_gradient.h"

#include <map>
#include <vector>

#include "trainer/kernels/aten.h"

namespace deepnet::testing {

void FoldTied(Parameters& parameters, Ops& ops) {
  const at::Tensor& gradient = parameters.gradient();
  std::map<int, Use> firsts;  // by parameter
  for (const Use& use : parameters.uses()) {
    const auto [first, is_new] = firsts.try_emplace(use.parameter, use);
    if (is_new) continue;
    ops.Add(gradient.narrow(0, first->second.gradient_offset, use.count),
            gradient.narrow(0, use.gradient_offset, use.count));
  }
}

at::Tensor FlatGradient(const Parameters& parameters) {
  std::vector<at::Tensor> pieces;
  for (const Parameter& p : parameters.inventory().parameters) {
    pieces.push_back(parameters.Gradient(p.name).reshape({-1}).to(at::Device(at::kCPU)));
  }
  return at::cat(pieces);
}

}  // namespace deepnet::testing
