#include "trainer/probe/experiment.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/probe/experiment_tables.h"
#include "trainer/probe/methods.h"

namespace deepnet {
namespace {

constexpr double kMostLayers = 1e5;  // that anyone may ask for

struct Entry {
  const char* name;
  Experiment (*make)(const ExperimentOptions& options);
  int seeds;  // of kSmall, where the user does not say
  DepthAxis depths = DepthAxis::kNone;
  bool paper = true;  // whether it comes in that size
};

constexpr Entry kEntries[] = {
    {"fig3", MakeFigure3, 1, DepthAxis::kASide},
    {"fig4", MakeFigure4, 1, DepthAxis::kASide},
    {"fig5", MakeFigure5, 3, DepthAxis::kASide},
    {"fig6", MakeFigure6, 1, DepthAxis::kASide},
    {"fig7", MakeFigure7, 2},
    {"fig8", MakeFigure8, 1, DepthAxis::kBoth},
    {"table1", MakeTable1, 3, DepthAxis::kASide},
    {"table2", MakeTable2, 1, DepthAxis::kBoth},
    {"table3", MakeTable3, 1},
    {"ablation", MakeAblation, 1, DepthAxis::kASide},
    {"tuning", MakeTuning, 1, DepthAxis::kNone, false},
};

template <typename Known, typename Value>
absl::Status Unknown(const std::string& name, const char* what, const Value& value,
                     const Known& known) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has no ", what, " '", value, "', but ", absl::StrJoin(known, ", ")));
}

// Keeps the cells whose `member` is one of `wanted`; no wanted ones: all.
template <typename Value>
absl::Status Keep(const std::vector<Value>& wanted, Value CellSpec::*member, const char* what,
                  Experiment* experiment) {
  if (wanted.empty()) return absl::OkStatus();
  std::set<Value> known;
  for (const CellSpec& cell : experiment->cells) known.insert(cell.*member);
  for (const Value& value : wanted) {
    if (!known.contains(value)) return Unknown(experiment->name, what, value, known);
  }
  std::erase_if(experiment->cells, [&](const CellSpec& cell) {
    return std::find(wanted.begin(), wanted.end(), cell.*member) == wanted.end();
  });
  return absl::OkStatus();
}

// Of a method: any key will do.
absl::Status CheckMethods(const std::string& name, const std::vector<std::string>& series) {
  std::vector<std::string> keys;
  for (const Method& method : Methods()) keys.emplace_back(method.key);
  for (const std::string& key : series) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return Unknown(name, "series", key, keys);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDepths(const Entry& entry, const std::vector<double>& depths) {
  const bool both = entry.depths == DepthAxis::kBoth;
  for (const double depth : depths) {
    if (depth >= (both ? 2 : 1) && depth <= kMostLayers && std::fmod(depth, both ? 2 : 1) == 0) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(entry.name, " has no runs at '", depth, "', but ",
                     both ? "at any even number of layers, half of them in either stack"
                          : "at any number of layers a side"));
  }
  return absl::OkStatus();
}

// `wanted` without repetitions, first those of `own`, in its order.
template <typename Value>
std::vector<Value> InOrder(const std::vector<Value>& own, const std::vector<Value>& wanted) {
  std::vector<Value> ordered;
  const auto has = [](const std::vector<Value>& values, const Value& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  };
  for (const Value& value : own) {
    if (has(wanted, value) && !has(ordered, value)) ordered.push_back(value);
  }
  for (const Value& value : wanted) {
    if (!has(ordered, value)) ordered.push_back(value);
  }
  return ordered;
}

// `options` as the tables of methods by depths take them.
absl::StatusOr<ExperimentOptions> Ordered(const Entry& entry, ExperimentOptions options) {
  RETURN_IF_ERROR(CheckMethods(entry.name, options.series));
  RETURN_IF_ERROR(CheckDepths(entry, options.xs));
  std::vector<std::string> own;
  const ExperimentOptions whole{.size = options.size, .seeds = 1};
  for (const CellSpec& cell : entry.make(whole).cells) own.push_back(cell.series);
  options.series = InOrder(own, options.series);
  std::sort(options.xs.begin(), options.xs.end());
  options.xs = InOrder({}, options.xs);
  return options;
}

}  // namespace

const char* LabSizeName(LabSize size) { return size == LabSize::kSmall ? "small" : "paper"; }

std::vector<std::string> ExperimentNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

absl::StatusOr<Experiment> MakeExperiment(const std::string& name,
                                          const ExperimentOptions& options) {
  const Entry* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                    [&](const Entry& each) { return name == each.name; });
  if (entry == std::end(kEntries)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no experiment '", name, "', but ", absl::StrJoin(ExperimentNames(), ", ")));
  }
  if (options.size == LabSize::kPaper && !entry->paper) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": comes in the size small only: the paper has no such experiment"));
  }
  ExperimentOptions asked = options;
  if (asked.seeds <= 0) asked.seeds = options.size == LabSize::kSmall ? entry->seeds : 1;
  if (entry->depths != DepthAxis::kNone) {
    ASSIGN_OR_RETURN(asked, Ordered(*entry, asked));
  }
  Experiment experiment = entry->make(asked);
  experiment.name = entry->name;
  experiment.size = options.size;
  experiment.depths = entry->depths;
  if (entry->depths != DepthAxis::kNone) return experiment;
  RETURN_IF_ERROR(Keep(options.series, &CellSpec::series, "series", &experiment));
  RETURN_IF_ERROR(Keep(options.xs, &CellSpec::x, "runs at", &experiment));
  if (!experiment.cells.empty()) return experiment;
  return absl::InvalidArgumentError(absl::StrCat(name, " has no run of these series there"));
}

uint64_t NumSeeds(const Experiment& experiment) {
  uint64_t seeds = 1;
  for (const CellSpec& cell : experiment.cells) seeds = std::max(seeds, cell.seed);
  return seeds;
}

Experiment ExperimentOf(const LabResult& result) {
  const bool small = result.size() == LabSizeName(LabSize::kSmall);
  const auto experiment = MakeExperiment(
      result.experiment(), {.size = small ? LabSize::kSmall : LabSize::kPaper, .seeds = 1});
  DEEPNET_CHECK(experiment.ok()) << experiment.status().message();
  return *experiment;
}

}  // namespace deepnet
