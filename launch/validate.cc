// Each Check* function looks at one message and adds its mistakes to the list; nothing stops at the
// first. A check that would only repeat an earlier mistake (heads of a width of 0) is left out.
#include "launch/validate.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

#include "launch/flags.h"
#include "parallel/base/check.h"
#include "trainer/data/pair_index.h"
#include "trainer/decode/search.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/model/architecture.h"
#include "trainer/optim/learning_rate.h"

namespace deepnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

using Mistakes = std::vector<std::string>;

enum class Purpose { kPlan, kTrain };

// The fields of one message, which are looked up by name. A mistake is a line "field: value: text".
class Fields {
 public:
  // `path` stands before the names of fields: "prepare.", or nothing. Borrows all it is given.
  Fields(const Message& message, std::string path, Mistakes* mistakes)
      : message_(message), path_(std::move(path)), mistakes_(*mistakes) {}

  // Adds a mistake unless `good`, with `value` in place of the field's own. Returns `good`.
  bool Require(bool good, const std::string& name, const std::string& value,
               const std::string& text) const {
    if (!good) mistakes_.push_back(absl::StrCat(path_, name, ": ", value, ": ", text));
    return good;
  }

  // The same with the field's value. It looks the name up where `good`, too, so that any RunSpec
  // finds a name that is none.
  bool Require(bool good, const std::string& name, const std::string& text) const {
    const FieldDescriptor& field = Find(name);
    return good || Require(false, name, ValueText(field), text);
  }

  // Requires a text that is not empty.
  bool Given(const std::string& name, const std::string& text) const {
    return Require(!message_.GetReflection()->GetString(message_, &Find(name)).empty(), name, text);
  }

  // Requires a number of at most `most`: a larger one would take memory or time before anything
  // could refuse it.
  bool AtMost(double most, const std::string& name) const {
    return Require(Number(name) <= most, name,
                   absl::StrCat("must be at most ", static_cast<int64_t>(most)));
  }

  // Requires a number of at least `least`.
  bool AtLeast(double least, const std::string& name, const std::string& text = "") const {
    return Require(Number(name) >= least, name,
                   text.empty() ? absl::StrCat("must be at least ", least) : text);
  }

  bool Is0(const std::string& name, const std::string& text) const {
    return Require(Number(name) == 0, name, text);
  }

  bool Above0(const std::string& name, const std::string& text = "must be above 0") const {
    return Require(Number(name) > 0, name, text);
  }

  bool Within(double least, double most, const std::string& name, const std::string& text) const {
    return Require(Number(name) >= least && Number(name) <= most, name, text);
  }

  bool Probability(const std::string& name) const {
    return Require(Number(name) >= 0 && Number(name) < 1, name, "must be at least 0 and below 1");
  }

  // Requires a tag of a language.
  bool Language(const std::string& name, const std::string& tag) const {
    return Require(IsLanguageTag(tag), name, Quoted(tag),
                   "must be a tag of letters, digits and '_'");
  }

  // Adds the numbers that are not finite and the enum values without a name, anywhere below the
  // message: the file formats let both through.
  void CheckValues() const;

  static std::string Quoted(const std::string& text) { return absl::StrCat("'", text, "'"); }

 private:
  const FieldDescriptor& Find(const std::string& name) const {
    const FieldDescriptor* field = message_.GetDescriptor()->FindFieldByName(name);
    DEEPNET_CHECK(field != nullptr) << path_ << name << " is no field";
    return *field;
  }
  double Number(const std::string& name) const;
  std::string ValueText(const FieldDescriptor& field) const;

  const Message& message_;
  const std::string path_;
  Mistakes& mistakes_;
};

double Fields::Number(const std::string& name) const {
  const FieldDescriptor& field = Find(name);
  const auto& reflection = *message_.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message_, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message_, &field));
    default:
      return reflection.GetDouble(message_, &field);
  }
}

std::string Fields::ValueText(const FieldDescriptor& field) const {
  const auto& reflection = *message_.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return Quoted(reflection.GetString(message_, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnum(message_, &field)->name();
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(message_, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message_, &field));
    default:
      return absl::StrCat(reflection.GetDouble(message_, &field));
  }
}

