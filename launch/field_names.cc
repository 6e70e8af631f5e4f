#include "launch/field_names.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "launch/peer_names.h"

namespace deepnet {
namespace {

using google::protobuf::Descriptor;

// "--Dim-Emb" and "dim_emb" are one name.
std::string PlainName(const std::string& name) {
  const size_t start = std::min(name.find_first_not_of('-'), name.size());
  return absl::StrReplaceAll(absl::AsciiStrToLower(name.substr(start)), {{"-", "_"}});
}

// The end of the sentence about a field of other programs; empty: no program has it.
std::string ForeignText(const std::string& name) {
  const std::string plain = PlainName(name);
  for (const ForeignField& foreign : ForeignFields()) {
    for (const auto& [program, theirs] : foreign.names) {
      if (PlainName(theirs) != plain) continue;
      const std::string whose = absl::StrCat(program, "'s ", theirs);
      if (foreign.field.empty()) return absl::StrCat("; ", whose, " is not here: ", foreign.note);
      return absl::StrCat("; did you mean '", foreign.field, "' (", whose, ")?",
                          foreign.note.empty() ? "" : " ", foreign.note);
    }
  }
  return "";
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // distance[i][j]: between the first i letters of a and the first j of b.
  std::vector<std::vector<int>> distance(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int replaced = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({replaced, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance[a.size()][b.size()];
}

std::optional<std::string> NearestName(std::string_view name,
                                       const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    // The distance is no less than the difference in length, and above half of the name nothing is
    // near; so a name of thousands of letters costs nothing.
    const auto longer = static_cast<int>(candidate.size()) - static_cast<int>(name.size());
    if (2 * std::abs(longer) > static_cast<int>(name.size())) continue;
    const int distance =
        EditDistance(absl::AsciiStrToLower(std::string(name)), absl::AsciiStrToLower(candidate));
    if (!best.has_value() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (best.has_value() && 2 * best_distance > static_cast<int>(name.size())) return std::nullopt;
  return best;
}

std::string SuggestName(std::string_view name, const std::vector<std::string>& candidates) {
  const std::optional<std::string> nearest = NearestName(name, candidates);
  if (nearest.has_value()) return absl::StrCat("; did you mean '", *nearest, "'?");
  return absl::StrCat("; there are: ", absl::StrJoin(candidates, ", "));
}

std::vector<ForeignField> ForeignFields() {
  std::vector<ForeignField> fields;
  std::vector<std::string> programs;
  // | field or "not here" | `name`, `name` | ... | note |, below a head and a line of dashes.
  for (const auto& row : absl::StrSplit(kPeerNames, '\n', absl::SkipEmpty())) {
    std::vector<std::string> cells = absl::StrSplit(absl::StripSuffix(row, "|"), '|');
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (programs.empty()) programs = cells;
    if (!absl::StartsWith(cells[1], "`") && cells[1] != "not here") continue;
    ForeignField field{.note = cells.back()};
    if (cells[1] != "not here") field.field = absl::StrReplaceAll(cells[1], {{"`", ""}});
    for (size_t i = 2; i + 1 < cells.size(); ++i) {
      for (const auto& name : absl::StrSplit(cells[i], absl::ByAnyChar("`, "), absl::SkipEmpty())) {
        field.names.emplace_back(programs[i], name);
      }
    }
    fields.push_back(std::move(field));
  }
  return fields;
}

std::string NoSuchField(const Descriptor& type, const std::string& name) {
  const std::string problem = absl::StrCat(type.name(), " has no field '", name, "'");
  const std::string plain = PlainName(name);
  if (type.FindFieldByName(plain) != nullptr) {  // dashes, capitals
    return absl::StrCat(problem, "; did you mean '", plain, "'?");
  }
  const std::string foreign = ForeignText(name);
  if (!foreign.empty()) return problem + foreign;
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return problem + SuggestName(name, names);
}

}  // namespace deepnet
