#include "trainer/interop/hf_config.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <google/protobuf/util/json_util.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/vocabulary.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr double kTorchEpsilon = 1e-5;  // torch.nn.LayerNorm's, which M2M-100 and Marian take

// Adds the keys that only a deepnet model needs.
void AddDeepnetKeys(const ModelSpec& model, HfConfig* config) {
  const DepthScaling scaling = MakeDepthScaling(model);
  config->set_model_type(kDeepnetType);
  config->add_architectures("DeepNetForConditionalGeneration");
  config->set_residual(absl::AsciiStrToLower(Residual_Name(model.residual())));
  config->set_encoder_alpha(scaling.encoder_alpha);
  config->set_decoder_alpha(scaling.decoder_alpha);
  config->set_layer_norm_eps(model.layer_norm_epsilon());
  config->set_position_embedding_type(model.positions() == LEARNED ? "learned" : "sinusoidal");
  const TiedEmbeddings tied = model.tied_embeddings();
  config->set_tied_embeddings(tied == TIE_ALL ? "all" : tied == TIE_DECODER ? "decoder" : "none");
}

// M2M100Config's values for keys that config.json leaves out.
constexpr char kM2mDefaults[] = R"(
    vocab_size: 128112                  d_model: 1024
    encoder_layers: 12                  decoder_layers: 12
    encoder_ffn_dim: 4096               decoder_ffn_dim: 4096
    encoder_attention_heads: 16         decoder_attention_heads: 16
    dropout: 0.1                        attention_dropout: 0.1
    activation_function: "relu"         max_position_embeddings: 1024
    scale_embedding: true               tie_word_embeddings: true
    pad_token_id: 1                     bos_token_id: 0
    eos_token_id: 2                     decoder_start_token_id: 2)";

absl::Status CheckM2m(const HfConfig& c) {
  std::vector<std::string> mistakes;
  const auto expect = [&](bool good, const char* key, const auto& value, const char* what) {
    if (!good) mistakes.push_back(absl::StrCat(key, " is ", value, ": ", what));
  };
  expect(c.vocab_size() > kFirstPiece, "vocab_size", c.vocab_size(), "too small");
  expect(c.encoder_layers() > 0, "encoder_layers", c.encoder_layers(), "at least 1");
  expect(c.decoder_layers() > 0, "decoder_layers", c.decoder_layers(), "at least 1");
  const bool divides = c.d_model() > 0 && c.encoder_attention_heads() > 0 &&
                       c.d_model() % c.encoder_attention_heads() == 0;
  expect(divides, "d_model", c.d_model(), "no multiple of the heads");
  expect(c.encoder_ffn_dim() > 0 && c.encoder_ffn_dim() == c.decoder_ffn_dim(), "decoder_ffn_dim",
         c.decoder_ffn_dim(), "must equal encoder_ffn_dim here");
  expect(c.encoder_attention_heads() == c.decoder_attention_heads(), "decoder_attention_heads",
         c.decoder_attention_heads(), "must equal encoder_attention_heads here");
  expect(c.activation_function() == "relu" || c.activation_function() == "gelu",
         "activation_function", c.activation_function(), "must be relu or gelu");
  expect(c.max_position_embeddings() > 1, "max_position_embeddings", c.max_position_embeddings(),
         "too small");
  expect(c.tie_word_embeddings(), "tie_word_embeddings", "false",
         "an untied output projection beside a shared embedding is not known here");
  expect(c.pad_token_id() == kPad, "pad_token_id", c.pad_token_id(), "must be 1");
  expect(c.bos_token_id() == kBos, "bos_token_id", c.bos_token_id(), "must be 0");
  expect(c.eos_token_id() == kEos, "eos_token_id", c.eos_token_id(), "must be 2");
  expect(c.decoder_start_token_id() == kEos, "decoder_start_token_id", c.decoder_start_token_id(),
         "must be 2");
  if (mistakes.empty()) return absl::OkStatus();
  return CheckpointRefused("this M2M-100 cannot be imported: ", absl::StrJoin(mistakes, "; "));
}

}  // namespace

absl::Status ParseJson(const std::string& json, const std::string& under, const std::string& file,
                       google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const std::string wrapped = under.empty() ? "" : absl::StrCat("{\"", under, "\":", json, "}");
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(under.empty() ? json : wrapped), message, options);
  if (status.ok()) return absl::OkStatus();
  return WithExitCode(InvalidArgument("'", file, "': ", std::string(status.message())),
                      ExitCode::kCheckpoint);
}

absl::Status ReadJsonFile(FileSystem& fs, const std::string& path, const std::string& under,
                          const ToolOptions& options, google::protobuf::Message* message) {
  const auto read = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t bytes, fs.Size(path));
    RETURN_IF_ERROR(CheckMemory(kToolFixedBytes + kJsonFactor * bytes, options,
                                absl::StrCat("reading '", path, "'")));
    ASSIGN_OR_RETURN(const std::string json, ReadWholeFile(fs, path, bytes));
    return ParseJson(json, under, path, message);
  };
  return WithExitCode(read(), ExitCode::kCheckpoint);
}

