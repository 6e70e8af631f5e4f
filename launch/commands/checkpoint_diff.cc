#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/tools/diff.h"
#include "trainer/checkpoint/tools/run_listing.h"

namespace deepnet {
namespace {

std::string Table(const CheckpointDiff& diff) {
  std::string text = absl::StrCat("a  ", diff.folder_a, "\nb  ", diff.folder_b, "\n");
  for (const std::string& name : diff.only_a) absl::StrAppend(&text, "only in a  ", name, "\n");
  for (const std::string& name : diff.only_b) absl::StrAppend(&text, "only in b  ", name, "\n");
  for (const ReshapedTensor& tensor : diff.reshaped) {
    absl::StrAppend(&text, "reshaped   ", tensor.name, "  ", absl::StrJoin(tensor.shape_a, "x"),
                    " -> ", absl::StrJoin(tensor.shape_b, "x"), "\n");
  }
  if (!diff.different.empty()) {
    absl::StrAppendFormat(&text, "%12s  %12s  %14s  %s\n", "max |a-b|", "relative", "of elements",
                          "tensor");
  }
  for (const TensorDifference& tensor : diff.different) {
    absl::StrAppendFormat(&text, "%12.4g  %12.4g  %13.6g%%  %s\n", tensor.max_absolute,
                          tensor.max_relative,
                          100.0 * static_cast<double>(tensor.num_different) /
                              static_cast<double>(tensor.num_elements),
                          tensor.name);
  }
  if (diff.Identical()) return absl::StrCat(text, "identical: ", diff.num_equal, " tensors\n");
  return absl::StrCat(text, diff.num_equal, " tensors equal, ", diff.different.size(),
                      " different, ", diff.reshaped.size(), " reshaped, ",
                      diff.only_a.size() + diff.only_b.size(), " in one of them only\n");
}

std::string Json(const TensorDifference& tensor) {
  return absl::StrCat("{\"name\": ", JsonQuoted(tensor.name),
                      ", \"num_elements\": ", tensor.num_elements,
                      ", \"num_different\": ", tensor.num_different,
                      ", \"max_absolute\": ", JsonNumber(tensor.max_absolute),
                      ", \"max_relative\": ", JsonNumber(tensor.max_relative), "}");
}

std::string Json(const ReshapedTensor& tensor) {
  return absl::StrCat("{\"name\": ", JsonQuoted(tensor.name),
                      ", \"shape_a\": ", JsonShape(tensor.shape_a),
                      ", \"shape_b\": ", JsonShape(tensor.shape_b), "}");
}

template <typename Values>
std::string JsonRows(const Values& values) {
  return absl::StrCat(
      "[",
      absl::StrJoin(values, ",\n  ",
                    [](std::string* out, const auto& value) { out->append(Json(value)); }),
      "]");
}

std::string Json(const CheckpointDiff& diff) {
  return absl::StrCat(
      "{\"a\": ", JsonQuoted(diff.folder_a), ", \"b\": ", JsonQuoted(diff.folder_b),
      ", \"step_a\": ", diff.step_a, ", \"step_b\": ", diff.step_b,
      ", \"identical\": ", diff.Identical() ? "true" : "false", ", \"num_equal\": ", diff.num_equal,
      ",\n \"different\": ", JsonRows(diff.different),
      ",\n \"reshaped\": ", JsonRows(diff.reshaped), ",\n \"only_a\": ", JsonTexts(diff.only_a),
      ",\n \"only_b\": ", JsonTexts(diff.only_b), "}\n");
}

absl::Status RunDiff(const CommandLine& line) {
  ToolBar bar(line, "diff");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 2, "A B"));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const std::string a, ChooseCheckpoint(*fs, paths[0], options));
  ASSIGN_OR_RETURN(const std::string b, ChooseCheckpoint(*fs, paths[1], options));
  ASSIGN_OR_RETURN(const CheckpointDiff diff,
                   DiffCheckpoints(*fs, a, b, line.flags.Text("filter"), options));
  line.out << (line.flags.Switch("json") ? Json(diff) : Table(diff));
  return diff.Identical() ? absl::OkStatus() : EndWith(ExitCode::kCheckpoint);
}

}  // namespace

Command MakeCheckpointDiffCommand() {
  return {.name = "diff",
          .summary = "how far two checkpoints' tensors are apart",
          .description =
              "For each tensor whose bits are not equal: the greatest |a-b|, the same over the "
              "greatest |a| or |b| of the tensor, and how many elements differ. Tensors that only "
              "one has, or with another shape, are named. How they are stored, counters and hashes "
              "are not compared. Exit code 0: identical tensors; 5: different (1 stays what it is "
              "everywhere, an internal error).",
          .arguments = "A B",
          .max_arguments = 2,
          .flags = {{.name = "filter",
                     .value = "TEXT",
                     .help = "Only tensors with this in their names, for example weight/."},
                    JsonFlag(),
                    MemoryFlag()},
          .run = RunDiff};
}

}  // namespace deepnet
