// Each Check* function looks at one message and adds its mistakes to the list; nothing stops at the
// first. A check that would only repeat an earlier mistake (heads of a width of 0) is left out.
#include "launch/validate.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

#include "parallel/base/exit_code.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/model/sublayer_order.h"

namespace deepnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The mistakes of a RunSpec, one line each.
class Mistakes {
 public:
  // Adds "field: value: text" unless `good`. Returns `good`.
  template <typename Value>
  bool Require(bool good, const std::string& field, const Value& value, const std::string& text) {
    if (!good) lines_.push_back(absl::StrCat(field, ": ", Print(value), ": ", text));
    return good;
  }

  // OK without mistakes, else INVALID_ARGUMENT with ExitCode::kBadConfig and all of them.
  absl::Status ToStatus() const;

 private:
  template <typename Value>
  static std::string Print(const Value& value) {
    return absl::StrCat(value);
  }
  static std::string Print(const std::string& value) { return absl::StrCat("'", value, "'"); }

  std::vector<std::string> lines_;
};

absl::Status Mistakes::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  return WithExitCode(absl::InvalidArgumentError(absl::StrJoin(lines_, "\n")),
                      ExitCode::kBadConfig);
}

// Adds the numbers that are not finite and the enum values without a name, anywhere below
// `message`: the file formats let both through. `path` stands before the names of fields:
// "prepare.", or nothing.
void CheckValues(const Message& message, const std::string& path, Mistakes* mistakes) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const auto& reflection = *message.GetReflection();
    const std::string name = absl::StrCat(path, field->name());
    if (field->message_type() != nullptr && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        CheckValues(reflection.GetRepeatedMessage(message, field, i),
                    absl::StrCat(name, "[", i, "]."), mistakes);
      }
    } else if (field->message_type() != nullptr) {
      CheckValues(reflection.GetMessage(message, field), name + ".", mistakes);
    } else if (field->enum_type() != nullptr) {
      const int value = reflection.GetEnumValue(message, field);
      mistakes->Require(field->enum_type()->FindValueByNumber(value) != nullptr, name, value,
                        "is no value of " + field->enum_type()->name());
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        const double value = reflection.GetRepeatedDouble(message, field, i);
        mistakes->Require(std::isfinite(value), absl::StrCat(name, "[", i, "]"), value,
                          "must be finite");
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      const double value = reflection.GetDouble(message, field);
      mistakes->Require(std::isfinite(value), name, value, "must be finite");
    }
  }
}

// Returns whether `tag` names a language. "zh-Hans" would clash with "de-en": letters, digits and
// underscores only.
bool IsLanguage(const std::string& tag) {
  for (const char c : tag) {
    if (!absl::ascii_isalnum(c) && c != '_') return false;
  }
  return !tag.empty();
}

constexpr char kLanguageNeeded[] = "must be a tag of letters, digits and '_'";

// ---- model ----

void CheckDeepNorm(const ModelSpec& model, Mistakes* mistakes) {
  const DeepNormSpec& deepnorm = model.deepnorm();
  if (deepnorm.ByteSizeLong() > 0 && model.residual() != RESIDUAL_UNSPECIFIED) {
    mistakes->Require(model.residual() == DEEPNORM, "model.deepnorm",
                      Residual_Name(model.residual()).c_str(),
                      "only with model.residual: DEEPNORM");
  }
  const auto positive = [&](const char* name, double value) {
    mistakes->Require(value >= 0, absl::StrCat("model.deepnorm.", name), value,
                      "must be above 0, or 0 for the formula");
  };
  positive("encoder_alpha", deepnorm.encoder_alpha());
  positive("encoder_beta", deepnorm.encoder_beta());
  positive("decoder_alpha", deepnorm.decoder_alpha());
  positive("decoder_beta", deepnorm.decoder_beta());
}

