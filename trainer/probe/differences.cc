#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/logging.h"
#include "trainer/probe/axis.h"
#include "trainer/probe/findings.h"

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

std::string MetricText(const LabResult& result) {
  for (const LabCell& cell : result.cells()) {
    if (!cell.has_test() || cell.test().directions_size() == 0) continue;
    return absl::StrCat("loss and sacreBLEU on ", cell.test().directions(0).sentences(),
                        " test sentences a direction");
  }
  return "training loss and instruments";
}

std::string PrecisionText(const RunSpec& run) {
  return run.compute().dtype() == FLOAT32 ? "float32" : "as the machine has it";
}

std::string ZeroIsOff(double value) { return value > 0 ? absl::StrFormat("%g", value) : "off"; }

}  // namespace

std::vector<Difference> Differences(const Experiment& experiment, const LabResult& result) {
  const PublishedSettings& paper = experiment.paper;
  if (paper.corpus.empty() || result.cells_size() == 0) return {};
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
      {"precision", paper.precision, of(PrecisionText)},
      {"what is measured", paper.metric, MetricText(result)},
      {"seeds", paper.seeds, absl::StrCat(result.seeds())},
      {"machine", "graphics processors", result.machine()}};
  std::erase_if(rows, [](const Difference& row) { return row.paper == row.here; });
  return rows;
}

}  // namespace deepnet
