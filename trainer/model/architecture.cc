#include "trainer/model/architecture.h"

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "trainer/model/roles.h"

namespace deepnet {

bool HasMemory(const ModelSpec& model) { return model.architecture() == ENCODER_DECODER; }

int LabelledStack(const ModelSpec& model) { return model.architecture() == ENCODER_ONLY ? 0 : 1; }

int LayersOf(const ModelSpec& model, int stack) {
  return stack == 0 ? model.encoder_layers() : model.decoder_layers();
}

int SublayersPerLayer(const ModelSpec& model, int stack) {
  return stack == 1 && HasMemory(model) ? 3 : 2;
}

int StackOfKind(const ModelSpec& model, LayerKind kind) {
  const bool source = kind == LayerKind::kSourceEmbedding || kind == LayerKind::kEncoder;
  return source ? 0 : LabelledStack(model);
}

std::string KindNameIn(const ModelSpec& model, LayerKind kind) {
  if (HasMemory(model)) return std::string(LayerKindName(kind));
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

absl::Status CheckTranslates(const ModelSpec& model, const std::string& command) {
  if (HasMemory(model)) return absl::OkStatus();
  const bool causal = LabelledStack(model) == 1;
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          command, ": model.architecture: ", Architecture_Name(model.architecture()), ": a ",
          causal ? "causal" : "masked",
          " language model has one stack and no source sentence, so it does not translate")),
      ExitCode::kCheckpoint);
}

}  // namespace deepnet