// A setting of another scheme would be a misunderstanding.
void CheckScheme(const ModelSpec& model, Mistakes* mistakes) {
  const SchemeSpec& scheme = model.scheme();
  const auto only_with = [&](bool set, const char* name, Residual residual) {
    mistakes->Require(!set || model.residual() == residual, absl::StrCat("model.scheme.", name),
                      Residual_Name(model.residual()).c_str(),
                      absl::StrCat("only with model.residual: ", Residual_Name(residual)));
  };
  only_with(scheme.ds_exponent() != 0, "ds_exponent", DS_INIT);
  only_with(scheme.mix_ln_fraction() != 0, "mix_ln_fraction", MIX_LN);
  only_with(scheme.keel_alpha() != 0, "keel_alpha", KEEL);
  only_with(scheme.normformer_scaled_residual(), "normformer_scaled_residual", NORMFORMER);
  only_with(scheme.admin_omega_size() > 0, "admin_omega", ADMIN);
  only_with(scheme.residual_dual_scale() != 0, "residual_dual_scale", RESIDUAL_DUAL);
  only_with(scheme.branch_norm_steps() != 0, "branch_norm_steps", BRANCH_NORM);
  mistakes->Require(scheme.residual_dual_scale() >= 0, "model.scheme.residual_dual_scale",
                    scheme.residual_dual_scale(), "must be above 0, or 0 for 1");
  mistakes->Require(scheme.branch_norm_steps() >= 0, "model.scheme.branch_norm_steps",
                    scheme.branch_norm_steps(), "must be at least 1, or 0 for 4000");
  mistakes->Require(scheme.ds_exponent() >= 0, "model.scheme.ds_exponent", scheme.ds_exponent(),
                    "must be above 0, or 0 for 0.5");
  mistakes->Require(scheme.mix_ln_fraction() >= 0 && scheme.mix_ln_fraction() <= 1,
                    "model.scheme.mix_ln_fraction", scheme.mix_ln_fraction(),
                    "must be from 0 to 1; 0 stands for 0.25");
  mistakes->Require(scheme.keel_alpha() >= 0, "model.scheme.keel_alpha", scheme.keel_alpha(),
                    "must be above 0, or 0 for the number of sub-layers");
  const int sublayers = NumSublayers(model);
  mistakes->Require(
      scheme.admin_omega_size() == 0 || scheme.admin_omega_size() == sublayers,
      "model.scheme.admin_omega", scheme.admin_omega_size(),
      absl::StrCat("must have a number for each of the ", sublayers, " sub-layers, or none"));
  for (int i = 0; i < scheme.admin_omega_size(); ++i) {
    mistakes->Require(scheme.admin_omega(i) > 0, absl::StrCat("model.scheme.admin_omega[", i, "]"),
                      scheme.admin_omega(i), "must be above 0");
  }
}

// "DEEPNORM, POST_LN, ...": all that `model.residual` can be.
std::string ResidualNames() {
  std::vector<std::string> names;
  for (int value = Residual_MIN; value <= Residual_MAX; ++value) {
    if (Residual_IsValid(value) && value != RESIDUAL_UNSPECIFIED) {
      names.push_back(Residual_Name(static_cast<Residual>(value)));
    }
  }
  return absl::StrJoin(names, ", ");
}

// Layers where the architecture has a stack, none where it has not.
void CheckStacks(const ModelSpec& model, Mistakes* mistakes) {
  const std::string only = absl::StrCat(
      "with model.architecture: ", Architecture_Name(model.architecture()), ": must be 0");
  const auto stack = [&](const char* name, bool present, int layers, double alpha, double beta) {
    mistakes->Require(present ? layers >= 1 : layers == 0, absl::StrCat("model.", name, "_layers"),
                      layers, present ? "must be at least 1" : only);
    if (present) return;
    mistakes->Require(alpha == 0, absl::StrCat("model.deepnorm.", name, "_alpha"), alpha, only);
    mistakes->Require(beta == 0, absl::StrCat("model.deepnorm.", name, "_beta"), beta, only);
  };
  const DeepNormSpec& deepnorm = model.deepnorm();
  stack("encoder", model.architecture() != DECODER_ONLY, model.encoder_layers(),
        deepnorm.encoder_alpha(), deepnorm.encoder_beta());
  stack("decoder", model.architecture() != ENCODER_ONLY, model.decoder_layers(),
        deepnorm.decoder_alpha(), deepnorm.decoder_beta());
}

enum class Vocabulary { kRequired, kFromCorpus };

