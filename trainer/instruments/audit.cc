#include "trainer/instruments/audit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// Sums over the elements of a tensor that were looked at.
struct SpreadSums {
  int64_t count = 0;
  double sum = 0.0, squares = 0.0;  // of values; squares of a constant tensor: off its value
  int64_t wrong = 0;  // elements of a constant tensor, or of a zero row, that are not as they must

  void Add(const SpreadSums& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
    wrong += other.wrong;
  }
  SpreadSums InUnitsOf(double deviation) const {
    return {count, sum / deviation, squares / (deviation * deviation), wrong};
  }
};

// Elements of a row of `p`; 1 for a vector.
int64_t RowElements(const Parameter& p) {
  return p.shape.size() < 2 ? 1 : p.NumElements() / p.shape[0];
}

// The elements of a tensor that are looked at.
struct Sample {
  std::span<const float> values;    // without those of a zero row
  std::span<const float> zero_row;  // all of it
};

SpreadSums LookAt(const Parameter& p, const Sample& sample) {
  SpreadSums sums;
  for (const double value : sample.values) {
    const double off = p.initial_std == 0 ? value - p.initial_value : value;
    sums.sum += value;
    sums.squares += off * off;
    if (p.initial_std == 0 && value != p.initial_value) ++sums.wrong;
    ++sums.count;
  }
  for (const float value : sample.zero_row) sums.wrong += value != 0.0f ? 1 : 0;
  return sums;
}

// The samples of `parameters` of `weights`: every element of a tensor of at most `most`, else as
// many, evenly spread. They come from a device together: it need not be asked for each.
class Samples {
 public:
  Samples(const at::Tensor& weights, const std::vector<Parameter>& parameters, int64_t most) {
    std::vector<at::Tensor> parts;
    int64_t size = 0;
    const auto add = [&](int64_t begin, int64_t end, int64_t stride) {
      if (begin == end) return;
      parts.push_back(weights.slice(0, begin, end, stride));
      size += parts.back().numel();
    };
    for (const Parameter& p : parameters) {
      const int64_t n = p.NumElements();
      // Odd, so that it is no multiple of a row.
      const int64_t stride = n <= most ? 1 : (n / most) | 1;
      const int64_t begin = p.offset + std::max<int64_t>(0, p.zero_row) * RowElements(p);
      const int64_t end = p.zero_row < 0 ? begin : begin + RowElements(p);
      Place place = {.values = size};
      add(p.offset, begin, stride);
      add(end, p.offset + n, stride);
      place.zero_row = size;
      add(begin, end, 1);
      place.end = size;
      places_.push_back(place);
    }
    const at::Tensor gathered = at::empty({size}, weights.options());
    int64_t next = 0;
    for (const at::Tensor& part : parts) {
      gathered.narrow(0, next, part.numel()).copy_(part);
      next += part.numel();
    }
    host_ = gathered.to(at::Device(at::kCPU), at::kFloat);
  }

  // Returns that of parameter number `index`; valid as long as this lives.
  Sample Of(int index) const {
    const Place& place = places_[index];
    const float* const all = host_.const_data_ptr<float>();
    return {.values = {all + place.values, all + place.zero_row},
            .zero_row = {all + place.zero_row, all + place.end}};
  }

 private:
  // In `host_`.
  struct Place {
    int64_t values = 0, zero_row = 0, end = 0;
  };

  std::vector<Place> places_;
  at::Tensor host_;
};