void Fields::CheckValues() const {
  const auto& reflection = *message_.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message_, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool many = field->is_repeated();
    for (int i = 0; i < (many ? reflection.FieldSize(message_, field) : 1); ++i) {
      const std::string name = absl::StrCat(field->name(), many ? absl::StrCat("[", i, "]") : "");
      if (field->message_type() != nullptr) {
        const Message& inner = many ? reflection.GetRepeatedMessage(message_, field, i)
                                    : reflection.GetMessage(message_, field);
        Fields(inner, absl::StrCat(path_, name, "."), &mistakes_).CheckValues();
      } else if (field->enum_type() != nullptr && !many) {
        const int value = reflection.GetEnumValue(message_, field);
        Require(field->enum_type()->FindValueByNumber(value) != nullptr, name, absl::StrCat(value),
                "is no value of " + field->enum_type()->name());
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        const double value = many ? reflection.GetRepeatedDouble(message_, field, i)
                                  : reflection.GetDouble(message_, field);
        Require(std::isfinite(value), name, absl::StrCat(value), "must be finite");
      }
    }
  }
}

// ---- model ----

void CheckDeepNorm(const ModelSpec& model, Mistakes* mistakes) {
  if (model.deepnorm().ByteSizeLong() > 0 && model.residual() != RESIDUAL_UNSPECIFIED) {
    Fields(model, "model.", mistakes)
        .Require(model.residual() == DEEPNORM, "deepnorm", Residual_Name(model.residual()),
                 "only with model.residual: DEEPNORM");
  }
  const Fields deepnorm(model.deepnorm(), "model.deepnorm.", mistakes);
  for (const char* name : {"encoder_alpha", "encoder_beta", "decoder_alpha", "decoder_beta"}) {
    deepnorm.AtLeast(0, name, "must be above 0, or 0 for the formula");
  }
}

// A setting of another scheme would be a misunderstanding.
void CheckScheme(const ModelSpec& model, Mistakes* mistakes) {
  const SchemeSpec& scheme = model.scheme();
  const Fields fields(scheme, "model.scheme.", mistakes);
  const auto only_with = [&](bool set, const char* name, Residual residual) {
    fields.Require(!set || model.residual() == residual, name, Residual_Name(model.residual()),
                   absl::StrCat("only with model.residual: ", Residual_Name(residual)));
  };
  only_with(scheme.ds_exponent() != 0, "ds_exponent", DS_INIT);
  only_with(scheme.mix_ln_fraction() != 0, "mix_ln_fraction", MIX_LN);
  only_with(scheme.keel_alpha() != 0, "keel_alpha", KEEL);
  only_with(scheme.normformer_scaled_residual(), "normformer_scaled_residual", NORMFORMER);
  only_with(scheme.admin_omega_size() > 0, "admin_omega", ADMIN);
  only_with(scheme.residual_dual_scale() != 0, "residual_dual_scale", RESIDUAL_DUAL);
  only_with(scheme.branch_norm_steps() != 0, "branch_norm_steps", BRANCH_NORM);
  fields.AtLeast(0, "residual_dual_scale", "must be above 0, or 0 for 1");
  fields.AtLeast(0, "branch_norm_steps", "must be at least 1, or 0 for 4000");
  fields.AtLeast(0, "ds_exponent", "must be above 0, or 0 for 0.5");
  fields.Within(0, 1, "mix_ln_fraction", "must be from 0 to 1; 0 stands for 0.25");
  fields.AtLeast(0, "keel_alpha", "must be above 0, or 0 for the number of sub-layers");
  const int sublayers = NumSublayers(model), omegas = scheme.admin_omega_size();
  fields.Require(
      omegas == 0 || omegas == sublayers, "admin_omega", absl::StrCat(omegas),
      absl::StrCat("must have a number for each of the ", sublayers, " sub-layers, or none"));
  for (int i = 0; i < omegas; ++i) {
    fields.Require(scheme.admin_omega(i) > 0, absl::StrCat("admin_omega[", i, "]"),
                   absl::StrCat(scheme.admin_omega(i)), "must be above 0");
  }
}

// Layers where the architecture has a stack, none where it has not.
void CheckStacks(const ModelSpec& model, Mistakes* mistakes) {
  const Fields fields(model, "model.", mistakes);
  const Fields deepnorm(model.deepnorm(), "model.deepnorm.", mistakes);
  const std::string only = absl::StrCat(
      "with model.architecture: ", Architecture_Name(model.architecture()), ": must be 0");
  const auto stack = [&](const std::string& name, Architecture without) {
    if (model.architecture() != without) {
      fields.AtLeast(1, name + "_layers");
      return;
    }
    fields.Is0(name + "_layers", only);
    deepnorm.Is0(name + "_alpha", only);
    deepnorm.Is0(name + "_beta", only);
  };
  stack("encoder", DECODER_ONLY);
  stack("decoder", ENCODER_ONLY);
}

