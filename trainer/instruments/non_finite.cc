// Every rank keeps the earliest place that it sees; the earliest of all ranks is the answer.
#include "trainer/instruments/non_finite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <span>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/model/architecture.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

// Values of a sub-layer in the order of their computation, then those of the output layer, which
// has no others. Only kOutput exists of a layer that is not in a stack.
enum Value { kInput, kBranch, kSum, kOutput, kLoss, kLossGradient };
enum Pass { kForward, kBackward, kNowhere };
constexpr int kStackEnd = 3;  // the part of a layer after its three kinds of sub-layers

// A place in a step. Places are ordered as one rank alone would come to them.
struct StepPlace {
  int pass = kNowhere;
  int layer = 0;     // its position in the chain; backward: from the end of the chain
  int part = 0;      // its kind of sub-layer, or kStackEnd; backward: its parameters from the last
  int value = 0;     // Value; backward: 0
  int received = 0;  // 1: seen by a rank that received it, since the one that made it knows better

  static constexpr int kFields = 5;
  std::array<double, kFields> Fields() const {
    return {double(pass), double(layer), double(part), double(value), double(received)};
  }
  friend auto operator<=>(const StepPlace&, const StepPlace&) = default;
};

class FiniteProbe : public StageProbe {
 public:
  explicit FiniteProbe(RankContext& context)
      : ops_(*context.ops), model_(*context.model), whole_(model_.whole()) {}

  const StepPlace& place() const { return place_; }
  const NonFiniteRecord& record() const { return record_; }

  void AtEnter(const PassContext& pass, const SublayerView& view) override {
    if (!IsFinite(pass, view.stream_RD)) return TellBefore(view.place);
    if (!IsFinite(pass, view.input_RD)) Tell(view.place, kInput, "input");
  }

  void AtLeave(const PassContext& pass, const SublayerView& view) override {
    if (!IsFinite(pass, view.branch_RD)) return Tell(view.place, kBranch, "branch");
    if (view.sum_RD.defined() && !IsFinite(pass, view.sum_RD)) Tell(view.place, kSum, "sum");
  }

  void AfterForward(const Chunk& chunk, const MicrobatchRows& rows,
                    const BoundaryActivations& values) override {
    const LayerSpan span = chunk.spec().layers;
    const auto look_at = [&](int64_t count, const at::Tensor& x_RD, bool labelled) {
      if (!IsFinite(FirstRows(count, x_RD))) TellEnd(LastOf(span, labelled));
    };
    const bool source = chunk.has_source() && values.source_RD.defined();
    if (source) look_at(rows.source.count, values.source_RD, false);
    if (chunk.ends_encoder()) look_at(rows.source.count, values.encoder_output_RD, false);
    if (chunk.has_target()) look_at(rows.target.count, values.target_RD, true);
    if (chunk.has_output()) LookAtGradients(span.end - 1, span.end);
  }

  void AfterBackward(const Chunk& chunk) override {
    const LayerSpan span = chunk.spec().layers;
    LookAtGradients(span.first, chunk.has_output() ? span.end - 1 : span.end);
  }

  void TellLoss() {
    const Layer& output = whole_.layers.back();
    Tell({kForward, output.position, 0, kLoss}, output.name, "loss");
  }

 private:
  // Takes no memory of a device for residual values, as large as they may be.
  bool IsFinite(const at::Tensor& x) {
    if (x.scalar_type() != at::kFloat) return at::isfinite(x.to(at::kCPU)).all().item<bool>();
    sums_.resize((x.numel() + native::kSumSquaresBlock - 1) / native::kSumSquaresBlock);
    const SquareSums sums = {.x = x, .sums = sums_};
    ops_.SumSquares({&sums, 1});
    return std::all_of(sums_.begin(), sums_.end(), [](double sum) { return std::isfinite(sum); });
  }
  bool IsFinite(const PassContext& pass, const at::Tensor& x_RD) {
    return IsFinite(FirstRows(pass.rows->count, x_RD));
  }

  void Tell(const StepPlace& place, const std::string& sublayer, const std::string& value) {
    if (place >= place_) return;
    place_ = place;
    record_.set_pass(place.pass == kForward ? "forward" : "backward");
    record_.set_sublayer(sublayer);
    record_.set_value(value);
  }

  void Tell(const SublayerPlace& place, Value value, const char* name, bool received = false) {
    Tell({kForward, LayerOf(place).position, static_cast<int>(place.kind), value, received},
         BlockName(place), name);
  }

  // Tells of the output of what comes before a sub-layer.
  void TellBefore(const SublayerPlace& place) {
    const int index = SublayerIndex(model_.spec(), place);
    if (index > 0) {
      const SublayerPlace before = SublayerAt(model_.spec(), index - 1);
      if (before.stack == place.stack) return Tell(before, kOutput, "output", /*received=*/true);
    }
    TellEnd(LayerOf(place).position - 1, /*received=*/true);
  }

  // Tells of the output of a layer.
  void TellEnd(int position, bool received = false) {
    const Layer& layer = whole_.layers[position];
    if (layer.stack < 0) {
      return Tell({kForward, position, 0, kOutput, received}, layer.name, "output");
    }
    const int stack = StackOf(layer);
    const bool ends = layer.index + 1 == LayersOf(model_.spec(), stack);
    if (!ends || EndOf(model_.spec()) == StackEnd::kNothing) {
      return Tell({stack, layer.index, SublayerKind::kFeedForward}, kOutput, "output", received);
    }
    Tell({kForward, position, kStackEnd, kOutput, received}, StackName(stack) + kFinalNorm,
         "output");
  }