void CheckModel(const ModelSpec& model, Vocabulary vocabulary, Mistakes* mistakes) {
  const auto at_least_one = [&](const char* name, int64_t value) {
    return mistakes->Require(value >= 1, absl::StrCat("model.", name), value, "must be at least 1");
  };
  CheckStacks(model, mistakes);
  const bool has_width = at_least_one("d_model", model.d_model());
  if (has_width && model.positions() == SINUSOIDAL) {
    mistakes->Require(model.d_model() % 2 == 0 && model.d_model() >= 4, "model.d_model",
                      model.d_model(), "must be even and at least 4 with positions: SINUSOIDAL");
  } else if (has_width) {
    mistakes->Require(model.d_model() >= 4, "model.d_model", model.d_model(), "must be at least 4");
  }
  at_least_one("ffn_dim", model.ffn_dim());
  if (at_least_one("num_heads", model.num_heads()) && has_width) {
    mistakes->Require(model.d_model() % model.num_heads() == 0, "model.num_heads",
                      model.num_heads(),
                      absl::StrCat("must divide model.d_model (", model.d_model(), ")"));
    constexpr int64_t kMaxHeads = native::kMaxDropoutFeatures / native::kMaxAttentionKeys;
    mistakes->Require(model.attention_dropout() <= 0 || model.num_heads() <= kMaxHeads,
                      "model.num_heads", model.num_heads(),
                      absl::StrCat("must be at most ", kMaxHeads, " with model.attention_dropout"));
  }
  mistakes->Require(model.residual() != RESIDUAL_UNSPECIFIED, "model.residual",
                    Residual_Name(RESIDUAL_UNSPECIFIED).c_str(),
                    absl::StrCat("required: one of ", ResidualNames()));
  CheckDeepNorm(model, mistakes);
  CheckScheme(model, mistakes);
  const bool from_corpus = vocabulary == Vocabulary::kFromCorpus && model.vocabulary_size() == 0;
  mistakes->Require(from_corpus || model.vocabulary_size() > 4, "model.vocabulary_size",
                    model.vocabulary_size(),
                    vocabulary == Vocabulary::kFromCorpus
                        ? "must be above 4 (the special ids), or 0: taken from the corpus"
                        : "required here, above 4 (the special ids)");
  at_least_one("max_positions", model.max_positions());
  const auto probability = [&](const char* name, double value) {
    mistakes->Require(value >= 0 && value < 1, absl::StrCat("model.", name), value,
                      "must be at least 0 and below 1");
  };
  probability("dropout", model.dropout());
  probability("attention_dropout", model.attention_dropout());
  probability("activation_dropout", model.activation_dropout());
  mistakes->Require(model.layer_norm_epsilon() > 0, "model.layer_norm_epsilon",
                    model.layer_norm_epsilon(), "must be above 0");
}

// ---- data ----

// Tokens that a packed sentence has besides its pieces.
int SourceExtra() { return 2; }  // tag and </s>
int TargetExtra(const DataSpec& data, Architecture architecture) {
  if (architecture == ENCODER_ONLY) return SourceExtra();  // whose source is what has labels
  return data.tags() == M2M ? 2 : 1;
}

void CheckMicrobatch(const DataSpec& data, Architecture architecture, Mistakes* mistakes) {
  const MicrobatchSpec& microbatch = data.microbatch();
  if (!mistakes->Require(microbatch.max_target_tokens() >= 1, "data.microbatch.max_target_tokens",
                         microbatch.max_target_tokens(), "required, at least 1")) {
    return;
  }
  mistakes->Require(microbatch.max_sentences() >= 1, "data.microbatch.max_sentences",
                    microbatch.max_sentences(), "must be at least 1");
  const auto holds = [&](const char* name, int capacity, int extra) {
    mistakes->Require(capacity >= data.max_sentence_tokens() + extra,
                      absl::StrCat("data.microbatch.", name), capacity,
                      absl::StrCat("must hold the longest sentence: data.max_sentence_tokens (",
                                   data.max_sentence_tokens(), ") and ", extra,
                                   " more; raise it, or lower data.max_sentence_tokens"));
  };
  if (architecture != ENCODER_DECODER) {
    mistakes->Require(
        microbatch.max_source_tokens() == 0, "data.microbatch.max_source_tokens",
        microbatch.max_source_tokens(),
        absl::StrCat("must be 0 with model.architecture: ", Architecture_Name(architecture),
                     ", whose one stack has max_target_tokens"));
  } else if (microbatch.max_source_tokens() != 0) {  // 0: chosen from the corpus, large enough
    holds("max_source_tokens", microbatch.max_source_tokens(), SourceExtra());
  }
  holds("max_target_tokens", microbatch.max_target_tokens(), TargetExtra(data, architecture));
}