void CheckModel(const ModelSpec& model, Purpose purpose, Mistakes* mistakes) {
  const Fields fields(model, "model.", mistakes);
  for (const ModelLimit& limit : ModelLimits()) {
    fields.AtMost(static_cast<double>(limit.most), limit.field);
  }
  CheckStacks(model, mistakes);
  const bool has_width = fields.AtLeast(1, "d_model");
  if (has_width && model.positions() == SINUSOIDAL) {
    fields.Require(model.d_model() % 2 == 0 && model.d_model() >= 4, "d_model",
                   "must be even and at least 4 with positions: SINUSOIDAL");
  } else if (has_width) {
    fields.AtLeast(4, "d_model");
  }
  fields.AtLeast(1, "ffn_dim");
  if (fields.AtLeast(1, "num_heads") && has_width) {
    fields.Require(model.d_model() % model.num_heads() == 0, "num_heads",
                   absl::StrCat("must divide model.d_model (", model.d_model(), ")"));
    constexpr int64_t kMaxHeads = native::kMaxDropoutFeatures / native::kMaxAttentionKeys;
    fields.Require(model.attention_dropout() <= 0 || model.num_heads() <= kMaxHeads, "num_heads",
                   absl::StrCat("must be at most ", kMaxHeads, " with model.attention_dropout"));
  }
  std::vector<std::string> names;
  for (int i = 1; i < Residual_descriptor()->value_count(); ++i) {
    names.push_back(Residual_descriptor()->value(i)->name());
  }
  fields.Require(model.residual() != RESIDUAL_UNSPECIFIED, "residual",
                 absl::StrCat("required: one of ", absl::StrJoin(names, ", ")));
  CheckDeepNorm(model, mistakes);
  CheckScheme(model, mistakes);
  const bool from_corpus = purpose == Purpose::kTrain;
  fields.Require(model.vocabulary_size() > 4 || (from_corpus && model.vocabulary_size() == 0),
                 "vocabulary_size",
                 from_corpus ? "must be above 4 (the special ids), or 0: taken from the corpus"
                             : "required here, above 4 (the special ids)");
  fields.AtLeast(1, "max_positions");
  fields.Probability("dropout");
  fields.Probability("attention_dropout");
  fields.Probability("activation_dropout");
  fields.Above0("layer_norm_epsilon");
}

// ---- data ----

// Tokens that a packed sentence has besides its pieces.
int SourceExtra(const DataSpec& data) { return data.tags() == NO_TAGS ? 1 : 2; }  // tag, </s>
int TargetExtra(const DataSpec& data, Architecture architecture) {
  if (architecture == ENCODER_ONLY) return SourceExtra(data);  // whose source is what has labels
  return data.tags() == M2M ? 2 : 1;
}

// Positions of a microbatch, and of all microbatches of a step, which every rank holds.
constexpr int64_t kMaxMicrobatchTokens = 1 << 24;
constexpr int64_t kMaxStepTokens = 1 << 28;
constexpr int kMaxMicrobatches = 100'000;
constexpr int kMaxThreads = 1024;
constexpr int kMaxPieces = 1'000'000;
constexpr int kMaxSpikeWindow = 1024;  // steps: the work of a step grows with their square

void CheckMicrobatch(const DataSpec& data, Architecture architecture, Mistakes* mistakes) {
  const MicrobatchSpec& microbatch = data.microbatch();
  const Fields fields(microbatch, "data.microbatch.", mistakes);
  for (const char* name : {"max_source_tokens", "max_target_tokens", "max_sentences"}) {
    fields.AtMost(kMaxMicrobatchTokens, name);
  }
  if (!fields.AtLeast(1, "max_target_tokens", "required, at least 1")) return;
  fields.AtLeast(1, "max_sentences");
  const auto holds = [&](const char* name, int extra) {
    fields.AtLeast(data.max_sentence_tokens() + extra, name,
                   absl::StrCat("must hold the longest sentence: data.max_sentence_tokens (",
                                data.max_sentence_tokens(), ") and ", extra,
                                " more; raise it, or lower data.max_sentence_tokens"));
  };
  if (architecture != ENCODER_DECODER) {
    fields.Is0("max_source_tokens",
               absl::StrCat("must be 0 with model.architecture: ", Architecture_Name(architecture),
                            ", whose one stack has max_target_tokens"));
  } else if (microbatch.max_source_tokens() != 0) {  // 0: chosen from the corpus, large enough
    holds("max_source_tokens", SourceExtra(data));
  }
  holds("max_target_tokens", TargetExtra(data, architecture));
}

