#include "trainer/bench.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/commands.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "trainer/metrics.h"

namespace deepnet {
namespace {

// Every number of the command line, whatever is measured.
absl::Status CheckNumbers(const ParsedFlags& flags) {
  struct Range {
    const char* flag;
    int64_t least, most;
  };
  std::vector<std::string> mistakes;
  for (const Range& r :
       {Range{"steps", 1, 1000000}, Range{"sentences", 1, 1000000}, Range{"beam", 1, 1000},
        Range{"threads", 0, 1024}, Range{"segment", 1, 100000}}) {
    const int64_t value = flags.Integer(r.flag);
    if (value >= r.least && value <= r.most) continue;
    mistakes.push_back(
        absl::StrCat("--", r.flag, ": ", value, ": must be from ", r.least, " to ", r.most));
  }
  return BadConfig(mistakes);
}

ComputeSpec ComputeOf(const CommandLine& line) {
  ComputeSpec compute;
  compute.set_threads_per_rank(static_cast<int>(line.flags.Integer("threads")));
  const std::string& dtype = line.flags.Text("dtype");
  if (dtype == "float32") compute.set_dtype(FLOAT32);
  if (dtype == "bfloat16") compute.set_dtype(BFLOAT16);
  if (line.flags.Switch("library")) compute.set_matmul(LIBRARY);
  return compute;
}

RecomputeChoice RecomputeOf(const CommandLine& line) {
  RecomputeChoice choice{.segment = static_cast<int>(line.flags.Integer("segment"))};
  Recompute_Parse(line.flags.Text("recompute"), &choice.level);
  return choice;
}

std::string StepText(const BenchRecord& r) {
  return absl::StrFormat(
      "  tokens/s    %10.0f median  %10.0f best   (source + target, padding not counted)\n"
      "  GFLOP/s     %10.1f median  %10.1f product ceiling   efficiency %.1f %%\n"
      "  step        %10.3f s\n",
      r.tokens_per_second(), r.tokens_per_second_best(), r.gflops(), r.ceiling_gflops(),
      100 * r.gemm_efficiency(), r.seconds_per_step());
}

std::string DecodeText(const BenchRecord& r) {
  return absl::StrFormat(
      "  sentences/s %10.1f\n"
      "  tokens/s    %10.0f   (source + target)\n"
      "  GFLOP/s     %10.1f   %10.1f product ceiling   efficiency %.1f %%\n",
      r.sentences_per_second(), r.tokens_per_second(), r.gflops(), r.ceiling_gflops(),
      100 * r.gemm_efficiency());
}

std::string Table(const BenchRecord& r, bool is_step) {
  std::string text =
      absl::StrFormat("%-10s %s %s, %d threads\n%s  peak memory %10.0f MiB\n", r.name(), r.dtype(),
                      r.isa(), r.threads(), is_step ? StepText(r) : DecodeText(r),
                      static_cast<double>(r.peak_resident_bytes()) / kMib);
  if (!is_step || r.recompute() == Recompute_Name(NONE)) return text;
  const std::string segment =
      r.recompute_segment() > 1 ? absl::StrCat(" by ", r.recompute_segment()) : "";
  absl::StrAppendFormat(&text, "  recomputing %s%s: %+.1f %% of the time of a step without\n",
                        r.recompute(), segment, 100 * r.recompute_share());
  return text;
}

absl::Status RunBench(const CommandLine& line) {
  const auto& words = line.flags.positional();
  const std::string what = words.size() == 1 ? words[0] : "";
  if (what != "step" && what != "decode") {
    return BadFlag("bench: say what to measure: step or decode");
  }
  RETURN_IF_ERROR(CheckNumbers(line.flags));
  const ComputeSpec compute = ComputeOf(line);
  const std::string lengths_file = ResolvePath(line, line.flags.Text("lengths"));
  const auto integer = [&](const char* name) { return static_cast<int>(line.flags.Integer(name)); };
  ASSIGN_OR_RETURN(const BenchRecord record, what == "step"
                                                 ? BenchStep({.shape = line.flags.Text("shape"),
                                                              .lengths_file = lengths_file,
                                                              .steps = integer("steps"),
                                                              .compute = compute,
                                                              .recompute = RecomputeOf(line)})
                                                 : BenchDecode({.lengths_file = lengths_file,
                                                                .sentences = integer("sentences"),
                                                                .beam_size = integer("beam"),
                                                                .compute = compute}));
  line.out << (line.flags.Switch("json") ? ToJson(record) + "\n" : Table(record, what == "step"));
  return absl::OkStatus();
}

}  // namespace

Command MakeBenchCommand() {
  return {
      .name = "bench",
      .summary = "Measure training steps or decoding on this machine.",
      .description =
          "`deepnet bench step --shape A` trains a few steps of a fixed model on made-up tokens "
          "of real sentence lengths: A 6+6 layers and B 18+18 layers of width 256, C 100+100 and "
          "D 500+500 layers of width 64. It prints tokens per second without padding, the share "
          "of the best matrix product measured in the same process, and peak memory. With "
          "--recompute each step is also taken by a twin that keeps everything, in turns, and the "
          "share of time that recomputation adds is printed.\n"
          "`deepnet bench decode` searches translations with a 6+6 model of width 256 and 8,000 "
          "pieces, in batches of 2000 source tokens as `translate` does, and prints sentences "
          "per second. Weights and sources are made up; each search ends at the length of the "
          "real translation.",
      .arguments = "step|decode",
      .max_arguments = 1,
      .flags =
          {ChoiceFlag("shape", "SHAPE", {"A", "B", "C", "D"}, "Model that `step` trains.", "A"),
           IntegerFlag("steps", "Steps that `step` times.", "8"),
           ChoiceFlag("recompute", "LEVEL", {"NONE", "SELECTIVE_FFN", "SELECTIVE_GEMM", "FULL"},
                      "What the layers of `step` recompute, as parallel.recompute.", "NONE"),
           IntegerFlag("segment", "With --recompute FULL: layers between two kept inputs.", "1"),
           IntegerFlag("sentences", "Sentences that `decode` searches, the first of --lengths.",
                       "200"),
           IntegerFlag("beam", "Hypotheses that `decode` keeps; 1 is greedy.", "5"),
           ChoiceFlag("dtype", "TYPE", {"float32", "bfloat16"},
                      "Operands of matrix products; default: the faster one here."),
           IntegerFlag("threads", "Threads; 0: all cores of this process.", "0"),
           SwitchFlag("library",
                      "Use LibTorch's operations, the reference, instead of the kernels."),
           TextFlag("lengths", "FILE", "JSON list of [source, target] lengths.",
                    "tests/bench/lengths.json"),
           JsonFlag()},
      .run = RunBench};
}

}  // namespace deepnet
