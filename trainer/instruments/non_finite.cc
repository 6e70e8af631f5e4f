#include "trainer/instruments/non_finite.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <ATen/ATen.h>

#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/messages.h"
#include "trainer/model/architecture.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

// Places in the order in which a step comes to them: forward passes, the loss, backward passes.
constexpr double kLoss = 1e9, kBackward = 2e9, kNowhere = 1e18;
constexpr int kValues = 4;  // of a sub-layer, in the order of their computation

bool IsFinite(const at::Tensor& x) { return at::isfinite(x).all().item<bool>(); }

// Keeps the first place that it is told of.
class FirstPlace {
 public:
  double place() const { return place_; }
  const NonFiniteRecord& record() const { return record_; }

  void Tell(double place, const std::string& pass, const std::string& sublayer,
            const std::string& value) {
    if (place >= place_) return;
    place_ = place;
    record_.set_pass(pass);
    record_.set_sublayer(sublayer);
    record_.set_value(value);
  }

 private:
  double place_ = kNowhere;
  NonFiniteRecord record_;
};

class ForwardProbe : public SublayerProbe {
 public:
  ForwardProbe(const ModelSpec& model, FirstPlace& first) : model_(model), first_(first) {}

  void AtEnter(const PassContext& pass, const SublayerView& view) override {
    Look(pass, view, 0, "stream", view.stream_RD);
    Look(pass, view, 1, "input", view.input_RD);
  }
  void AtLeave(const PassContext& pass, const SublayerView& view) override {
    Look(pass, view, 2, "branch", view.branch_RD);
    if (view.sum_RD.defined()) Look(pass, view, 3, "sum", view.sum_RD);
  }

 private:
  void Look(const PassContext& pass, const SublayerView& view, int value, const char* name,
            const at::Tensor& x_RD) {
    if (IsFinite(FirstRows(pass.rows->count, x_RD))) return;
    const SublayerPlace place{view.stack, view.layer, view.kind};
    first_.Tell(SublayerIndex(model_, place) * kValues + value, "forward",
                LayerPrefix(view.stack, view.layer) + BaseName(view.kind), name);
  }

  const ModelSpec& model_;
  FirstPlace& first_;
};

// Returns the sub-layer of a parameter of `layer`: "encoder.layers.3.self_attn".
std::string SublayerOf(const Layer& layer, const std::string& parameter) {
  if (layer.stack < 0) return layer.name;
  for (const SublayerKind kind : {SublayerKind::kSelfAttention, SublayerKind::kCrossAttention}) {
    const std::string name = absl::StrCat(layer.name, ".", BaseName(kind));
    if (absl::StartsWith(parameter, name)) return name;
  }
  return absl::StrCat(layer.name, ".", BaseName(SublayerKind::kFeedForward));
}

// Looks at the gradients of the layer at `position` in the chain; -1: of all layers.
void LookAtGradients(const Parameters& parameters, int position, FirstPlace& first) {
  const Inventory& inventory = parameters.inventory();
  for (size_t i = 0; i < parameters.uses().size(); ++i) {
    const Use& use = parameters.uses()[i];
    const Layer& layer = inventory.layers[static_cast<size_t>(use.layer)];
    if (position >= 0 && layer.position != position) continue;
    if (IsFinite(parameters.gradient().narrow(0, use.gradient_offset, use.count))) continue;
    const std::string& name = inventory.parameters[static_cast<size_t>(use.parameter)].name;
    constexpr double kUses = 1e4;  // of a layer at most
    first.Tell(kBackward + kLoss - layer.position * kUses - static_cast<double>(i % 10000),
               "backward", SublayerOf(layer, name), absl::StrCat("gradient of ", name));
  }
}

// Fills `first` with what this rank sees.
absl::Status Look(const StepBatch& batch, int64_t step, RankContext& context,
                  const ExecutorOptions& options, FirstPlace& first) {
  const Parameters& parameters = context.model->parameters();
  ForwardProbe probe(context.model->spec(), first);
  context.stage->Watch(&probe, /*all_microbatches=*/true);
  context.stage->WatchGradients([&](int layer) { LookAtGradients(parameters, layer, first); });
  StepResult result;
  const absl::Status computed = ComputeGradient(batch, step, context, options, result);
  context.stage->Watch(nullptr);
  context.stage->WatchGradients(nullptr);
  RETURN_IF_ERROR(computed);
  // The norm waits for the device, so the losses are there too.
  RETURN_IF_ERROR(context.optimizer->Norm(*context.ops, parameters).status());
  for (const LossSums& loss : context.stage->losses()) {
    if (!std::isfinite(loss.loss)) first.Tell(kLoss, "forward", "output", "loss");
  }
  if (first.place() == kNowhere) LookAtGradients(parameters, -1, first);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NonFiniteRecord> LocateNonFinite(const StepBatch& batch, int64_t step,
                                                RankContext& context,
                                                const ExecutorOptions& options) {
  Communicator& world = *context.world;
  FirstPlace first;
  RETURN_IF_ERROR(Look(batch, step, context, options, first));
  std::vector<double> places(static_cast<size_t>(world.size()));
  places[static_cast<size_t>(world.rank())] = first.place();
  RETURN_IF_ERROR(world.AllReduceSum(std::span(places), context.groups.all.limit));
  const auto least = std::min_element(places.begin(), places.end());
  NonFiniteRecord record = first.record();
  record.set_kind("non_finite");
  record.set_rank(world.rank());
  record.set_host(HostName());
  ASSIGN_OR_RETURN(const std::string text, BroadcastText(world, record.SerializeAsString(),
                                                         static_cast<int>(least - places.begin())));
  RETURN_IF_ERROR(ParseSent(text, record));
  return record;
}

std::string NonFiniteLine(const NonFiniteRecord& record) {
  if (record.sublayer().empty()) {
    return "computed once more, the step was finite: a processor or its memory may be faulty";
  }
  return absl::StrCat("first in the ", record.pass(), " pass of ", record.sublayer(), ": ",
                      record.value(), " (rank ", record.rank(), " on ", record.host(), ")");
}

}  // namespace deepnet
