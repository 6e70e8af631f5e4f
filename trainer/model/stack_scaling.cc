#include "trainer/model/stack_scaling.h"

#include <algorithm>
#include <optional>

#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// Collects values of a range.
class Collector {
 public:
  void Add(double value) {
    if (!range_.has_value()) range_ = ValueRange{value, value};
    range_->least = std::min(range_->least, value);
    range_->greatest = std::max(range_->greatest, value);
  }
  ValueRange range() const { return range_.value_or(ValueRange()); }

 private:
  std::optional<ValueRange> range_;
};

}  // namespace

StackScaling MakeStackScaling(const ModelSpec& model, int stack) {
  Collector alpha, beta, query_key;
  const int before = stack == 0 ? 0 : NumSublayers(model, 0);
  for (int i = before; i < before + NumSublayers(model, stack); ++i) {
    const SublayerPlace at = SublayerAt(model, i);
    const SublayerScheme scheme = MakeSublayerScheme(model, stack, at.layer, at.kind);
    alpha.Add(scheme.alpha * (scheme.stream_scale != 0 ? scheme.stream_scale : 1.0));
    const auto gain = [&](Role role, bool last) {
      return InitialGain(model, stack, at.layer, at.kind, role, last);
    };
    if (at.kind == SublayerKind::kFeedForward) {
      for (const bool last : {false, true}) beta.Add(gain(Role::kFeedForward, last));
      continue;
    }
    for (const Role role : {Role::kQuery, Role::kKey}) query_key.Add(gain(role, false));
    beta.Add(gain(Role::kValue, false));
    beta.Add(gain(Role::kAttentionOutput, true));
  }
  return {alpha.range(), beta.range(), query_key.range()};
}

}  // namespace deepnet
