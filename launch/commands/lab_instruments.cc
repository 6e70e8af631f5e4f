#include "launch/commands/lab_instruments.h"

#include <algorithm>
#include <ostream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/lab_files.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr const char* kStacks[] = {"encoder", "decoder"};

struct Range {
  double least = 0.0, greatest = 0.0;
  bool empty = true;

  void Add(double value) {
    least = empty ? value : std::min(least, value);
    greatest = empty ? value : std::max(greatest, value);
    empty = false;
  }
  // "1.24", or "-" where the least is nothing at all.
  std::string Ratio() const {
    return empty || least <= 0.0 ? "-" : absl::StrFormat("%.3g", greatest / least);
  }
  std::string ToText() const {
    return empty ? "-" : absl::StrFormat("%.3g to %.3g", least, greatest);
  }
};

bool IsOf(const std::string& name, const std::string& stack) {
  return absl::StartsWith(name, stack + ".layers.");
}

Range Gradients(const InstrumentRecord& record, const std::string& stack) {
  Range range;
  for (const LayerInstruments& layer : record.layers()) {
    if (IsOf(layer.name(), stack)) range.Add(layer.gradient_norm());
  }
  return range;
}

// Of all layers, those of embeddings and output too.
Range Updates(const InstrumentRecord& record) {
  Range range;
  for (const LayerInstruments& layer : record.layers()) {
    if (layer.weight_norm() > 0.0) range.Add(layer.update_norm() / layer.weight_norm());
  }
  return range;
}

Range Shares(const InstrumentRecord& record) {
  Range range;
  for (const SublayerInstruments& sublayer : record.sublayers()) range.Add(sublayer.stream_share());
  return range;
}

std::vector<std::string> StacksOf(const LabCell& cell) {
  std::vector<std::string> stacks;
  for (const char* stack : kStacks) {
    if (!Gradients(cell.instruments(0), stack).empty) stacks.emplace_back(stack);
  }
  return stacks;
}

absl::Status RunLabInstruments(const CommandLine& line) {
  if (line.flags.positional().empty()) {
    return BadFlag("no run folder given");
  }
  const std::string& folder = line.flags.positional().front();
  const auto fs = MakePosixFileSystem();
  LabCell cell;
  RETURN_IF_ERROR(ReadCellRecords(*fs, ResolvePath(line, folder), &cell));
  if (cell.instruments_size() == 0) {
    return WithExitCode(
        absl::NotFoundError(absl::StrCat(folder,
                                         ": no instruments in its metrics.jsonl; a run has "
                                         "them with instruments.every_steps")),
        ExitCode::kData);
  }
  line.out << InstrumentsText(cell);
  return absl::OkStatus();
}

}  // namespace

std::string InstrumentsText(const LabCell& cell) {
  if (cell.instruments_size() == 0) return "";
  const std::vector<std::string> stacks = StacksOf(cell);
  std::string text = absl::StrFormat("%8s", "step");
  for (const std::string& stack : stacks) absl::StrAppendFormat(&text, "  %16s", stack);
  absl::StrAppendFormat(&text, "  %20s  %20s  %12s\n", "update / weight", "share of the stream",
                        "model update");
  for (const InstrumentRecord& record : cell.instruments()) {
    absl::StrAppendFormat(&text, "%8d", record.step());
    for (const std::string& stack : stacks) {
      absl::StrAppendFormat(&text, "  %16s", Gradients(record, stack).Ratio());
    }
    absl::StrAppendFormat(
        &text, "  %20s  %20s  %12s\n", Updates(record).ToText(), Shares(record).ToText(),
        record.model_update() > 0.0 ? absl::StrFormat("%.3g", record.model_update()) : "-");
  }
  return absl::StrCat(text, "\n", absl::StrJoin(stacks, ", "),
                      ": the largest gradient norm of a layer over the smallest.\n");
}

Command MakeLabInstrumentsCommand() {
  return {.name = "instruments",
          .summary = "what the instruments of a run saw",
          .description =
              "Reads metrics.jsonl of the run in FOLDER and prints a line a record, at most some "
              "forty and always the last: for each stack the largest gradient norm of a layer over "
              "the smallest; of all layers the least and the greatest update over weights; of all "
              "sub-layers the stream's share of what is joined; how far the model has moved. "
              "docs/design/instruments.md says what each is.",
          .arguments = "FOLDER",
          .max_arguments = 1,
          .run = RunLabInstruments};
}

}  // namespace deepnet
