#include "trainer/interop/marian.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/vocabulary.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/hf_tokenizer.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr double kMarianEpsilon = 1e-5;  // torch.nn.LayerNorm's and CTranslate2's
constexpr float kNever = -1e9f;          // a logit that no softmax notices; finite in float32
constexpr char kEmbedding[] = "shared.weight";

// Returns BRANCH_NORM's a at the checkpoint's step; 1 for other schemes.
double RampOf(const ModelSpec& model, int64_t step) {
  return MakeSublayerScheme(model, {.kind = SublayerKind::kFeedForward}).RampAt(step);
}

// Returns a reader of what `read` does, times `ramp` over alpha where the parameter `name` ends a
// branch: all that changes.
ElementReader Scaled(ElementReader read, const std::string& name, double ramp,
                     const DepthScaling& scaling) {
  const bool ends_branch =
      absl::StrContains(name, ".out_proj.") || absl::StrContains(name, ".fc2.");
  const double alpha =
      absl::StartsWith(name, "encoder.") ? scaling.encoder_alpha : scaling.decoder_alpha;
  if (!ends_branch || (alpha == 1.0 && ramp == 1.0)) return read;
  return
      [read = std::move(read), ramp, alpha](int64_t first, std::span<float> into) -> absl::Status {
        RETURN_IF_ERROR(read(first, into));
        for (float& value : into) {
          value = static_cast<float>(ramp * static_cast<double>(value) / alpha);
        }
        return absl::OkStatus();
      };
}

// Returns a reader of fairseq's sinusoidal positions, offset 2 included, in float32: the twin of
// SinusoidalPositions() (trainer/model/embedding.h) without LibTorch.
ElementReader Sinusoids(int64_t width) {
  return [width](int64_t first, std::span<float> into) {
    const int64_t half = width / 2;
    const double rate = half > 1 ? std::log(10000.0) / static_cast<double>(half - 1) : 0.0;
    for (float& feature : into) {
      const int64_t position = first / width, k = first % width;
      const double wave = std::exp(-rate * static_cast<double>(k < half ? k : k - half));
      const double angle = static_cast<double>(position + 2) * wave;
      const double value = k < half ? std::sin(angle) : std::cos(angle);
      feature = k < 2 * half ? static_cast<float>(value) : 0.0f;
      ++first;
    }
    return absl::OkStatus();
  };
}

// Returns a reader of the `size` elements of `read`, and of zeros behind them.
ElementReader ThenZeros(ElementReader read, int64_t size) {
  return [read = std::move(read), size](int64_t first, std::span<float> into) -> absl::Status {
    const int64_t left = std::clamp<int64_t>(size - first, 0, static_cast<int64_t>(into.size()));
    const std::span<float> taken = into.first(static_cast<size_t>(left));
    std::fill(into.begin() + left, into.end(), 0.0f);
    return taken.empty() ? absl::OkStatus() : read(first, taken);
  };
}