void CheckTemperature(const DataSpec& data, Mistakes* mistakes) {
  int64_t previous = -1;
  for (int i = 0; i < data.temperature_size(); ++i) {
    const TemperaturePoint& point = data.temperature(i);
    const std::string name = absl::StrCat("data.temperature[", i, "].");
    const bool first = i == 0;
    mistakes->Require(first ? point.from_step() == 0 : point.from_step() > previous,
                      name + "from_step", point.from_step(),
                      first ? "the first point must say 0" : "must be above the point before");
    mistakes->Require(point.temperature() >= 1, name + "temperature", point.temperature(),
                      "must be at least 1");
    previous = point.from_step();
  }
}

void CheckDirections(const DataSpec& data, Mistakes* mistakes) {
  std::set<std::string> seen;
  for (int i = 0; i < data.directions_size(); ++i) {
    const std::string& direction = data.directions(i);
    const std::string name = absl::StrCat("data.directions[", i, "]");
    const std::vector<std::string> sides = absl::StrSplit(direction, '-');
    const bool good = sides.size() == 2 && IsLanguage(sides[0]) && IsLanguage(sides[1]);
    mistakes->Require(good, name, direction, "must be two language tags, as in 'de-en'");
    if (good) {
      mistakes->Require(sides[0] != sides[1], name, direction, "must be two different languages");
    }
    mistakes->Require(seen.insert(direction).second, name, direction, "is listed twice");
  }
}

void CheckMaskedShare(const RunSpec& run, Mistakes* mistakes) {
  const double share = run.data().mlm_probability();
  if (run.model().architecture() == ENCODER_ONLY) {
    mistakes->Require(share > 0 && share < 1, "data.mlm_probability", share,
                      "must be above 0 and below 1");
  } else {
    mistakes->Require(share == 0, "data.mlm_probability", share,
                      "only with model.architecture: ENCODER_ONLY");
  }
}

void CheckData(const RunSpec& run, Mistakes* mistakes) {
  const DataSpec& data = run.data();
  CheckTemperature(data, mistakes);
  CheckMaskedShare(run, mistakes);
  if (mistakes->Require(data.max_sentence_tokens() >= 1, "data.max_sentence_tokens",
                        data.max_sentence_tokens(), "must be at least 1")) {
    CheckMicrobatch(data, run.model().architecture(), mistakes);
    const int longest = data.max_sentence_tokens() + 2;
    mistakes->Require(
        run.model().max_positions() < 1 || run.model().max_positions() >= longest,
        "model.max_positions", run.model().max_positions(),
        absl::StrCat("must be at least data.max_sentence_tokens + 2 (", longest, ")"));
    const int64_t most = native::kMaxAttentionKeys - SourceExtra();
    mistakes->Require(
        run.model().attention_dropout() <= 0 || data.max_sentence_tokens() <= most,
        "data.max_sentence_tokens", data.max_sentence_tokens(),
        absl::StrCat("must be at most ", most, " with model.attention_dropout: its random numbers ",
                     "know ", native::kMaxAttentionKeys, " keys"));
  }
  mistakes->Require(data.global_microbatches() >= 1, "data.global_microbatches",
                    data.global_microbatches(), "must be at least 1");
  CheckDirections(data, mistakes);
}

// ---- prepare ----