void CheckTemperature(const DataSpec& data, Mistakes* mistakes) {
  int64_t previous = -1;
  for (int i = 0; i < data.temperature_size(); ++i) {
    const TemperaturePoint& point = data.temperature(i);
    const Fields fields(point, absl::StrCat("data.temperature[", i, "]."), mistakes);
    const bool first = i == 0;
    fields.Require(first ? point.from_step() == 0 : point.from_step() > previous, "from_step",
                   first ? "the first point must say 0" : "must be above the point before");
    fields.AtLeast(1, "temperature");
    previous = point.from_step();
  }
}

void CheckDirections(const DataSpec& data, const Fields& fields) {
  std::set<std::string> seen;
  const auto check = [&](const std::string& direction, const std::string& name) {
    const auto require = [&](bool good, const char* text) {
      return fields.Require(good, name, Fields::Quoted(direction), text);
    };
    const std::vector<std::string> parts = absl::StrSplit(direction, absl::MaxSplits('.', 1));
    const std::vector<std::string> sides = absl::StrSplit(parts[0], '-');
    const bool languages =
        sides.size() == 2 && std::ranges::all_of(sides, [](const std::string& side) {
          return side == "*" || IsLanguageTag(side);
        });
    const bool tag = parts.size() < 2 || IsLanguageTag(parts[1]);
    if (require(languages && tag, "must be two language tags, as in 'de-en', '*-en', 'de-en.bt'")) {
      require(sides[0] != sides[1] || sides[0] == "*", "must be two different languages");
    }
    require(seen.insert(direction).second, "is listed twice");
  };
  for (int i = 0; i < data.directions_size(); ++i) {
    check(data.directions(i), absl::StrCat("directions[", i, "]"));
  }
  seen.clear();
  for (int i = 0; i < data.weights_size(); ++i) {
    const std::string name = absl::StrCat("weights[", i, "].");
    check(data.weights(i).direction(), name + "direction");
    const double weight = data.weights(i).weight();
    fields.Require(weight > 0, name + "weight", absl::StrCat(weight), "must be above 0");
  }
}

void CheckData(const RunSpec& run, Mistakes* mistakes) {
  const DataSpec& data = run.data();
  const ModelSpec& model = run.model();
  const Fields fields(data, "data.", mistakes);
  CheckTemperature(data, mistakes);
  const double share = data.mlm_probability();
  if (model.architecture() == ENCODER_ONLY) {
    fields.Require(share > 0 && share < 1, "mlm_probability", "must be above 0 and below 1");
  } else {
    fields.Is0("mlm_probability", "only with model.architecture: ENCODER_ONLY");
  }
  if (fields.AtLeast(1, "max_sentence_tokens")) {
    CheckMicrobatch(data, model.architecture(), mistakes);
    const int longest = data.max_sentence_tokens() + 2;
    Fields(model, "model.", mistakes)
        .Require(model.max_positions() < 1 || model.max_positions() >= longest, "max_positions",
                 absl::StrCat("must be at least data.max_sentence_tokens + 2 (", longest, ")"));
    const int64_t most = native::kMaxAttentionKeys - SourceExtra(data);
    fields.Require(
        model.attention_dropout() <= 0 || data.max_sentence_tokens() <= most, "max_sentence_tokens",
        absl::StrCat("must be at most ", most, " with model.attention_dropout: its random numbers ",
                     "know ", native::kMaxAttentionKeys, " keys"));
  }
  if (fields.AtLeast(1, "global_microbatches") &&
      fields.AtMost(kMaxMicrobatches, "global_microbatches")) {
    const MicrobatchSpec& microbatch = data.microbatch();
    const int64_t tokens = int64_t{microbatch.max_source_tokens()} + microbatch.max_target_tokens();
    fields.Require(data.global_microbatches() * tokens <= kMaxStepTokens, "global_microbatches",
                   absl::StrCat("times the ", tokens, " tokens of data.microbatch must be at most ",
                                kMaxStepTokens, ": a rank holds the step's tokens"));
  }
  fields.AtLeast(0, "subword_alpha", "must be above 0, or 0: off");
  if (data.subword_alpha() > 0) {
    fields.Within(2, 1024, "subword_nbest", "must be from 2 to 1024");
  } else {
    fields.Is0("subword_nbest", "only with data.subword_alpha");
  }
  CheckDirections(data, fields);
}

// ---- prepare ----

