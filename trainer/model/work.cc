#include "trainer/model/work.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"
#include "trainer/model/chunk.h"
#include "trainer/model/cost_ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// A microbatch is taken to be full of sentences of so many positions: max_sentences is what may be
// in it. Where it holds fewer, they are longer.
constexpr int64_t kSentenceRows = 25;
constexpr int64_t kAlignment = 16;  // elements: what aligns them aligns their bytes

using Kernels = std::vector<KernelWork>;

// All that a layer's launches depend on besides the model and its microbatch.
struct LayerPlace {
  std::vector<LayerKind> kinds;         // of the layer before it, its own, of the layer after it
  std::vector<SublayerScheme> schemes;  // of the layer before it and its own
  std::vector<int64_t> offsets;         // of its parameters, modulo kAlignment

  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

class CostPasses {
 public:
  CostPasses(const ModelSpec& model, const MicrobatchSpec& microbatch, CostOps& ops,
             const Inventory& whole)
      : model_(model),
        microbatch_(microbatch),
        ops_(ops),
        whole_(whole),
        parameters_(whole, ops, /*trainable=*/true) {
    ops.SetLabels(parameters_);
    // Fixed positions are a table, whose size costs nothing.
    if (model.positions() != LEARNED) model_.set_max_positions(1);
  }

  LayerPlace PlaceOf(int layer) const {
    LayerPlace place;
    const int end = std::min<int>(layer + 2, static_cast<int>(whole_.layers.size()));
    for (int l = std::max(0, layer - 1); l < end; ++l) {
      const Layer& at = whole_.layers[l];
      place.kinds.push_back(at.kind);
      if (!IsInStack(l) || l > layer) continue;
      const int stack = StackOfKind(model_, at.kind);
      const int first = SublayerIndex(model_, {stack, at.index});
      for (int i = first; i < first + SublayersPerLayer(model_, stack); ++i) {
        SublayerScheme scheme = MakeSublayerScheme(model_, SublayerAt(model_, i));
        // Factors are there or not; how large they are costs nothing.
        scheme.alpha = scheme.alpha != 0 ? 1 : 0;
        scheme.input_scale = scheme.input_scale != 1 ? 2 : 1;
        scheme.stream_scale = scheme.stream_scale != 0 ? 1 : 0;
        scheme.initial_branch_scale = 1;
        place.schemes.push_back(scheme);
      }
    }
    for (const int parameter : whole_.layers[layer].parameters) {
      place.offsets.push_back(whole_.parameters[parameter].offset % kAlignment);
    }
    return place;
  }

  // The work of layers [first, end), which the layers of `span` run.
  std::vector<LayerWork> WorkOf(const LayerSpan& span) const {
    std::vector<LayerWork> works = Run(span, NONE);
    for (const Recompute level : {SELECTIVE_FFN, SELECTIVE_GEMM}) {
      const std::vector<LayerWork> recomputed = Run(span, level);
      for (size_t i = 0; i < works.size(); ++i) {
        Kernels& again = works[i].recompute[level];
        again = recomputed[i].backward_input;
        for (const KernelWork& kernel : works[i].backward_input) AddWork(kernel, -1, again);
      }
    }
    for (int l = span.first; l < span.end; ++l) {
      LayerWork& work = works[l - span.first];
      if (IsInStack(l)) work.recompute[FULL] = work.forward;
    }
    return works;
  }