// `sums` are in units of the expected deviation.
SpreadAudit JudgeSpread(const SpreadSums& sums) {
  const auto n = static_cast<double>(sums.count);
  SpreadAudit audit{.elements = sums.count};
  audit.mean = sums.sum / n;
  audit.std_ratio = std::sqrt(std::max(0.0, sums.squares / n - audit.mean * audit.mean));
  audit.tolerance = std::max(kStdTolerance, kSamplingErrors / std::sqrt(2 * n));
  const double most_mean = kSamplingErrors / std::sqrt(n);
  if (!(std::abs(audit.std_ratio - 1) <= audit.tolerance)) {  // NaN is a fault too
    audit.fault = absl::StrFormat("standard deviation %.4f of what theory wants (%.1f %% allowed)",
                                  audit.std_ratio, 100 * audit.tolerance);
  } else if (!(std::abs(audit.mean) <= most_mean)) {
    audit.fault =
        absl::StrFormat("mean %.4f deviations from 0 (%.4f allowed)", audit.mean, most_mean);
  }
  return audit;
}

SpreadAudit JudgeTensor(const Parameter& p, const SpreadSums& sums) {
  if (p.initial_std == 0) {
    SpreadAudit audit{.elements = sums.count, .mean = sums.sum / static_cast<double>(sums.count)};
    if (sums.wrong > 0) {
      audit.fault = absl::StrFormat("%d of %d elements do not start at %g", sums.wrong, sums.count,
                                    p.initial_value);
    }
    return audit;
  }
  SpreadAudit audit = JudgeSpread(sums.InUnitsOf(p.initial_std));
  if (audit.fault.empty() && sums.wrong > 0) {
    audit.fault =
        absl::StrFormat("row %d must be zero, %d of its elements are not", p.zero_row, sums.wrong);
  }
  if (!audit.fault.empty()) absl::StrAppendFormat(&audit.fault, "; N(0, %.6f)", p.initial_std);
  return audit;
}

// How far from theory, as a share of what is allowed; infinite for a fault.
double Badness(const SpreadAudit& audit) {
  if (!audit.fault.empty()) return std::numeric_limits<double>::infinity();
  return audit.tolerance > 0 ? std::abs(audit.std_ratio - 1) / audit.tolerance : 0.0;
}

PaperScaling ByFormula(const ModelSpec& model, int stack) {
  const double n = model.encoder_layers(), m = model.decoder_layers();
  const bool alone = model.architecture() != ENCODER_DECODER;
  if (model.deepnorm().adam()) {
    const double sublayers = alone ? 2 * (n + m) : stack == 0 ? 2 * n : 3 * m;
    return {std::sqrt(sublayers), 1 / std::sqrt(sublayers)};
  }
  if (alone) return {std::pow(2 * (n + m), 0.25), std::pow(8 * (n + m), -0.25)};
  if (stack == 1) return {std::pow(3 * m, 0.25), std::pow(12 * m, -0.25)};
  const double depth = std::pow(n, 0.25) * std::pow(m, 0.0625);  // (N^4 M)^(1/16)
  return {0.81 * depth, (model.deepnorm().beta_rule() == TORCHSCALE ? 1.15 : 0.87) / depth};
}

constexpr int64_t kHeldElements = int64_t{1} << 24;  // of all tensors of a rank
constexpr int64_t kLeastElements = 256;              // of each
constexpr double kFormulaTolerance = 1e-6;           // relative
constexpr size_t kFaultsNamed = 5;

double GainOf(const Parameter& p) {
  if (p.initial_std == 0 || p.shape.size() < 2) return 0.0;
  const auto out = static_cast<double>(p.shape[0]), in = static_cast<double>(p.shape[1]);
  const bool table = p.role == Role::kEmbedding || p.role == Role::kPosition;
  return p.initial_std / (table ? 1 / std::sqrt(in) : std::sqrt(2 / (in + out)));
}

// The gain that the paper gives matrices of a group; none where theory is the Inventory's alone.
std::optional<double> FormulaGain(const ModelSpec& model, const AuditGroup& group) {
  const bool in_layers = group.kind == LayerKind::kEncoder || group.kind == LayerKind::kDecoder;
  if (model.residual() != DEEPNORM || !group.drawn) return std::nullopt;
  if (!in_layers || group.role == Role::kQuery || group.role == Role::kKey) return 1.0;
  return PaperScalingOf(model, StackOfKind(model, group.kind)).beta;
}

