// Each Check* function looks at one message and adds its mistakes to the list; nothing stops at the
// first. A check that would only repeat an earlier mistake (heads of a width of 0) is left out.
#include "launch/validate.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/flags.h"
#include "parallel/base/messages.h"
#include "trainer/data/pair_index.h"
#include "trainer/decode/search.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/model/architecture.h"
#include "trainer/model/check_model.h"
#include "trainer/optim/learning_rate.h"

namespace deepnet {
namespace {

bool Language(const Fields& fields, const std::string& name, const std::string& tag) {
  return fields.Require(IsLanguageTag(tag), name, Fields::Quoted(tag),
                        "must be a tag of letters, digits and '_'");
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
constexpr int64_t kMaxRanks = 1 << 17;
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
  if (fields.AtLeast(1, "max_sentence_tokens") &&
      fields.AtMost(kMaxMicrobatchTokens, "max_sentence_tokens")) {
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
  const bool has_source = Language(fields, "source_language", text.source_language());
  const bool has_target = Language(fields, "target_language", text.target_language());
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
  Language(fields, "tag", text.tag());
  fields.Require(text.split() == "train", "tag", "only with split: 'train'");
}

void CheckLanguages(const auto& message, const Fields& fields) {
  for (int i = 0; i < message.languages_size(); ++i) {
    Language(fields, absl::StrCat("languages[", i, "]"), message.languages(i));
  }
}

void CheckTable(const LanguageTable& table, const Fields& fields) {
  fields.Given("file", "required");
  Language(fields, "pivot_language", table.pivot_language());
  CheckLanguages(table, fields);
  for (const char* name : {"dev_percent", "test_percent"}) {
    fields.Within(-1, 50, name, "must be from 1 to 50, or -1: none");
  }
}

void CheckTokenizer(const TokenizerSpec& tokenizer, Mistakes* mistakes) {
  if (!tokenizer.model_file().empty()) return;  // nothing is learned
  const Fields fields(tokenizer, "prepare.tokenizer.", mistakes);
  fields.AtLeast(5, "vocab_size", "must be above 4 (the special ids)");
  fields.AtMost(kMaxPieces, "vocab_size");
  fields.Within(0.98, 1, "character_coverage", "must be at least 0.98 and at most 1");
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
  CheckLanguages(prepare, fields);
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

void CheckOptim(const RunSpec& run, bool train, Mistakes* mistakes) {
  const OptimSpec& optim = run.optim();
  const Fields fields(optim, "optim.", mistakes);
  const double rate = optim.learning_rate();
  if ((train || rate != 0) && fields.Above0("learning_rate", "required, above 0")) {
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
  const bool has_ranks = machines.AtLeast(0, "devices_per_node", of_job) && has_nodes;
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
  machines.Require(ranks <= kMaxRanks, "nodes",
                   absl::StrCat("times cluster.devices_per_node (", cluster.devices_per_node(),
                                ") must be at most ", kMaxRanks, " ranks"));
  if (has_ranks && is_given && stages > 0 && replicas > 0) {
    fields.Require(int64_t{stages} * replicas == ranks, "pipeline_parallel_size",
                   absl::StrCat("times parallel.data_parallel_size (", replicas, ") must be ",
                                ranks, ", all ranks of the cluster"));
  }
  const int64_t layers = int64_t{run.model().encoder_layers()} + run.model().decoder_layers();
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
  const auto off_or = [&](const std::string& least, std::initializer_list<const char*> names) {
    for (const char* name : names) fields.AtLeast(0, name, "must be " + least + ", or 0: off");
  };
  off_or("above 0", {"checkpoint_every_minutes", "validate_every_minutes"});
  off_or("at least 1", {"patience", "checkpoint_every_tokens", "validate_every_tokens"});
  off_or("above 0", {"checkpoint_every_epochs", "validate_every_epochs"});
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
  fields.Require(positions < 1 || int64_t{decode.max_tokens()} + 2 <= positions, "max_tokens",
                 absl::StrCat("must be at most model.max_positions (", positions, ") less 2"));
}

absl::Status Validate(const RunSpec& run, bool train) {
  Mistakes mistakes;
  const Fields fields(run, "", &mistakes);
  if (!fields.CheckValues()) return BadConfig(mistakes);
  if (train) fields.Given("folder", "required: where checkpoints and logs go");
  CheckModel(run.model(), /*from_corpus=*/train, &mistakes);
  const Fields data(run.data(), "data.", &mistakes);
  if (train) data.Given("folder", "required: what `deepnet prepare` wrote");
  CheckData(run, &mistakes);
  CheckOptim(run, train, &mistakes);
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

absl::Status ValidateForPlan(const RunSpec& run) { return Validate(run, /*train=*/false); }

absl::Status ValidateForTrain(const RunSpec& run) { return Validate(run, /*train=*/true); }

absl::Status ValidateForPrepare(const RunSpec& run) {
  Mistakes mistakes;
  if (!Fields(run.prepare(), "prepare.", &mistakes).CheckValues() ||
      !Fields(run.data(), "data.", &mistakes).CheckValues()) {
    return BadConfig(mistakes);
  }
  CheckPrepare(run, &mistakes);
  return BadConfig(mistakes);
}

}  // namespace deepnet