  int StackOf(const Layer& layer) const { return StackOfKind(model_.spec(), layer.kind); }

  const Layer& LayerOf(const SublayerPlace& place) const {
    const auto found = std::ranges::find_if(whole_.layers, [&](const Layer& layer) {
      return layer.stack >= 0 && layer.index == place.layer && StackOf(layer) == place.stack;
    });
    DEEPNET_CHECK(found != whole_.layers.end())
        << "no layer " << place.layer << " in stack " << place.stack;
    return *found;
  }

  // Returns the position of the last layer of `span` whose rows are the target's, or the source's;
  // the output layer does not count.
  int LastOf(const LayerSpan& span, bool labelled) const {
    int last = span.first;
    for (int i = span.first; i < span.end; ++i) {
      const auto kind = static_cast<LayerKind>(whole_.layers[i].kind);
      if (kind == LayerKind::kOutput) break;
      if ((kind >= LayerKind::kTargetEmbedding) == labelled) last = i;
    }
    return last;
  }

  // Looks at the gradients of the layers [first, end) of the chain.
  void LookAtGradients(int first, int end) {
    const Parameters& parameters = model_.parameters();
    const Inventory& held = parameters.inventory();
    int in_layer = 0, before = -1;
    for (const Use& use : parameters.uses()) {
      in_layer = use.layer == before ? in_layer + 1 : 0;
      before = use.layer;
      const Layer& layer = held.layers[use.layer];
      if (layer.position < first || layer.position >= end) continue;
      if (IsFinite(parameters.gradient().narrow(0, use.gradient_offset, use.count))) continue;
      TellGradient(layer, held.parameters[use.parameter].name, in_layer);
    }
  }

  // The forward pass of the output layer makes its gradients too.
  void TellGradient(const Layer& layer, const std::string& parameter, int in_layer) {
    const std::string value = absl::StrCat("gradient of ", parameter);
    if (layer.computes_loss) {
      return Tell({kForward, layer.position, 0, kLossGradient}, layer.name, value);
    }
    const int later = static_cast<int>(whole_.layers.size()) - layer.position;
    Tell({kBackward, later, -in_layer}, SublayerOf(layer, parameter), value);
  }

  std::string SublayerOf(const Layer& layer, const std::string& parameter) const {
    if (layer.stack < 0) return layer.name;
    for (const SublayerKind kind : {SublayerKind::kSelfAttention, SublayerKind::kCrossAttention}) {
      const std::string block = BlockName({StackOf(layer), layer.index, kind});
      if (absl::StartsWith(parameter, block)) return block;
    }
    return BlockName({StackOf(layer), layer.index, SublayerKind::kFeedForward});
  }

  Ops& ops_;
  const Transformer& model_;
  const Inventory& whole_;
  std::vector<double> sums_;  // of blocks, used again
  StepPlace place_;
  NonFiniteRecord record_;
};

}  // namespace

absl::StatusOr<NonFiniteRecord> LocateNonFinite(const StepBatch& batch, int64_t step,
                                                RankContext& context,
                                                const ExecutorOptions& options) {
  Communicator& world = *context.world;
  FiniteProbe probe(context);
  context.stage->Inspect(&probe);
  const absl::StatusOr<StepResult> result =
      RunTrainStep(batch, step, /*update=*/1, context,
                   {.executor = options, .wanted = [](double, double) { return false; }});
  context.stage->Inspect(nullptr);
  RETURN_IF_ERROR(result.status());
  const std::vector<LossSums>& losses = context.stage->losses();
  const auto is_finite = [](const LossSums& sums) { return std::isfinite(sums.loss); };
  if (!std::ranges::all_of(losses, is_finite)) probe.TellLoss();

  std::vector<std::array<double, StepPlace::kFields>> places(world.size());
  places[world.rank()] = probe.place().Fields();
  const std::span fields(places.front().data(), StepPlace::kFields * places.size());
  RETURN_IF_ERROR(Named(world.AllReduceSum(fields, context.groups.all.limit),
                        "the place of a non-finite value"));
  const auto first = std::min_element(places.begin(), places.end());
  NonFiniteRecord record = probe.record();
  record.set_kind("non_finite");
  record.set_rank(world.rank());
  record.set_host(HostName());
  RETURN_IF_ERROR(BroadcastMessage(world, record, static_cast<int>(first - places.begin())));
  const bool finite = std::isfinite(result->loss) && std::isfinite(result->update.gradient_norm);
  if (first->front() == double(kNowhere) && !finite) {  // each part is finite, their sum is not
    const bool of_losses = !std::isfinite(result->loss);
    record.set_pass(of_losses ? "forward" : "backward");
    record.set_value(of_losses ? "sum of losses" : "sum of gradients");
  }
  return record;
}

std::string NonFiniteLine(const NonFiniteRecord& record) {
  if (record.pass().empty()) {
    return "computed once more, all values were finite: a processor or its memory may be faulty";
  }
  if (record.sublayer().empty()) return absl::StrCat("first in the ", record.value());
  return absl::StrCat("first in the ", record.pass(), " pass of ", record.sublayer(), ": ",
                      record.value(), " (rank ", record.rank(), " on ", record.host(), ")");
}

}  // namespace deepnet