// "alpha 1 to 1, by the formula 1.41788", or nothing where all of `used` is the formula's.
std::string BesideFormula(const char* what, const ValueRange& used, double formula) {
  if (used.least >= formula * (1 - kFormulaTolerance) &&
      used.greatest <= formula * (1 + kFormulaTolerance)) {
    return "";
  }
  return absl::StrFormat("%s %.6g to %.6g, by the formula %.6g", what, used.least, used.greatest,
                         formula);
}

// Adds tensors up to a report.
class Auditor {
 public:
  Auditor(const ModelSpec& model, const Inventory& whole) : model_(model) {
    kinds_.resize(whole.parameters.size());
    for (auto layer = whole.layers.rbegin(); layer != whole.layers.rend(); ++layer) {
      for (const int p : layer->parameters) kinds_[p] = layer->kind;  // the first layer wins
    }
  }

  // Parameter number `index` of the whole model.
  void Add(int index, const Parameter& p, const Sample& sample) {
    const SpreadSums sums = LookAt(p, sample);
    TensorAudit& tensor = report_.tensors.emplace_back();
    tensor = {.name = p.name, .role = p.role, .theory_std = p.initial_std};
    tensor.spread = JudgeTensor(p, sums);
    tensor.drawn_std = p.initial_std > 0
                           ? tensor.spread.std_ratio * p.initial_std
                           : std::sqrt(sums.squares / static_cast<double>(sums.count));
    AddToGroup(Find(kinds_[index], p), p, sums, tensor.spread);
    const std::string& fault = tensor.spread.fault;
    if (!fault.empty()) report_.faults.push_back(absl::StrCat(p.name, ": ", fault));
  }

  AuditReport Finish() && {
    for (Group& group : groups_) {
      if (group.told.drawn) group.told.all = JudgeSpread(group.sums);
      CompareGain(group.told);
      if (!group.told.all.fault.empty()) {
        report_.faults.push_back(absl::StrCat(
            KindNameIn(model_, group.told.kind), ", ", std::string(RoleName(group.told.role)), ", ",
            group.told.tensors, " tensors together: ", group.told.all.fault));
      }
      report_.groups.push_back(std::move(group.told));
    }
    for (const int stack : {0, 1}) CompareAlpha(stack);
    return std::move(report_);
  }

 private:
  struct Group {
    AuditGroup told;
    SpreadSums sums;  // in units of deviations
  };

  static void AddToGroup(Group& group, const Parameter& p, const SpreadSums& sums,
                         const SpreadAudit& spread) {
    AuditGroup& told = group.told;
    const double gain = GainOf(p);
    told.least_gain = told.tensors == 0 ? gain : std::min(told.least_gain, gain);
    told.greatest_gain = std::max(told.greatest_gain, gain);
    ++told.tensors;
    told.elements += p.NumElements();
    if (told.drawn) {
      group.sums.Add(sums.InUnitsOf(p.initial_std));
    } else {
      told.all.elements += sums.count;
    }
    if (told.worst_name.empty() || Badness(spread) > Badness(told.worst)) {
      told.worst_name = p.name;
      told.worst = spread;
    }
  }

  Group& Find(LayerKind kind, const Parameter& p) {
    const bool drawn = p.initial_std > 0;
    for (Group& group : groups_) {
      const AuditGroup& told = group.told;
      if (told.kind == kind && told.role == p.role && told.drawn == drawn) return group;
    }
    return groups_.emplace_back(Group{.told = {.kind = kind, .role = p.role, .drawn = drawn}});
  }

  void CompareGain(AuditGroup& group) const {
    const auto formula = FormulaGain(model_, group);
    if (!formula.has_value() || !group.all.fault.empty()) return;
    group.all.fault = BesideFormula("gain", {group.least_gain, group.greatest_gain}, *formula);
  }