void CheckText(const TextFiles& text, const std::string& name, Mistakes* mistakes) {
  const bool languages =
      mistakes->Require(IsLanguage(text.source_language()), name + "source_language",
                        text.source_language(), kLanguageNeeded) &
      mistakes->Require(IsLanguage(text.target_language()), name + "target_language",
                        text.target_language(), kLanguageNeeded);
  if (languages) {
    mistakes->Require(text.source_language() != text.target_language(), name + "target_language",
                      text.target_language(), "must differ from source_language");
  }
  const bool moses = !text.source_file().empty() || !text.target_file().empty();
  if (!text.tsv_file().empty()) {
    mistakes->Require(!moses, name + "tsv_file", text.tsv_file(),
                      "not together with source_file and target_file");
    mistakes->Require(text.score_file().empty(), name + "score_file", text.score_file(),
                      "not with tsv_file, which has a column for it");
  } else {
    const char* needed = "required, or tsv_file instead of source_file and target_file";
    mistakes->Require(!text.source_file().empty(), name + "source_file", text.source_file(),
                      needed);
    mistakes->Require(!text.target_file().empty(), name + "target_file", text.target_file(),
                      needed);
  }
  mistakes->Require(text.split() == "train" || text.split() == "dev" || text.split() == "test",
                    name + "split", text.split(), "must be 'train', 'dev' or 'test'");
}

void CheckTable(const LanguageTable& table, const std::string& name, Mistakes* mistakes) {
  mistakes->Require(!table.file().empty(), name + "file", table.file(), "required");
  mistakes->Require(IsLanguage(table.pivot_language()), name + "pivot_language",
                    table.pivot_language(), kLanguageNeeded);
  for (int i = 0; i < table.languages_size(); ++i) {
    mistakes->Require(IsLanguage(table.languages(i)), absl::StrCat(name, "languages[", i, "]"),
                      table.languages(i), kLanguageNeeded);
  }
  const auto percent = [&](const char* field, int value) {
    mistakes->Require(value >= -1 && value <= 50, name + field, value,
                      "must be from 1 to 50, or -1: none");
  };
  percent("dev_percent", table.dev_percent());
  percent("test_percent", table.test_percent());
}

void CheckTokenizer(const TokenizerSpec& tokenizer, Mistakes* mistakes) {
  if (!tokenizer.model_file().empty()) return;  // nothing is learned
  mistakes->Require(tokenizer.vocab_size() > 4, "prepare.tokenizer.vocab_size",
                    tokenizer.vocab_size(), "must be above 4 (the special ids)");
  mistakes->Require(tokenizer.character_coverage() > 0 && tokenizer.character_coverage() <= 1,
                    "prepare.tokenizer.character_coverage", tokenizer.character_coverage(),
                    "must be above 0 and at most 1");
  mistakes->Require(tokenizer.input_sentence_size() >= 1, "prepare.tokenizer.input_sentence_size",
                    tokenizer.input_sentence_size(), "must be at least 1");
  mistakes->Require(tokenizer.sample_temperature() >= 1, "prepare.tokenizer.sample_temperature",
                    tokenizer.sample_temperature(), "must be at least 1");
  mistakes->Require(tokenizer.type() == "unigram" || tokenizer.type() == "bpe",
                    "prepare.tokenizer.type", tokenizer.type(), "must be 'unigram' or 'bpe'");
}

void CheckPrepare(const RunSpec& run, Mistakes* mistakes) {
  const PrepareSpec& prepare = run.prepare();
  mistakes->Require(
      !prepare.opus100_folder().empty() || prepare.text_size() > 0 || prepare.table_size() > 0,
      "prepare.opus100_folder", prepare.opus100_folder(),
      "required, or prepare.text or prepare.table: there is nothing to read");
  mistakes->Require(prepare.languages().empty() || !prepare.opus100_folder().empty(),
                    "prepare.languages", absl::StrJoin(prepare.languages(), ","),
                    "only with prepare.opus100_folder");
  for (int i = 0; i < prepare.languages_size(); ++i) {
    mistakes->Require(IsLanguage(prepare.languages(i)), absl::StrCat("prepare.languages[", i, "]"),
                      prepare.languages(i), kLanguageNeeded);
  }
  for (int i = 0; i < prepare.text_size(); ++i) {
    CheckText(prepare.text(i), absl::StrCat("prepare.text[", i, "]."), mistakes);
  }
  for (int i = 0; i < prepare.table_size(); ++i) {
    CheckTable(prepare.table(i), absl::StrCat("prepare.table[", i, "]."), mistakes);
  }
  mistakes->Require(prepare.threads() >= 1, "prepare.threads", prepare.threads(),
                    "must be at least 1");
  mistakes->Require(prepare.cleaning().max_sentence_tokens() >= 1,
                    "prepare.cleaning.max_sentence_tokens",
                    prepare.cleaning().max_sentence_tokens(), "must be at least 1");
  mistakes->Require(prepare.cleaning().max_length_ratio() >= 1, "prepare.cleaning.max_length_ratio",
                    prepare.cleaning().max_length_ratio(), "must be at least 1");
  CheckTokenizer(prepare.tokenizer(), mistakes);
  mistakes->Require(!run.data().folder().empty(), "data.folder", run.data().folder(),
                    "required: where the corpus goes");
}