// Reads the table `positions` with `scale` times the row of </s> added to its first row.
ElementReader WithFirstToken(const ElementReader& positions, const ElementReader& embedding,
                             double scale, int64_t width) {
  return [=](int64_t first, std::span<float> into) -> absl::Status {
    RETURN_IF_ERROR(positions(first, into));
    if (first >= width) return absl::OkStatus();
    const std::span<float> head =
        into.first(std::min(into.size(), static_cast<size_t>(width - first)));
    std::vector<float> end_row(head.size());
    RETURN_IF_ERROR(embedding(kEos * width + first, end_row));
    for (size_t i = 0; i < head.size(); ++i) {
      head[i] += static_cast<float>(static_cast<double>(end_row[i]) * scale);
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<OutgoingTensor> PositionTable(const ModelSpec& model, const std::string& stack,
                                             TensorReader& reader) {
  const std::string name = absl::StrCat(stack, ".embed_positions.weight");
  const std::vector<int64_t> shape = {model.max_positions(), model.d_model()};
  ElementReader read = Sinusoids(model.d_model());
  if (model.positions() == LEARNED) {
    ASSIGN_OR_RETURN(read, ReadStoredWeight(reader, name, shape));
  }
  if (stack == "decoder") {
    ASSIGN_OR_RETURN(
        const ElementReader embedding,
        ReadStoredWeight(reader, kEmbedding, {model.vocabulary_size(), model.d_model()}));
    const double scale =
        model.unscaled_embedding() ? 1.0 : std::sqrt(static_cast<double>(model.d_model()));
    read = WithFirstToken(read, embedding, scale, model.d_model());
  }
  return OutgoingTensor{.name = HfName(name), .shape = shape, .read = std::move(read)};
}

// Returns the greatest relative error of a normalisation's factor, at a variance of 1.
double NormDifference(const ModelSpec& model, double alpha) {
  const double ours = model.layer_norm_epsilon() / (alpha * alpha);
  return std::abs(std::sqrt((1.0 + ours) / (1.0 + kMarianEpsilon)) - 1.0);
}

}  // namespace

absl::Status CheckMarian(const ModelSpec& model) {
  std::vector<std::string> mistakes;
  const Residual residual = model.residual();
  if (residual != DEEPNORM && residual != POST_LN && residual != BRANCH_NORM) {
    mistakes.push_back(absl::StrCat("residual is ", Residual_Name(residual),
                                    " (DEEPNORM, POST_LN or BRANCH_NORM; a PRE_LN model goes out "
                                    "with --format safetensors as M2M-100)"));
  }
  if (model.tied_embeddings() != TIE_ALL) {
    mistakes.push_back(absl::StrCat("tied_embeddings is ",
                                    TiedEmbeddings_Name(model.tied_embeddings()), " (TIE_ALL)"));
  }
  if (mistakes.empty()) return absl::OkStatus();
  return CheckpointRefused("this model cannot be exported as Marian: ",
                           absl::StrJoin(mistakes, "; "));
}

std::vector<int64_t> MarianIds(int64_t vocabulary_size) {
  std::vector<int64_t> ids(static_cast<size_t>(vocabulary_size) + 1, kRowOfZeros);
  std::iota(ids.begin(), ids.end() - 1, 0);
  return ids;
}

HfConfig MakeMarianConfig(const HfConfig& ours) {
  HfConfig config = ours;
  const int32_t zeros = ours.vocab_size();  // the row
  config.set_model_type(kMarianType);
  config.clear_architectures();
  config.add_architectures("MarianMTModel");
  config.set_vocab_size(zeros + 1);
  config.set_decoder_vocab_size(zeros + 1);
  config.set_share_encoder_decoder_embeddings(true);
  config.set_pad_token_id(zeros);
  config.set_decoder_start_token_id(zeros);
  config.set_forced_eos_token_id(kEos);
  config.clear_residual();
  config.clear_encoder_alpha();
  config.clear_decoder_alpha();
  config.clear_layer_norm_eps();
  config.clear_position_embedding_type();
  config.clear_tied_embeddings();
  config.clear_deepnet();  // these weights are not the checkpoint's
  return config;
}

absl::StatusOr<std::vector<OutgoingTensor>> MarianTensors(const ModelSpec& model,
                                                          TensorReader& reader) {
  const double ramp = RampOf(model, reader.manifest().step());
  const int64_t rows = model.vocabulary_size();
  ASSIGN_OR_RETURN(std::vector<OutgoingTensor> tensors, StoredWeights(model, reader));
  std::erase_if(tensors, [](const OutgoingTensor& tensor) {
    return absl::StrContains(tensor.name, ".embed_positions.");
  });
  for (OutgoingTensor& tensor : tensors) {
    tensor.read = Scaled(std::move(tensor.read), tensor.name, ramp, MakeDepthScaling(model));
    if (tensor.name == kEmbedding) {
      tensor.read = ThenZeros(std::move(tensor.read), rows * model.d_model());
      tensor.shape[0] = rows + 1;
    }
    tensor.name = HfName(tensor.name);
  }
  for (const char* stack : {"encoder", "decoder"}) {
    ASSIGN_OR_RETURN(OutgoingTensor table, PositionTable(model, stack, reader));
    tensors.push_back(std::move(table));
  }
  tensors.push_back({.name = "final_logits_bias",
                     .shape = {1, rows + 1},
                     .read = [rows](int64_t first, std::span<float> into) {
                       std::fill(into.begin(), into.end(), 0.0f);
                       const int64_t zeros = rows - first;
                       if (zeros < static_cast<int64_t>(into.size())) into[zeros] = kNever;
                       return absl::OkStatus();
                     }});
  return tensors;
}

std::vector<std::string> MarianStatements(const ModelSpec& model, TagStyle tags, int64_t step) {
  const DepthScaling scaling = MakeDepthScaling(model);
  std::vector<std::string> statements;
  statements.push_back(absl::StrFormat(
      "out_proj and fc2 are divided by alpha (encoder %.6g, decoder %.6g). Exact up to LayerNorm's "
      "epsilon: Marian adds %g to a variance where alpha^2 times less would be equal, which "
      "changes the factor of a normalisation by at most %.2g (encoder) and %.2g (decoder) of "
      "itself, divided by the variance of residual plus branch.",
      scaling.encoder_alpha, scaling.decoder_alpha, kMarianEpsilon,
      NormDifference(model, scaling.encoder_alpha), NormDifference(model, scaling.decoder_alpha)));
  if (model.residual() == BRANCH_NORM) {
    statements.push_back(absl::StrFormat(
        "out_proj and fc2 are multiplied by %.6g, what BRANCH_NORM lets in of a branch at step %d.",
        RampOf(model, step), step));
  }
  statements.push_back(
      "Positions are stored in embed_positions; transformers' save_pretrained leaves them out, so "
      "copy the folder instead of saving the model again.");
  if (tags == M2M) {
    statements.push_back(
        "The source begins with >>source<<, and the target's tag has to be forced "
        "(forced_bos_token_id; in CTranslate2 target_prefix).");
  } else if (tags == TARGET_TAG_ON_SOURCE) {
    statements.push_back("The source begins with the target's language: \">>de<< text\".");
  }
  return statements;
}

}  // namespace deepnet
