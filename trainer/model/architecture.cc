#include "trainer/model/architecture.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"

namespace deepnet {

std::string_view RoleName(Role role) {
  constexpr std::string_view kNames[] = {
      "embedding", "position",         "query",         "key",
      "value",     "attention output", "feed-forward",  "norm gain",
      "norm bias", "residual scale",   "residual shift"};
  static_assert(std::size(kNames) == static_cast<size_t>(Role::kResidualShift) + 1);
  return kNames[static_cast<size_t>(role)];
}

std::string_view LayerKindName(LayerKind kind) {
  constexpr std::string_view kNames[] = {"source embedding", "encoder layer", "target embedding",
                                         "decoder layer", "output layer"};
  static_assert(std::size(kNames) == static_cast<size_t>(LayerKind::kOutput) + 1);
  return kNames[static_cast<size_t>(kind)];
}

bool IsEncoderDecoder(const ModelSpec& model) { return model.architecture() == ENCODER_DECODER; }

int LabelledStack(const ModelSpec& model) { return model.architecture() == ENCODER_ONLY ? 0 : 1; }

int LayersOf(const ModelSpec& model, int stack) {
  return stack == 0 ? model.encoder_layers() : model.decoder_layers();
}

int SublayersPerLayer(const ModelSpec& model, int stack) {
  return stack == 1 && IsEncoderDecoder(model) ? 3 : 2;
}

int StackOfKind(const ModelSpec& model, LayerKind kind) {
  const bool source = kind == LayerKind::kSourceEmbedding || kind == LayerKind::kEncoder;
  return source ? 0 : LabelledStack(model);
}

std::string KindNameIn(const ModelSpec& model, LayerKind kind) {
  if (IsEncoderDecoder(model)) return std::string(LayerKindName(kind));
  if (kind == LayerKind::kTargetEmbedding) return "embedding";
  if (kind == LayerKind::kDecoder) kind = LabelledStack(model) == 0 ? LayerKind::kEncoder : kind;
  return std::string(LayerKindName(kind));
}

std::string LayersText(const ModelSpec& model) {
  switch (model.architecture()) {
    case ENCODER_ONLY:
      return absl::StrCat(model.encoder_layers(), " encoder layers");
    case DECODER_ONLY:
      return absl::StrCat(model.decoder_layers(), " decoder layers");
    default:
      return absl::StrCat(model.encoder_layers(), " encoder and ", model.decoder_layers(),
                          " decoder layers");
  }
}

std::string FlashObstacle(const ModelSpec& model, DataType dtype) {
  if (dtype == FLOAT32) return "it needs operands of 16 bits, and compute.dtype is FLOAT32";
  if (model.attention_dropout() != 0) {
    return absl::StrCat("it is not used to drop attention weights, and model.attention_dropout is ",
                        model.attention_dropout());
  }
  const int width = model.d_model() / std::max(1, model.num_heads());
  if (width % 8 == 0 && width <= 256) return "";
  return absl::StrCat("it needs heads of a multiple of 8 features up to 256, and model.d_model / ",
                      "model.num_heads is ", width);
}

AttentionKernel ChooseAttention(const ModelSpec& model, const ComputeSpec& compute) {
  if (compute.device() != "cuda" || compute.attention() != AUTO) return compute.attention();
  return FlashObstacle(model, compute.dtype()).empty() ? FLASH : OWN;
}

absl::Status CheckTranslates(const ModelSpec& model, const std::string& command) {
  if (IsEncoderDecoder(model)) return absl::OkStatus();
  const bool causal = LabelledStack(model) == 1;
  return CheckpointRefused(
      command, ": model.architecture: ", Architecture_Name(model.architecture()), ": a ",
      causal ? "causal" : "masked",
      " language model has one stack and no source sentence, so it does not translate");
}

int NumSublayers(const ModelSpec& model, int stack) {
  return SublayersPerLayer(model, stack) * LayersOf(model, stack);
}

int NumSublayers(const ModelSpec& model) { return NumSublayers(model, 0) + NumSublayers(model, 1); }

int SublayerIndex(const ModelSpec& model, const SublayerPlace& place) {
  const int count = SublayersPerLayer(model, place.stack);
  const int before = place.stack == 0 ? 0 : NumSublayers(model, 0);
  return before + count * place.layer + std::min(static_cast<int>(place.kind), count - 1);
}

SublayerPlace SublayerAt(const ModelSpec& model, int index) {
  DEEPNET_CHECK(index >= 0 && index < NumSublayers(model)) << index;
  const int in_encoder = NumSublayers(model, 0);
  const int stack = index < in_encoder ? 0 : 1;
  const int within = stack == 0 ? index : index - in_encoder;
  const int count = SublayersPerLayer(model, stack), in_layer = within % count;
  const bool last = in_layer + 1 == count;
  return {stack, within / count,
          last ? SublayerKind::kFeedForward : static_cast<SublayerKind>(in_layer)};
}

}  // namespace deepnet