// ---- optim, compute, layout, train, decode ----

bool IsPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

enum class Presence { kRequired, kMayBeAbsent };

void CheckSchedule(const OptimSpec& optim, Mistakes* mistakes) {
  mistakes->Require(optim.warmup_steps() >= 0, "optim.warmup_steps", optim.warmup_steps(),
                    "must be at least 0");
  if (optim.schedule() == INVERSE_SQRT && optim.warmup_steps() >= 0) {
    mistakes->Require(optim.warmup_steps() >= 1, "optim.warmup_steps", optim.warmup_steps(),
                      "INVERSE_SQRT decays from the warm-up on: must be at least 1");
  }
  if (optim.schedule() == COSINE) {
    mistakes->Require(
        optim.decay_steps() > optim.warmup_steps(), "optim.decay_steps", optim.decay_steps(),
        absl::StrCat("COSINE needs it, above optim.warmup_steps (", optim.warmup_steps(), ")"));
    mistakes->Require(
        optim.final_learning_rate() >= 0 && optim.final_learning_rate() <= optim.learning_rate(),
        "optim.final_learning_rate", optim.final_learning_rate(),
        "must be from 0 to optim.learning_rate");
  } else {
    mistakes->Require(optim.decay_steps() == 0, "optim.decay_steps", optim.decay_steps(),
                      "only with schedule: COSINE");
    mistakes->Require(optim.final_learning_rate() == 0, "optim.final_learning_rate",
                      optim.final_learning_rate(), "only with schedule: COSINE");
  }
}

void CheckOptim(const RunSpec& run, Presence presence, Mistakes* mistakes) {
  const OptimSpec& optim = run.optim();
  const bool absent = presence == Presence::kMayBeAbsent && optim.learning_rate() == 0;
  if (!absent && mistakes->Require(optim.learning_rate() > 0, "optim.learning_rate",
                                   optim.learning_rate(), "required, above 0")) {
    mistakes->Require(
        optim.initial_learning_rate() >= 0 &&
            optim.initial_learning_rate() <= optim.learning_rate(),
        "optim.initial_learning_rate", optim.initial_learning_rate(),
        absl::StrCat("must be from 0 to optim.learning_rate (", optim.learning_rate(), ")"));
    CheckSchedule(optim, mistakes);
  }
  const auto decay = [&](const char* name, double value) {
    mistakes->Require(value >= 0 && value < 1, absl::StrCat("optim.", name), value,
                      "must be at least 0 and below 1");
  };
  decay("beta1", optim.beta1());
  decay("beta2", optim.beta2());
  mistakes->Require(optim.epsilon() > 0, "optim.epsilon", optim.epsilon(), "must be above 0");
  mistakes->Require(optim.weight_decay() >= 0, "optim.weight_decay", optim.weight_decay(),
                    "must be at least 0");
  mistakes->Require(optim.clip_norm() >= 0, "optim.clip_norm", optim.clip_norm(),
                    "must be above 0, or 0: off");
  decay("label_smoothing", optim.label_smoothing());
  const int replicas = optim.virtual_replicas();
  if (replicas == 0) return;  // the planner's
  const int microbatches = run.data().global_microbatches();
  if (mistakes->Require(IsPowerOfTwo(replicas), "optim.virtual_replicas", replicas,
                        "must be a power of two")) {
    mistakes->Require(microbatches < 1 || microbatches % replicas == 0, "optim.virtual_replicas",
                      replicas,
                      absl::StrCat("must divide data.global_microbatches (", microbatches, ")"));
  }
}