void CheckText(const TextFiles& text, const Fields& fields) {
  const bool has_source = fields.Language("source_language", text.source_language());
  const bool has_target = fields.Language("target_language", text.target_language());
  if (has_source && has_target) {
    fields.Require(text.source_language() != text.target_language(), "target_language",
                   "must differ from source_language");
  }
  if (!text.tsv_file().empty()) {
    fields.Require(text.source_file().empty() && text.target_file().empty(), "tsv_file",
                   "not together with source_file and target_file");
    fields.Require(text.score_file().empty(), "score_file",
                   "not with tsv_file, which has a column for it");
  } else {
    const char* needed = "required, or tsv_file instead of source_file and target_file";
    fields.Given("source_file", needed);
    fields.Given("target_file", needed);
  }
  fields.Require(text.split() == "train" || text.split() == "dev" || text.split() == "test",
                 "split", "must be 'train', 'dev' or 'test'");
  if (text.tag().empty()) return;
  fields.Language("tag", text.tag());
  fields.Require(text.split() == "train", "tag", "only with split: 'train'");
}

// Checks the list of tags `languages` of a message.
template <typename Languages>
void CheckLanguages(const Languages& languages, const Fields& fields) {
  for (int i = 0; i < languages.size(); ++i) {
    fields.Language(absl::StrCat("languages[", i, "]"), languages.Get(i));
  }
}

void CheckTable(const LanguageTable& table, const Fields& fields) {
  fields.Given("file", "required");
  fields.Language("pivot_language", table.pivot_language());
  CheckLanguages(table.languages(), fields);
  fields.Within(-1, 50, "dev_percent", "must be from 1 to 50, or -1: none");
  fields.Within(-1, 50, "test_percent", "must be from 1 to 50, or -1: none");
}

void CheckTokenizer(const TokenizerSpec& tokenizer, Mistakes* mistakes) {
  if (!tokenizer.model_file().empty()) return;  // nothing is learned
  const Fields fields(tokenizer, "prepare.tokenizer.", mistakes);
  fields.AtLeast(5, "vocab_size", "must be above 4 (the special ids)");
  fields.AtMost(kMaxPieces, "vocab_size");
  fields.Require(tokenizer.character_coverage() > 0 && tokenizer.character_coverage() <= 1,
                 "character_coverage", "must be above 0 and at most 1");
  fields.AtLeast(1, "input_sentence_size");
  fields.AtLeast(1, "sample_temperature");
  fields.Require(tokenizer.type() == "unigram" || tokenizer.type() == "bpe", "type",
                 "must be 'unigram' or 'bpe'");
}

void CheckPrepare(const RunSpec& run, Mistakes* mistakes) {
  const PrepareSpec& prepare = run.prepare();
  const Fields fields(prepare, "prepare.", mistakes);
  const bool opus100 = !prepare.opus100_folder().empty();
  fields.Require(opus100 || prepare.text_size() > 0 || prepare.table_size() > 0, "opus100_folder",
                 "required, or prepare.text or prepare.table: there is nothing to read");
  fields.Require(prepare.languages().empty() || opus100, "languages",
                 Fields::Quoted(absl::StrJoin(prepare.languages(), ",")),
                 "only with prepare.opus100_folder");
  CheckLanguages(prepare.languages(), fields);
  for (int i = 0; i < prepare.text_size(); ++i) {
    const TextFiles& text = prepare.text(i);
    CheckText(text, Fields(text, absl::StrCat("prepare.text[", i, "]."), mistakes));
  }
  for (int i = 0; i < prepare.table_size(); ++i) {
    const LanguageTable& table = prepare.table(i);
    CheckTable(table, Fields(table, absl::StrCat("prepare.table[", i, "]."), mistakes));
  }
  fields.AtLeast(1, "threads");
  fields.AtMost(kMaxThreads, "threads");
  const Fields cleaning(prepare.cleaning(), "prepare.cleaning.", mistakes);
  cleaning.AtLeast(1, "max_sentence_tokens");
  cleaning.AtLeast(1, "max_length_ratio");
  CheckTokenizer(prepare.tokenizer(), mistakes);
  Fields(run.data(), "data.", mistakes).Given("folder", "required: where the corpus goes");
}

// ---- optim, compute, layout, train, decode ----