 private:
  // One training pass of the layers of `span`, as if they were a rank's.
  std::vector<LayerWork> Run(const LayerSpan& span, Recompute level) const {
    std::vector<Chunk> chunks;
    const BuildContext build = {model_, microbatch_, ops_, parameters_};
    const Chunk& chunk = chunks.emplace_back(
        build, whole_, ChunkSpec{.layers = span, .recompute = {.level = level}});
    ChunkWorkspace work = MakeChunkWorkspace(build, chunks);
    ChunkPools pools;
    Chunk::Kept kept = chunk.MakeKept(pools, work);
    const int64_t source = microbatch_.max_source_tokens(),
                  target = microbatch_.max_target_tokens(), d = model_.d_model();
    const auto tensors_with = [&](const at::TensorOptions& encoder_output) {
      return BoundaryActivations{.source_RD = at::empty({source, d}, ops_.ResidualOptions()),
                                 .encoder_output_RD = at::empty({source, d}, encoder_output),
                                 .target_RD = at::empty({target, d}, ops_.ResidualOptions())};
    };
    const BoundaryActivations values = tensors_with(ops_.OperandOptions());
    BoundaryActivations gradients = tensors_with(ops_.ResidualOptions());

    std::vector<LayerWork> works(span.NumLayers());
    Kernels nothing;
    const LayerBegins begin_forward = [&](int layer) {
      ops_.NoteIn(works[layer - span.first].forward, nothing);
    };
    const LayerDone begin_backward = [&](int layer) {  // of the layer before the one that is done
      if (layer == span.first) return;
      LayerWork& next = works[layer - 1 - span.first];
      ops_.NoteIn(next.backward_input, next.backward_weight);
    };
    constexpr int64_t kStep = int64_t{1} << 40;  // after BRANCH_NORM's ramp
    const MicrobatchPass pass = {.rows = {.source = {.count = source}, .target = {.count = target}},
                                 .step = kStep,
                                 .training = true,
                                 .layer_begins = &begin_forward,
                                 .layer_done = &begin_backward};
    begin_forward(span.first);
    chunk.Forward(pass, values, work, kept, {.dhidden_RD = gradients.target_RD});
    begin_backward(chunk.has_output() ? span.end - 1 : span.end);
    chunk.Backward(pass, gradients, values.encoder_output_RD, work, kept);
    return works;
  }

  bool IsInStack(int layer) const { return whole_.layers[layer].stack >= 0; }

  ModelSpec model_;
  const MicrobatchSpec& microbatch_;
  CostOps& ops_;
  const Inventory& whole_;
  Parameters parameters_;
};

}  // namespace

void DescribeWork(const ModelSpec& model, const MicrobatchSpec& microbatch,
                  const ComputeSpec& compute, Inventory& inventory) {
  if (compute.device().empty() || compute.device() == "cpu") return;
  ComputeSpec resolved = compute;
  resolved.set_device("cuda");
  if (resolved.dtype() == DATA_TYPE_UNSPECIFIED) resolved.set_dtype(BFLOAT16);
  const int64_t rows = std::max(microbatch.max_source_tokens(), microbatch.max_target_tokens());
  const int64_t sentences =
      std::clamp<int64_t>(rows / kSentenceRows, 1, std::max(1, microbatch.max_sentences()));
  const std::unique_ptr<CostOps> ops =
      MakeCostOps(resolved.dtype() == FLOAT32 ? at::kFloat : at::kBFloat16,
                  ChooseAttention(model, resolved) == FLASH, sentences);
  const CostPasses passes(model, microbatch, *ops, inventory);
  const int num_layers = static_cast<int>(inventory.layers.size());
  std::vector<LayerWork> works;
  if (InOnePiece(model)) {
    works = passes.WorkOf({0, num_layers});
    for (int l = 0; l < num_layers; ++l) inventory.layers[l].work = l;
  } else {
    // A layer runs behind the one before it, where it finds its input again.
    std::vector<LayerPlace> places;
    for (int l = 0; l < num_layers; ++l) {
      const LayerPlace place = passes.PlaceOf(l);
      const auto same = std::find(places.begin(), places.end(), place);
      inventory.layers[l].work = static_cast<int>(same - places.begin());
      if (same != places.end()) continue;
      places.push_back(place);
      works.push_back(std::move(passes.WorkOf({std::max(0, l - 1), l + 1}).back()));
    }
  }
  inventory.work = std::move(works);
}

}  // namespace deepnet