  // The factor on a sub-layer's stream is no tensor.
  void CompareAlpha(int stack) {
    if (model_.residual() != DEEPNORM || LayersOf(model_, stack) == 0) return;
    const std::string fault = BesideFormula("alpha", MakeStackScaling(model_, stack).alpha,
                                            PaperScalingOf(model_, stack).alpha);
    if (!fault.empty()) {
      report_.faults.push_back(absl::StrCat(stack == 0 ? "encoder" : "decoder", ": ", fault));
    }
  }

  const ModelSpec& model_;
  std::vector<LayerKind> kinds_;  // of parameters: the first layer that uses them
  std::vector<Group> groups_;
  AuditReport report_;
};

// Returns a model of the first rows of `p` alone.
Inventory ModelOfFirstRows(Parameter p, int64_t most_elements) {
  const int64_t columns = RowElements(p),
                most = std::max(most_elements, (p.zero_row + 2) * columns);
  p.shape[0] = std::min(p.shape[0], std::max<int64_t>(1, most / columns));
  p.offset = 0;
  Inventory one;
  one.parameters = {std::move(p)};
  one.layers = {{.name = "one", .kind = LayerKind::kEncoder, .parameters = {0}}};
  return one;
}

}  // namespace

PaperScaling PaperScalingOf(const ModelSpec& model, int stack) {
  const PaperScaling formula = ByFormula(model, stack);
  const DeepNormSpec& chosen = model.deepnorm();
  const double alpha = stack == 0 ? chosen.encoder_alpha() : chosen.decoder_alpha();
  const double beta = stack == 0 ? chosen.encoder_beta() : chosen.decoder_beta();
  return {alpha != 0 ? alpha : formula.alpha, beta != 0 ? beta : formula.beta};
}

AuditReport AuditInitialWeights(const ModelSpec& model, const Inventory& whole, uint64_t seed,
                                int64_t most_elements) {
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  Auditor auditor(model, whole);
  for (int i = 0; i < static_cast<int>(whole.parameters.size()); ++i) {
    Parameters one(ModelOfFirstRows(whole.parameters[i], most_elements), *ops, /*trainable=*/false);
    one.Initialize(seed);
    const std::vector<Parameter>& drawn = one.inventory().parameters;
    auditor.Add(i, whole.parameters[i], Samples(one.weights(), drawn, one.weights().numel()).Of(0));
  }
  return std::move(auditor).Finish();
}

AuditReport AuditHeldWeights(const ModelSpec& model, const Inventory& whole,
                             const Parameters& held) {
  absl::flat_hash_map<std::string_view, int> index;
  for (int i = 0; i < static_cast<int>(whole.parameters.size()); ++i) {
    index[whole.parameters[i].name] = i;
  }
  const std::vector<Parameter>& here = held.inventory().parameters;
  const int64_t most = std::max(
      kLeastElements, kHeldElements / std::max<int64_t>(1, static_cast<int64_t>(here.size())));
  Auditor auditor(model, whole);
  const Samples samples(held.weights(), here, most);
  for (int i = 0; i < static_cast<int>(here.size()); ++i) {
    DEEPNET_CHECK(index.contains(here[i].name)) << here[i].name << " is not in the model";
    const int in_whole = index.at(here[i].name);
    auditor.Add(in_whole, whole.parameters[in_whole], samples.Of(i));
  }
  return std::move(auditor).Finish();
}

absl::Status AuditStatus(const AuditReport& report) {
  if (report.faults.empty()) return absl::OkStatus();
  const size_t named = std::min(kFaultsNamed, report.faults.size());
  std::string text =
      absl::StrCat("initial weights are not what theory wants: ",
                   absl::StrJoin(report.faults.begin(),
                                 report.faults.begin() + static_cast<ptrdiff_t>(named), "\n"));
  if (named < report.faults.size()) {
    absl::StrAppend(&text, "\nand ", report.faults.size() - named, " more");
  }
  return PreflightError(text);
}

}  // namespace deepnet
