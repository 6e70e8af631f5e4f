#include "trainer/probe/quantities.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

#include "trainer/probe/axis.h"

namespace deepnet {
namespace {

// The first record from `step` on; 0: the last. Null: none.
const InstrumentRecord* FindRecord(const LabCell& cell, int64_t step) {
  for (const InstrumentRecord& record : cell.instruments()) {
    if (step > 0 && record.step() >= step) return &record;
  }
  if (step > 0 || cell.instruments_size() == 0) return nullptr;
  return &cell.instruments(cell.instruments_size() - 1);
}

// Index of "decoder.layers.3"; nothing for other names.
std::optional<int> DecoderLayer(absl::string_view name) {
  int index = 0;
  if (!absl::ConsumePrefix(&name, "decoder.layers.") || !absl::SimpleAtoi(name, &index)) {
    return std::nullopt;
  }
  return index;
}

bool IsAttention(const SublayerInstruments& sublayer) {
  return absl::EndsWith(sublayer.name(), "attn");
}

std::optional<double> MeanNormInput(const InstrumentRecord& record, bool attention) {
  double sum = 0.0;
  int count = 0;
  for (const SublayerInstruments& sublayer : record.sublayers()) {
    if (IsAttention(sublayer) != attention || sublayer.norm_input() <= 0) continue;
    sum += sublayer.norm_input();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

std::optional<double> OfRecord(const InstrumentRecord& record, Quantity quantity) {
  switch (quantity) {
    case Quantity::kModelUpdate:
      if (record.model_update() > 0) return record.model_update();
      return std::nullopt;
    case Quantity::kFfnNormInput:
      return MeanNormInput(record, false);
    case Quantity::kAttentionNormInput:
      return MeanNormInput(record, true);
    case Quantity::kGradientNorm: {
      std::optional<double> last;
      for (const LayerInstruments& layer : record.layers()) {
        if (DecoderLayer(layer.name()).has_value()) last = layer.gradient_norm();
      }
      return last;
    }
    case Quantity::kTestNll:
    case Quantity::kTestBleu:
    case Quantity::kTestBleuToEnglish:
    case Quantity::kTestBleuFromEnglish:
    case Quantity::kTestSpBleu:
    case Quantity::kTrainNll:
    case Quantity::kDevNll:
      return std::nullopt;
  }
  return std::nullopt;
}

// `value` if a direction of the test begins with `from` and ends with `to`.
std::optional<double> OfTest(const LabCell& cell, double value, absl::string_view from = "",
                             absl::string_view to = "") {
  for (const DirectionScore& score : cell.test().directions()) {
    if (absl::StartsWith(score.direction(), from) && absl::EndsWith(score.direction(), to)) {
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> CellScore(const LabCell& cell, Quantity quantity, int64_t step) {
  switch (quantity) {
    case Quantity::kTestNll:
      return OfTest(cell, cell.test().nll());
    case Quantity::kTestBleu:
      return OfTest(cell, cell.test().bleu());
    case Quantity::kTestBleuToEnglish:
      return OfTest(cell, cell.test().bleu_to_english(), "", "-en");
    case Quantity::kTestBleuFromEnglish:
      return OfTest(cell, cell.test().bleu_from_english(), "en-");
    case Quantity::kTestSpBleu:
      return OfTest(cell, cell.test().spbleu());
    case Quantity::kTrainNll:
      if (cell.steps_size() == 0) return std::nullopt;
      return cell.steps(cell.steps_size() - 1).nll();
    case Quantity::kDevNll:
      if (cell.validations_size() == 0) return std::nullopt;
      return cell.validations(cell.validations_size() - 1).nll();
    case Quantity::kModelUpdate:
    case Quantity::kGradientNorm:
    case Quantity::kFfnNormInput:
    case Quantity::kAttentionNormInput: {
      const InstrumentRecord* record = FindRecord(cell, step);
      if (record == nullptr) return std::nullopt;
      return OfRecord(*record, quantity);
    }
  }
  return std::nullopt;
}

std::vector<PlotPoint> CurveOverSteps(const LabCell& cell, Quantity quantity) {
  std::vector<PlotPoint> points;
  const auto add = [&](int64_t step, std::optional<double> y) {
    if (y.has_value() && !IsOffTheScale(quantity, *y)) {
      points.push_back({.x = static_cast<double>(step), .y = *y});
    }
  };
  if (quantity == Quantity::kTrainNll) {
    for (const StepRecord& record : cell.steps()) add(record.step(), record.nll());
  } else if (quantity == Quantity::kDevNll) {
    for (const EvalRecord& record : cell.validations()) add(record.step(), record.nll());
  } else {
    for (const InstrumentRecord& record : cell.instruments()) {
      add(record.step(), OfRecord(record, quantity));
    }
  }
  return points;
}

std::vector<PlotPoint> CurveOverLayers(const LabCell& cell, Quantity quantity, int64_t step) {
  std::vector<PlotPoint> points;
  const InstrumentRecord* record = FindRecord(cell, step);
  if (record == nullptr || quantity != Quantity::kGradientNorm) return points;
  for (const LayerInstruments& layer : record->layers()) {
    const std::optional<int> index = DecoderLayer(layer.name());
    if (index.has_value()) points.push_back({.x = *index + 1.0, .y = layer.gradient_norm()});
  }
  return points;
}

std::string QuantityUnit(Quantity quantity) {
  switch (quantity) {
    case Quantity::kTestNll:
    case Quantity::kTrainNll:
    case Quantity::kDevNll:
      return "nats a token";
    case Quantity::kTestBleu:
      return "BLEU";
    case Quantity::kTestBleuToEnglish:
      return "BLEU, X to English";
    case Quantity::kTestBleuFromEnglish:
      return "BLEU, English to X";
    case Quantity::kTestSpBleu:
      return "spBLEU";
    case Quantity::kModelUpdate:
      return "model update";
    case Quantity::kGradientNorm:
      return "gradient norm";
    case Quantity::kFfnNormInput:
    case Quantity::kAttentionNormInput:
      return "norm";
  }
  return "";
}

std::string QuantityName(Quantity quantity) {
  switch (quantity) {
    case Quantity::kTestNll:
      return "loss on the test set";
    case Quantity::kTrainNll:
      return "loss while training";
    case Quantity::kDevNll:
      return "loss on the validation set";
    case Quantity::kTestBleu:
      return "sacreBLEU on the test set";
    case Quantity::kTestBleuToEnglish:
      return "sacreBLEU from X to English";
    case Quantity::kTestBleuFromEnglish:
      return "sacreBLEU from English to X";
    case Quantity::kTestSpBleu:
      return "spBLEU on the test set";
    case Quantity::kModelUpdate:
      return "model update";
    case Quantity::kGradientNorm:
      return "gradient norm of decoder layers";
    case Quantity::kFfnNormInput:
      return "norm of what enters the norm behind feed-forward blocks";
    case Quantity::kAttentionNormInput:
      return "norm of what enters the norm behind attention";
  }
  return "";
}

bool IsTestBleu(Quantity quantity) {
  return quantity == Quantity::kTestBleu || quantity == Quantity::kTestBleuToEnglish ||
         quantity == Quantity::kTestBleuFromEnglish || quantity == Quantity::kTestSpBleu;
}

bool IsLoss(Quantity quantity) {
  return quantity == Quantity::kTestNll || quantity == Quantity::kTrainNll ||
         quantity == Quantity::kDevNll;
}

double WordFrequencyLevel(const LabData& data, Quantity quantity) {
  if (quantity == Quantity::kTestNll) return data.word_frequency_test_nll();
  if (quantity == Quantity::kDevNll) return data.word_frequency_dev_nll();
  return quantity == Quantity::kTrainNll ? data.word_frequency_nll() : 0.0;
}

bool IsOffTheScale(Quantity quantity, double value) {
  constexpr double kMostNats = 20.0;  // log of 485 million
  return IsLoss(quantity) && !(value <= kMostNats);
}

std::string QuantityText(Quantity quantity, double value) {
  const bool score = IsLoss(quantity) || IsTestBleu(quantity);
  return score && std::isfinite(value) && !IsOffTheScale(quantity, value)
             ? absl::StrFormat("%.2f", value)
             : ShortNumber(value);
}

}  // namespace deepnet
