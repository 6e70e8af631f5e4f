#include "trainer/gradient_buckets.h"

#include <algorithm>

#include "parallel/plan/shard.h"
#include "trainer/model/describe.h"

namespace deepnet {

std::vector<GradientBucket> MakeBuckets(const Transformer& model) {
  const std::vector<int> ends = LayerGroupEnds(Describe(model.spec(), model.capacity()));
  std::vector<GradientBucket> buckets;
  int before = 0;  // layers of the rank in earlier chunks
  for (int c = 0; c < static_cast<int>(model.chunks().size()); ++c) {
    const Chunk& chunk = model.chunks()[c];
    const LayerSpan span = chunk.spec().layers;
    const int here = before - span.first;  // from a layer of the chain to the rank's own number
    const auto add = [&](int from, int to, bool in_forward) {
      const GradientSpan range = model.parameters().GradientRange(from + here, to + here);
      if (range.count > 0) buckets.push_back({range.begin, range.count, c, from, in_forward});
    };
    const int output = chunk.has_output() ? span.end - 1 : span.end;
    for (int from = span.first; from < output;) {
      const int to = std::min(output, *std::upper_bound(ends.begin(), ends.end(), from));
      add(from, to, /*in_forward=*/false);
      from = to;
    }
    add(output, span.end, /*in_forward=*/true);
    before += span.NumLayers();
  }
  return buckets;
}

}  // namespace deepnet