void CheckSchedule(const RunSpec& run, const Fields& fields) {
  const OptimSpec& optim = run.optim();
  if (fields.AtLeast(0, "warmup_steps") && optim.schedule() == INVERSE_SQRT) {
    fields.AtLeast(1, "warmup_steps",
                   "INVERSE_SQRT decays from the warm-up on: must be at least 1");
  }
  const bool is_wsd = optim.schedule() == WSD;
  if (!is_wsd) fields.Is0("wsd_decay_steps", "only with schedule: WSD");
  if (optim.schedule() != COSINE && !is_wsd) {
    fields.Is0("decay_steps", "only with schedule: COSINE or WSD");
    fields.Is0("final_learning_rate", "only with schedule: COSINE or WSD");
    return;
  }
  fields.Within(0, optim.learning_rate(), "final_learning_rate",
                "must be from 0 to optim.learning_rate");
  const int64_t warmup = ScaledToBatch(optim, run.data()).warmup_steps();
  if (fields.Require(optim.decay_steps() > warmup, "decay_steps",
                     absl::StrCat(LearningRateSchedule_Name(optim.schedule()),
                                  " needs it, above optim.warmup_steps (", warmup,
                                  warmup == optim.warmup_steps() ? ")" : " for this batch)")) &&
      is_wsd) {
    const int64_t stable = optim.decay_steps() - warmup;
    fields.Within(1, static_cast<double>(stable), "wsd_decay_steps",
                  absl::StrCat("must be from 1 to optim.decay_steps less optim.warmup_steps (",
                               stable, "): the decay begins behind the warm-up"));
  }
}

void CheckLossScale(const RunSpec& run, const Fields& fields) {
  const DataType dtype = run.compute().dtype();
  for (const char* name : {"fp16_init_scale", "fp16_scale_window", "fp16_scale_tolerance",
                           "min_loss_scale", "threshold_loss_scale"}) {
    if (!fields.AtLeast(0, name, "must be above 0, or 0: the default")) continue;
    if (dtype == FLOAT32 || dtype == BFLOAT16) fields.Is0(name, "only with compute.dtype: FLOAT16");
  }
}

void CheckOptim(const RunSpec& run, Purpose purpose, Mistakes* mistakes) {
  const OptimSpec& optim = run.optim();
  const Fields fields(optim, "optim.", mistakes);
  const double rate = optim.learning_rate();
  const bool absent = purpose == Purpose::kPlan && rate == 0;
  if (!absent && fields.Above0("learning_rate", "required, above 0")) {
    fields.Within(0, rate, "initial_learning_rate",
                  absl::StrCat("must be from 0 to optim.learning_rate (", rate, ")"));
    CheckSchedule(run, fields);
  }
  fields.Probability("beta1");
  fields.Probability("beta2");
  fields.Above0("epsilon");
  fields.AtLeast(0, "weight_decay");
  fields.AtLeast(0, "clip_norm", "must be above 0, or 0: off");
  fields.Probability("label_smoothing");
  fields.Probability("ema_decay");
  fields.AtLeast(0, "reference_batch_tokens", "must be above 0, or 0: rates are as they are given");
  fields.Require(optim.rate_scaling() == LINEAR || optim.reference_batch_tokens() != 0,
                 "rate_scaling", "only with optim.reference_batch_tokens");
  CheckLossScale(run, fields);
  const int replicas = optim.virtual_replicas();
  if (replicas == 0) return;  // the planner's
  const int microbatches = run.data().global_microbatches();
  if (fields.Require(replicas > 0 && (replicas & (replicas - 1)) == 0, "virtual_replicas",
                     "must be a power of two")) {
    fields.Require(microbatches < 1 || microbatches % replicas == 0, "virtual_replicas",
                   absl::StrCat("must divide data.global_microbatches (", microbatches, ")"));
  }
}

void CheckCompute(const RunSpec& run, Mistakes* mistakes) {
  const ComputeSpec& compute = run.compute();
  const Fields fields(compute, "compute.", mistakes);
  const std::string& device = compute.device();
  const bool cuda = device == "cuda";
  fields.Require(device.empty() || device == "auto" || device == "cpu" || cuda, "device",
                 "must be 'auto', 'cpu' or 'cuda'");
  fields.Require(compute.residual_dtype() != BFLOAT16, "residual_dtype",
                 "only FLOAT32: at 500-500 a branch starts at 0.0028 of the stream and "
                 "bfloat16 rounds at 0.0039, so it would vanish");
  fields.Require(!cuda || compute.matmul() != NATIVE, "matmul",
                 "only with compute.device: 'cpu'; allowed here: LIBRARY");
  const bool cpu = device == "cpu";
  fields.Require(!cpu || compute.dtype() != FLOAT16, "dtype",
                 "only with compute.device: 'cuda'; allowed here: BFLOAT16, FLOAT32");
  if (fields.Require(!cpu || compute.attention() == AUTO, "attention",
                     "only with compute.device: 'cuda'") &&
      compute.attention() == FLASH) {
    const std::string obstacle = FlashObstacle(run.model(), compute.dtype());
    fields.Require(obstacle.empty(), "attention", obstacle);
  } else if (cuda && run.model().num_heads() > 0) {
    const int width = run.model().d_model() / run.model().num_heads();
    Fields(run.model(), "model.", mistakes)
        .Require(width <= native::kMaxGpuHeadDim, "num_heads",
                 absl::StrCat("heads of ", width, " features: with compute.device: 'cuda' ",
                              "model.d_model / model.num_heads must be at most ",
                              native::kMaxGpuHeadDim));
  }
  if (compute.cuda_graphs()) {
    const auto require = [&](bool good, const std::string& text) {
      fields.Require(good, "cuda_graphs", "true", text);
    };
    require(!cpu, "only with compute.device: 'cuda'");
    require(run.model().norm() != BATCH_NORM,
            "not with model.norm: BATCH_NORM, whose statistics would count padding");
    require(!run.has_instruments(), "not with instruments, which look into passes");
  }
  fields.AtLeast(0, "threads_per_rank", "must be at least 1, or 0: left to the program");
  fields.AtMost(kMaxThreads, "threads_per_rank");
}