void CheckCompute(const ComputeSpec& compute, Mistakes* mistakes) {
  const std::string& device = compute.device();
  const bool cuda = device == "cuda";
  mistakes->Require(device.empty() || device == "auto" || device == "cpu" || cuda, "compute.device",
                    device, "must be 'auto', 'cpu' or 'cuda'");
  mistakes->Require(compute.residual_dtype() != BFLOAT16, "compute.residual_dtype",
                    DataType_Name(compute.residual_dtype()).c_str(),
                    "only FLOAT32: at 500-500 a branch starts at 0.0028 of the stream and "
                    "bfloat16 rounds at 0.0039, so it would vanish");
  mistakes->Require(!cuda || compute.matmul() != NATIVE, "compute.matmul",
                    Matmul_Name(compute.matmul()).c_str(),
                    "only with compute.device: 'cpu'; allowed here: LIBRARY");
  mistakes->Require(compute.threads_per_rank() >= 0, "compute.threads_per_rank",
                    compute.threads_per_rank(), "must be at least 1, or 0: left to the program");
}

void CheckLayout(const RunSpec& run, Mistakes* mistakes) {
  const ClusterSpec& cluster = run.cluster();
  const ParallelSpec& parallel = run.parallel();
  const bool has_ranks =
      mistakes->Require(cluster.nodes() >= 0, "cluster.nodes", cluster.nodes(),
                        "must be at least 1, or 0: those of the job") &
      mistakes->Require(cluster.devices_per_node() >= 0, "cluster.devices_per_node",
                        cluster.devices_per_node(), "must be at least 1, or 0: those of the job");
  const bool is_given = cluster.nodes() > 0 || cluster.devices_per_node() > 0;
  mistakes->Require(cluster.device_memory_gib() >= 0, "cluster.device_memory_gib",
                    cluster.device_memory_gib(), "must be above 0, or 0: what the host has");
  const int stages = parallel.pipeline_parallel_size(), replicas = parallel.data_parallel_size();
  mistakes->Require(stages >= 0, "parallel.pipeline_parallel_size", stages,
                    "must be at least 1, or 0: left to the planner");
  mistakes->Require(replicas >= 0, "parallel.data_parallel_size", replicas,
                    "must be at least 1, or 0: left to the planner");
  const int64_t ranks =
      std::max(1, cluster.nodes()) * int64_t{std::max(1, cluster.devices_per_node())};
  if (has_ranks && is_given && stages > 0 && replicas > 0) {
    mistakes->Require(int64_t{stages} * replicas == ranks, "parallel.pipeline_parallel_size",
                      stages,
                      absl::StrCat("times parallel.data_parallel_size (", replicas, ") must be ",
                                   ranks, ", all ranks of the cluster"));
  }
  const int layers = run.model().encoder_layers() + run.model().decoder_layers();
  mistakes->Require(layers < 1 || stages <= layers, "parallel.pipeline_parallel_size", stages,
                    absl::StrCat("must be at most the number of layers (", layers, ")"));
  const int microbatches = run.data().global_microbatches();
  mistakes->Require(microbatches < 1 || replicas <= microbatches, "parallel.data_parallel_size",
                    replicas,
                    absl::StrCat("must be at most data.global_microbatches (", microbatches,
                                 "): each replica computes at least one"));
}

void CheckTrain(const TrainSpec& train, Mistakes* mistakes) {
  const auto at_least = [&](const char* name, double value, double least, const char* text) {
    mistakes->Require(value >= least, absl::StrCat("train.", name), value, text);
  };
  at_least("steps", train.steps(), 0, "must be at least 1, or 0: no limit");
  at_least("max_train_minutes", train.max_train_minutes(), 0, "must be above 0, or 0: no limit");
  at_least("checkpoint_every_steps", train.checkpoint_every_steps(), 1, "must be at least 1");
  mistakes->Require(train.validate_every_steps() >= 1 || train.validate_every_steps() == -1,
                    "train.validate_every_steps", train.validate_every_steps(),
                    "must be at least 1, or -1: only at the end");
  at_least("validate_sentences", train.validate_sentences(), 1, "must be at least 1");
  at_least("keep_checkpoints", train.keep_checkpoints(), 1, "must be at least 1");
  at_least("keep_every_steps", train.keep_every_steps(), 0, "must be above 0, or 0: off");
  at_least("exit_after_minutes", train.exit_after_minutes(), 0,
           "must be above 0, or 0: until the batch system ends the job");
  at_least("log_every_steps", train.log_every_steps(), 1, "must be at least 1");
  at_least("checkpoint_every_minutes", train.checkpoint_every_minutes(), 0,
           "must be above 0, or 0: off");
  at_least("validate_every_minutes", train.validate_every_minutes(), 0,
           "must be above 0, or 0: off");
}

