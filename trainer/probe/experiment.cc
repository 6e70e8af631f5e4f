#include "trainer/probe/experiment.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/status_macros.h"
#include "trainer/probe/experiment_tables.h"

namespace deepnet {
namespace {

struct Entry {
  const char* name;
  Experiment (*make)(LabSize size, int seeds);
  int seeds;          // of kSmall, where the user does not say
  bool paper = true;  // whether it comes in that size
};

constexpr Entry kEntries[] = {
    {"fig3", MakeFigure3, 1},      {"fig4", MakeFigure4, 1},         {"fig5", MakeFigure5, 3},
    {"fig6", MakeFigure6, 1},      {"fig7", MakeFigure7, 2},         {"fig8", MakeFigure8, 1},
    {"table1", MakeTable1, 3},     {"table2", MakeTable2, 1},        {"table3", MakeTable3, 1},
    {"ablation", MakeAblation, 1}, {"tuning", MakeTuning, 1, false},
};

// Keeps the cells whose `member` is one of `wanted`; no wanted ones: all.
template <typename Value>
absl::Status Keep(const std::vector<Value>& wanted, Value CellSpec::*member, const char* what,
                  Experiment* experiment) {
  if (wanted.empty()) return absl::OkStatus();
  std::set<Value> known;
  for (const CellSpec& cell : experiment->cells) known.insert(cell.*member);
  for (const Value& value : wanted) {
    if (!known.contains(value)) {
      return absl::InvalidArgumentError(absl::StrCat(experiment->name, " has no ", what, " '",
                                                     value, "', but ", absl::StrJoin(known, ", ")));
    }
  }
  std::erase_if(experiment->cells, [&](const CellSpec& cell) {
    return std::find(wanted.begin(), wanted.end(), cell.*member) == wanted.end();
  });
  return absl::OkStatus();
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
  const int own = options.size == LabSize::kSmall ? entry->seeds : 1;
  Experiment experiment = entry->make(options.size, options.seeds > 0 ? options.seeds : own);
  experiment.name = entry->name;
  experiment.size = options.size;
  RETURN_IF_ERROR(Keep(options.series, &CellSpec::series, "series", &experiment));
  RETURN_IF_ERROR(Keep(options.xs, &CellSpec::x, "runs at", &experiment));
  if (!experiment.cells.empty()) return experiment;
  return absl::InvalidArgumentError(absl::StrCat(name, " has no run of these series there"));
}

}  // namespace deepnet