void CheckLayout(const RunSpec& run, Mistakes* mistakes) {
  const ClusterSpec& cluster = run.cluster();
  const Fields machines(cluster, "cluster.", mistakes);
  const char* of_job = "must be at least 1, or 0: those of the job";
  const bool has_nodes = machines.AtLeast(0, "nodes", of_job);
  const bool has_devices = machines.AtLeast(0, "devices_per_node", of_job);
  const bool has_ranks = has_nodes && has_devices;
  const bool is_given = cluster.nodes() > 0 || cluster.devices_per_node() > 0;
  machines.AtLeast(0, "device_memory_gib", "must be above 0, or 0: what the host has");

  const Fields fields(run.parallel(), "parallel.", mistakes);
  const int stages = run.parallel().pipeline_parallel_size();
  const int replicas = run.parallel().data_parallel_size();
  const char* of_planner = "must be at least 1, or 0: left to the planner";
  fields.AtLeast(0, "pipeline_parallel_size", of_planner);
  fields.AtLeast(0, "data_parallel_size", of_planner);
  const int64_t ranks =
      std::max(1, cluster.nodes()) * int64_t{std::max(1, cluster.devices_per_node())};
  if (has_ranks && is_given && stages > 0 && replicas > 0) {
    fields.Require(int64_t{stages} * replicas == ranks, "pipeline_parallel_size",
                   absl::StrCat("times parallel.data_parallel_size (", replicas, ") must be ",
                                ranks, ", all ranks of the cluster"));
  }
  const int layers = run.model().encoder_layers() + run.model().decoder_layers();
  fields.Require(layers < 1 || stages <= layers, "pipeline_parallel_size",
                 absl::StrCat("must be at most the number of layers (", layers, ")"));
  const int microbatches = run.data().global_microbatches();
  fields.Require(microbatches < 1 || replicas <= microbatches, "data_parallel_size",
                 absl::StrCat("must be at most data.global_microbatches (", microbatches,
                              "): each replica computes at least one"));
}

void CheckSpike(const SpikeSpec& spike, Mistakes* mistakes) {
  const Fields fields(spike, "train.spike.", mistakes);
  if (spike.deviations() == 0) {
    fields.Require(
        spike.action() == SpikeSpec::WARN, "deviations",
        absl::StrCat("required with train.spike.action: ", SpikeSpec::Action_Name(spike.action())));
    return;
  }
  if (!fields.AtLeast(0, "deviations", "must be above 0, or 0: off")) return;
  fields.AtLeast(4, "window_steps", "must be at least 4");
  fields.AtMost(kMaxSpikeWindow, "window_steps");
  fields.AtLeast(0, "steps_before");
  fields.AtLeast(0, "steps_after");
  fields.AtLeast(0, "max_roll_backs");
}