void CheckInstruments(const InstrumentsSpec& instruments, Mistakes* mistakes) {
  const int64_t every = instruments.every_steps();
  mistakes->Require(every >= 0, "instruments.every_steps", every, "must be at least 1, or 0: off");
  mistakes->Require(every != 0 || !instruments.model_update(), "instruments.every_steps", every,
                    "must be at least 1 with instruments.model_update");
}

void CheckDecode(const RunSpec& run, Mistakes* mistakes) {
  const DecodeSpec& decode = run.decode();
  const auto at_least_one = [&](const char* name, int value) {
    return mistakes->Require(value >= 1, absl::StrCat("decode.", name), value,
                             "must be at least 1");
  };
  const bool has_beam = at_least_one("beam_size", decode.beam_size());
  mistakes->Require(decode.length_penalty() >= 0, "decode.length_penalty", decode.length_penalty(),
                    "must be at least 0");
  at_least_one("max_tokens", decode.max_tokens());
  mistakes->Require(decode.max_ratio() >= 0, "decode.max_ratio", decode.max_ratio(),
                    "must be above 0, or 0: off");
  at_least_one("batch_tokens", decode.batch_tokens());
  const bool has_nbest = at_least_one("nbest", decode.nbest());
  mistakes->Require(decode.sampling_temperature() >= 0, "decode.sampling_temperature",
                    decode.sampling_temperature(), "must be above 0, or 0: search");
  if (has_beam && has_nbest && decode.sampling_temperature() == 0) {
    mistakes->Require(decode.nbest() <= decode.beam_size(), "decode.nbest", decode.nbest(),
                      absl::StrCat("must be at most decode.beam_size (", decode.beam_size(), ")"));
  }
  const int positions = run.model().max_positions();
  mistakes->Require(positions < 1 || decode.max_tokens() + 2 <= positions, "decode.max_tokens",
                    decode.max_tokens(),
                    absl::StrCat("must be at most model.max_positions (", positions, ") less 2"));
}

}  // namespace

absl::Status ValidateForPlan(const RunSpec& run) {
  Mistakes mistakes;
  CheckValues(run, "", &mistakes);
  CheckModel(run.model(), Vocabulary::kRequired, &mistakes);
  CheckData(run, &mistakes);
  CheckOptim(run, Presence::kMayBeAbsent, &mistakes);
  CheckCompute(run.compute(), &mistakes);
  CheckLayout(run, &mistakes);
  return mistakes.ToStatus();
}

absl::Status ValidateForTrain(const RunSpec& run) {
  Mistakes mistakes;
  CheckValues(run, "", &mistakes);
  mistakes.Require(!run.folder().empty(), "folder", run.folder(),
                   "required: where checkpoints and logs go");
  CheckModel(run.model(), Vocabulary::kFromCorpus, &mistakes);
  mistakes.Require(!run.data().folder().empty(), "data.folder", run.data().folder(),
                   "required: what `deepnet prepare` wrote");
  CheckData(run, &mistakes);
  CheckOptim(run, Presence::kRequired, &mistakes);
  CheckCompute(run.compute(), &mistakes);
  CheckLayout(run, &mistakes);
  CheckTrain(run.train(), &mistakes);
  CheckDecode(run, &mistakes);
  CheckInstruments(run.instruments(), &mistakes);
  return mistakes.ToStatus();
}

absl::Status ValidateForPrepare(const RunSpec& run) {
  Mistakes mistakes;
  CheckValues(run.prepare(), "prepare.", &mistakes);
  CheckPrepare(run, &mistakes);
  return mistakes.ToStatus();
}

}  // namespace deepnet
