// What runs were trained with, in words, beside what the paper says.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

#include "parallel/base/logging.h"
#include "trainer/probe/axis.h"
#include "trainer/probe/findings.h"
#include "trainer/probe/quantities.h"

namespace deepnet {
namespace {

using Text = std::function<std::string(const RunSpec& run)>;

constexpr size_t kMostValues = 6;  // of one setting, all named

// The different values of `text` over the cells, in their order.
std::string Values(const LabResult& result, const Text& text) {
  std::vector<std::string> values;
  std::set<std::string> seen;
  for (const LabCell& cell : result.cells()) {
    const std::string value = text(cell.run());
    if (seen.insert(value).second) values.push_back(value);
  }
  if (values.size() > kMostValues) {
    return absl::StrCat(values.front(), " … ", values.back(), " (", values.size(), " values)");
  }
  return absl::StrJoin(values, "; ");
}

std::string WidthText(const RunSpec& run) {
  return absl::StrCat(WithCommas(run.model().width()), " / ", WithCommas(run.model().ffn_width()),
                      " / ", run.model().heads());
}

std::string DepthText(const RunSpec& run) {
  const int encoder = run.model().encoder_layers(), decoder = run.model().decoder_layers();
  return encoder == decoder ? absl::StrCat(encoder) : absl::StrCat(encoder, " + ", decoder);
}

std::string ScheduleName(const OptimSpec& optim) {
  switch (optim.schedule()) {
    case INVERSE_SQRT:
      return "inverse square root";
    case COSINE:
      return "cosine";
    case CONSTANT:
      return "constant";
    case SHIFTED_INVERSE_SQRT:
      return "shifted inverse square root, no warm-up";
    default:
      return RateSchedule_Name(optim.schedule());
  }
}

std::string RateText(const RunSpec& run) {
  const OptimSpec& optim = run.optim();
  std::string text = absl::StrCat(ShortNumber(optim.rate()), ", ", ScheduleName(optim));
  if (optim.schedule() != SHIFTED_INVERSE_SQRT) {
    absl::StrAppend(&text, ", warm-up ", WithCommas(optim.warmup_steps()));
  }
  return text;
}

std::string BatchText(const RunSpec& run) {
  return WithCommas(int64_t{run.data().microbatches_per_step()} *
                    run.data().microbatch().target_tokens());
}

std::string CorpusText(const LabData& data) {
  if (data.languages_size() == 0) return "unknown";
  return absl::StrCat("the corpus in ", data.folder(), ": ", WithCommas(data.pairs()), " pairs, ",
                      absl::StrJoin(data.languages(), ", "));
}

// "loss on the test set, loss while training; 200 sentences a direction".
std::string MetricText(const Experiment& experiment, const LabResult& result) {
  std::vector<std::string> names;
  for (const Panel& panel : experiment.panels) {
    const std::string name = QuantityName(panel.quantity);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text = absl::StrJoin(names, ", ");
  std::set<int64_t> sentences;
  for (const LabCell& cell : result.cells()) {
    for (const DirectionScore& score : cell.test().directions()) {
      sentences.insert(score.sentences());
    }
  }
  if (sentences.empty()) return text;
  absl::StrAppend(&text, "; ", *sentences.begin());
  if (sentences.size() > 1) absl::StrAppend(&text, " to ", *sentences.rbegin());
  return absl::StrCat(text, " test sentences a direction");
}

std::string PrecisionText(const RunSpec& run) {
  switch (run.compute().dtype()) {
    case FLOAT32:
      return "float32";
    case BFLOAT16:
      return "bfloat16 products, float32 sums";
    default:
      break;
  }
  // As ResolveCompute (trainer/kernels/compute.h) decides when the run starts.
  return run.compute().device() == "cuda" ? "bfloat16 products, float32 sums"
                                          : "float32, or bfloat16 where that is faster";
}

std::string AdamText(const RunSpec& run) {
  const OptimSpec& optim = run.optim();
  std::string text = absl::StrCat(ShortNumber(optim.beta1()), ", ", ShortNumber(optim.beta2()),
                                  "; ", ShortNumber(optim.epsilon()));
  if (optim.optimizer() == ADAMW) text += "; beside the corrected root (ADAMW)";
  return text;
}

std::string ZeroIsOff(double value) { return value > 0 ? absl::StrFormat("%g", value) : "off"; }

// Fields that rows of their own show.
constexpr absl::string_view kOwnRow[] = {"model.encoder_layers",
                                         "model.decoder_layers",
                                         "model.width",
                                         "model.ffn_width",
                                         "model.heads",
                                         "model.dropout",
                                         "data.microbatches_per_step",
                                         "data.microbatch.target_tokens",
                                         "optim.optimizer",
                                         "optim.rate",
                                         "optim.schedule",
                                         "optim.warmup_steps",
                                         "optim.beta1",
                                         "optim.beta2",
                                         "optim.epsilon",
                                         "optim.weight_decay",
                                         "optim.clip_norm",
                                         "optim.label_smoothing",
                                         "compute.dtype",
                                         "train.steps"};
// Fields that name a run, make it the one of its series, or only look at it.
constexpr absl::string_view kNoSetting[] = {
    "name", "folder", "seed", "model.residual", "data.folder", "train.log_every_steps"};

bool IsAmong(absl::string_view field, std::span<const absl::string_view> fields) {
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

// Every other field that was set on top of the recipe, with the values that it has then.
std::vector<Difference> FieldsSet(const LabResult& result, bool with_own_rows) {
  std::map<std::string, std::map<std::string, int>> cells;  // field, value: number of cells
  for (const LabCell& cell : result.cells()) {
    std::map<std::string, std::string> sets;  // the last one counts
    for (const std::string& set : cell.sets()) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(set, absl::MaxSplits('=', 1));
      sets[parts.first] = parts.second;
    }
    for (const auto& [field, value] : sets) {
      if (IsAmong(field, kNoSetting) || absl::StartsWith(field, "instruments.")) continue;
      if (!with_own_rows || !IsAmong(field, kOwnRow)) ++cells[field][value];
    }
  }
  std::vector<Difference> rows;
  for (const auto& [field, values] : cells) {
    std::vector<std::string> texts;
    for (const auto& [value, count] : values) {
      texts.push_back(value.empty() ? "all" : value);
      if (count < result.cells_size()) absl::StrAppend(&texts.back(), " in ", count, " runs");
    }
    if (texts.size() > kMostValues) texts = {absl::StrCat(texts.size(), " values")};
    rows.push_back({absl::StrCat("set: ", field), "-", absl::StrJoin(texts, "; ")});
  }
  return rows;
}

std::vector<Difference> AgainstPublished(const Experiment& experiment, const LabResult& result) {
  const PublishedSettings& paper = experiment.paper;
  const auto of = [&](const Text& text) { return Values(result, text); };
  std::vector<Difference> rows = {
      {"corpus", paper.corpus, CorpusText(result.data())},
      {"width / feed-forward / heads", paper.width, of(WidthText)},
      {"layers a side", paper.depth, of(DepthText)},
      {"vocabulary", paper.vocabulary, WithCommas(result.data().vocabulary_size())},
      {"steps", paper.steps,
       of([](const RunSpec& run) { return WithCommas(run.train().steps()); })},
      {"target tokens a step, at most", paper.batch, of(BatchText)},
      {"learning rate", paper.rate, of(RateText)},
      {"dropout", paper.dropout,
       of([](const RunSpec& run) { return absl::StrFormat("%g", run.model().dropout()); })},
      {"weight decay", paper.weight_decay,
       of([](const RunSpec& run) { return ShortNumber(run.optim().weight_decay()); })},
      {"clipping at a gradient norm of", paper.clip_norm,
       of([](const RunSpec& run) { return ZeroIsOff(run.optim().clip_norm()); })},
      {"Adam's beta1, beta2; epsilon", paper.adam, of(AdamText)},
      {"label smoothing", paper.label_smoothing,
       of([](const RunSpec& run) { return ShortNumber(run.optim().label_smoothing()); })},
      {"precision", paper.precision, of(PrecisionText)},
      {"what is measured", paper.metric, MetricText(experiment, result)},
      {"seeds", paper.seeds, absl::StrCat(result.seeds())},
      {"machine", "graphics processors", result.machine()}};
  std::erase_if(rows, [](const Difference& row) { return row.paper == row.here; });
  return rows;
}

}  // namespace

std::vector<Difference> Differences(const Experiment& experiment, const LabResult& result) {
  if (result.cells_size() == 0) return {};
  const bool published = !experiment.paper.corpus.empty();
  std::vector<Difference> rows;
  if (published) rows = AgainstPublished(experiment, result);
  for (Difference& row : FieldsSet(result, published)) rows.push_back(std::move(row));
  return rows;
}

}  // namespace deepnet