void CheckTrain(const TrainSpec& train, Mistakes* mistakes) {
  const Fields fields(train, "train.", mistakes);
  fields.AtLeast(0, "steps", "must be at least 1, or 0: no limit");
  fields.AtLeast(0, "max_train_minutes", "must be above 0, or 0: no limit");
  fields.AtLeast(1, "checkpoint_every_steps");
  fields.Require(train.validate_every_steps() >= 1 || train.validate_every_steps() == -1,
                 "validate_every_steps", "must be at least 1, or -1: only at the end");
  fields.AtLeast(1, "validate_sentences");
  fields.AtLeast(1, "keep_checkpoints");
  fields.AtLeast(0, "keep_every_steps", "must be above 0, or 0: off");
  fields.AtLeast(0, "exit_after_minutes",
                 "must be above 0, or 0: until the batch system ends the job");
  fields.AtLeast(1, "log_every_steps");
  fields.AtLeast(0, "checkpoint_every_minutes", "must be above 0, or 0: off");
  fields.AtLeast(0, "validate_every_minutes", "must be above 0, or 0: off");
  fields.AtLeast(0, "patience", "must be at least 1, or 0: off");
  fields.AtLeast(0, "checkpoint_every_tokens", "must be at least 1, or 0: off");
  fields.AtLeast(0, "validate_every_tokens", "must be at least 1, or 0: off");
  fields.AtLeast(0, "checkpoint_every_epochs", "must be above 0, or 0: off");
  fields.AtLeast(0, "validate_every_epochs", "must be above 0, or 0: off");
  fields.AtLeast(0, "sample_translations");
  const std::string& prometheus = train.prometheus_file();
  fields.Require(prometheus.empty() || absl::EndsWith(prometheus, ".prom"), "prometheus_file",
                 "must end in .prom, as node_exporter wants it");
  CheckSpike(train.spike(), mistakes);
}

void CheckInstruments(const InstrumentsSpec& instruments, Mistakes* mistakes) {
  const Fields fields(instruments, "instruments.", mistakes);
  fields.AtLeast(0, "every_steps", "must be at least 1, or 0: off");
  fields.Require(instruments.every_steps() != 0 || !instruments.model_update(), "every_steps",
                 "must be at least 1 with instruments.model_update");
}

void CheckDecode(const RunSpec& run, Mistakes* mistakes) {
  const DecodeSpec& decode = run.decode();
  const Fields fields(decode, "decode.", mistakes);
  const bool has_beam =
      fields.AtLeast(1, "beam_size") && fields.AtMost(kMaxHypotheses, "beam_size");
  fields.AtLeast(0, "length_penalty");
  fields.AtLeast(1, "max_tokens");
  fields.AtLeast(0, "max_ratio", "must be above 0, or 0: off");
  fields.AtLeast(0, "batch_tokens", "must be at least 1, or 0: as the device likes");
  fields.AtMost(kMaxBatchTokens, "batch_tokens");
  const bool has_nbest = fields.AtLeast(1, "nbest") && fields.AtMost(kMaxHypotheses, "nbest");
  fields.AtLeast(0, "sampling_temperature", "must be above 0, or 0: search");
  fields.AtLeast(0, "sampling_top_k", "must be at least 1, or 0: all");
  fields.Within(0, 1, "sampling_top_p", "must be above 0 and at most 1, or 0: all");
  fields.Probability("sampling_epsilon");
  if (has_beam && has_nbest && decode.sampling_temperature() == 0) {
    fields.Require(decode.nbest() <= decode.beam_size(), "nbest",
                   absl::StrCat("must be at most decode.beam_size (", decode.beam_size(), ")"));
  }
  const int positions = run.model().max_positions();
  fields.Require(positions < 1 || decode.max_tokens() + 2 <= positions, "max_tokens",
                 absl::StrCat("must be at most model.max_positions (", positions, ") less 2"));
}

absl::Status Validate(const RunSpec& run, Purpose purpose) {
  const bool train = purpose == Purpose::kTrain;
  Mistakes mistakes;
  const Fields fields(run, "", &mistakes);
  fields.CheckValues();
  if (train) fields.Given("folder", "required: where checkpoints and logs go");
  CheckModel(run.model(), purpose, &mistakes);
  const Fields data(run.data(), "data.", &mistakes);
  if (train) data.Given("folder", "required: what `deepnet prepare` wrote");
  CheckData(run, &mistakes);
  CheckOptim(run, purpose, &mistakes);
  CheckCompute(run, &mistakes);
  CheckLayout(run, &mistakes);
  if (train) {
    CheckTrain(run.train(), &mistakes);
    CheckDecode(run, &mistakes);
    CheckInstruments(run.instruments(), &mistakes);
  }
  return BadConfig(mistakes);
}

}  // namespace

absl::Status ValidateForPlan(const RunSpec& run) { return Validate(run, Purpose::kPlan); }

absl::Status ValidateForTrain(const RunSpec& run) { return Validate(run, Purpose::kTrain); }

absl::Status ValidateForPrepare(const RunSpec& run) {
  Mistakes mistakes;
  Fields(run.prepare(), "prepare.", &mistakes).CheckValues();
  CheckPrepare(run, &mistakes);
  return BadConfig(mistakes);
}

}  // namespace deepnet
