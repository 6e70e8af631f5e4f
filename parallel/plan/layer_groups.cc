#include "parallel/plan/layer_groups.h"

#include <algorithm>

namespace deepnet {
namespace {

int64_t GradientElements(const Inventory& whole, const Layer& layer) {
  int64_t elements = 0;
  for (const int p : layer.parameters) elements += whole.parameters[p].NumElements();
  return elements;
}

}  // namespace

std::vector<int> LayerGroupEnds(const Inventory& whole) {
  int64_t total = 0;
  for (const Layer& layer : whole.layers) total += GradientElements(whole, layer);
  const int64_t most = std::min(kGroupElements, total / kLeastGroups);
  std::vector<int> ends;
  int64_t filled = 0;
  for (int l = 0; l < static_cast<int>(whole.layers.size()); ++l) {
    const int64_t elements = GradientElements(whole, whole.layers[l]);
    if (l > 0 && filled + elements > most) {
      ends.push_back(l);
      filled = 0;
    }
    filled += elements;
  }
  if (!whole.layers.empty()) ends.push_back(static_cast<int>(whole.layers.size()));
  return ends;
}

}  // namespace deepnet