std::vector<std::string> DifferencesFromM2m(const ModelSpec& model) {
  std::vector<std::string> differences;
  if (model.residual() != PRE_LN) {
    differences.push_back(absl::StrCat("residual is ", Residual_Name(model.residual())));
  }
  if (model.tied_embeddings() != TIE_ALL) {
    differences.push_back(
        absl::StrCat("tied_embeddings is ", TiedEmbeddings_Name(model.tied_embeddings())));
  }
  if (model.positions() != SINUSOIDAL) differences.push_back("positions are LEARNED");
  if (model.layer_norm_epsilon() != kTorchEpsilon) {
    differences.push_back(absl::StrCat("layer_norm_epsilon is ", model.layer_norm_epsilon()));
  }
  return differences;
}

HfConfig MakeHfConfig(const Manifest& manifest, const std::vector<std::string>& languages) {
  const ModelSpec& model = manifest.run().model();
  HfConfig config;
  config.set_vocab_size(static_cast<int32_t>(model.vocabulary_size()));
  config.set_d_model(model.d_model());
  config.set_encoder_layers(model.encoder_layers());
  config.set_decoder_layers(model.decoder_layers());
  config.set_encoder_ffn_dim(model.ffn_dim());
  config.set_decoder_ffn_dim(model.ffn_dim());
  config.set_encoder_attention_heads(model.num_heads());
  config.set_decoder_attention_heads(model.num_heads());
  config.set_encoder_layerdrop(0.0);
  config.set_decoder_layerdrop(0.0);
  config.set_dropout(model.dropout());
  config.set_attention_dropout(model.attention_dropout());
  config.set_activation_dropout(model.activation_dropout());
  config.set_activation_function(model.activation() == GELU ? "gelu" : "relu");
  config.set_max_position_embeddings(model.max_positions());
  config.set_scale_embedding(!model.unscaled_embedding());
  config.set_is_encoder_decoder(true);
  config.set_tie_word_embeddings(model.tied_embeddings() != TIE_NONE);
  config.set_pad_token_id(kPad);
  config.set_bos_token_id(kBos);
  config.set_eos_token_id(kEos);
  config.set_decoder_start_token_id(kEos);
  if (DifferencesFromM2m(model).empty()) {
    config.set_model_type(kM2mType);
    config.add_architectures("M2M100ForConditionalGeneration");
  } else {
    AddDeepnetKeys(model, &config);
  }
  ExportedCheckpoint& exported = *config.mutable_deepnet();
  *exported.mutable_run() = manifest.run();
  exported.set_step(manifest.step());
  exported.set_inventory_hash(manifest.inventory_hash());
  exported.set_corpus_hash(manifest.corpus_hash());
  exported.set_tokenizer_hash(manifest.tokenizer_hash());
  exported.set_optimizer_steps(manifest.optimizer_steps());
  exported.set_source_tokens(manifest.source_tokens());
  exported.set_target_tokens(manifest.target_tokens());
  exported.mutable_languages()->Assign(languages.begin(), languages.end());
  return config;
}

std::string HfConfigJson(const HfConfig& config) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(config, &json, options);
  DEEPNET_CHECK(status.ok()) << std::string(status.message());
  return json;
}

absl::StatusOr<HfConfig> ReadHfConfig(FileSystem& fs, const std::string& folder,
                                      const ToolOptions& options) {
  const std::string path = JoinPath(folder, kConfigFile);
  HfConfig config;
  RETURN_IF_ERROR(ReadJsonFile(fs, path, "", options, &config));
  // Keys that are not known are other programs', but not those of a run.
  if (config.deepnet().run().has_model() && config.deepnet().run().model().d_model() == 0) {
    return WithExitCode(
        InvalidArgument("'", path, "': its run has names of before version 0.1.0: export it again"),
        ExitCode::kCheckpoint);
  }
  return config;
}

absl::StatusOr<ModelSpec> ModelOfM2m(const HfConfig& given) {
  HfConfig config;
  DEEPNET_CHECK(ParseTextProto(kM2mDefaults, &config));
  config.MergeFrom(given);
  RETURN_IF_ERROR(CheckM2m(config));
  ModelSpec model;
  model.set_encoder_layers(config.encoder_layers());
  model.set_decoder_layers(config.decoder_layers());
  model.set_d_model(config.d_model());
  model.set_ffn_dim(config.encoder_ffn_dim());
  model.set_num_heads(config.encoder_attention_heads());
  model.set_residual(PRE_LN);
  model.set_vocabulary_size(config.vocab_size());
  model.set_max_positions(config.max_position_embeddings());
  model.set_activation(config.activation_function() == "gelu" ? GELU : RELU);
  model.set_dropout(config.dropout());
  model.set_attention_dropout(config.attention_dropout());
  model.set_activation_dropout(config.activation_dropout());
  model.set_layer_norm_epsilon(kTorchEpsilon);
  model.set_unscaled_embedding(!config.scale_embedding());
  return model;
}

std::string HfName(std::string_view parameter) {
  if (parameter == "lm_head.weight") return std::string(parameter);
  return absl::StrCat("model.", std::string(parameter));
}

bool IsRepeatedInHf(std::string_view name) {
  static constexpr std::string_view kRepeated[] = {
      "lm_head.weight",
      "model.encoder.embed_tokens.weight",
      "model.decoder.embed_tokens.weight",
      "model.encoder.embed_positions.weights",
      "model.decoder.embed_positions.weights",
  };
  return std::ranges::count(kRepeated, name) > 0;
}

}  // namespace deepnet
