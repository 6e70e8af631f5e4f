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
        Range{"threads", 0, 1024}, Range{"segment", 1, 100000}, Range{"layers", 0, 10000},
        Range{"width", 0, 65536}, Range{"tokens", 0, 1000000}}) {
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
  compute.set_device(line.flags.Switch("library") ? "cpu" : line.flags.Text("device"));
  ResolveDevice(line, &compute);
  return compute;
}

RecomputeChoice RecomputeOf(const CommandLine& line) {
  RecomputeChoice choice{.segment = static_cast<int>(line.flags.Integer("segment"))};
  Recompute_Parse(line.flags.Text("recompute"), &choice.level);
  return choice;
}

BenchSize SizeOf(const CommandLine& line) {
  const auto integer = [&](const char* name) { return static_cast<int>(line.flags.Integer(name)); };
  return {.layers = integer("layers"), .width = integer("width"), .tokens = integer("tokens")};
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
  const bool on_cpu = r.device() == "cpu";
  const std::string device =
      on_cpu ? absl::StrFormat("%s, %d threads", r.isa(), r.threads()) : r.device();
  std::string text = absl::StrFormat(
      "%-10s %s %s\n%s  peak memory %10.0f MiB\n", r.name(), r.dtype(), device,
      is_step ? StepText(r) : DecodeText(r),
      static_cast<double>(on_cpu ? r.peak_resident_bytes() : r.peak_device_bytes()) / kMib);
  if (r.mfu() > 0) absl::StrAppendFormat(&text, "  MFU         %10.1f %%\n", 100 * r.mfu());
  if (!is_step || r.recompute() == Recompute_Name(NONE)) return text;
  const std::string segment =
      r.recompute_segment() > 1 ? absl::StrCat(" by ", r.recompute_segment()) : "";
  absl::StrAppendFormat(&text, "  recomputing %s%s: %+.1f %% of the time of a step without\n",
                        r.recompute(), segment, 100 * r.recompute_share());
  return text;
}

std::string KernelsText(const KernelsRecord& record) {
  const bool predicts = !record.device_model().empty();
  std::string text = absl::StrFormat(
      "%s %s %s\n%-26s %10s %12s %12s %8s%s\n", record.name(), record.dtype(), record.device(),
      "kernel", "calls/step", "us/call", "ms/step", "share",
      predicts ? absl::StrCat("  ms/step of ", record.device_model(), "'s roofline") : "");
  const auto predicted = [&](double seconds) {
    return predicts && seconds > 0 ? absl::StrFormat("  %12.3f", 1e3 * seconds) : "";
  };
  double share = 0.0;
  for (const KernelRecord& kernel : record.kernels()) {
    share += kernel.share();
    absl::StrAppendFormat(&text, "%-26s %10.1f %12.2f %12.3f %6.1f %%%s\n", kernel.name(),
                          kernel.calls_per_step(), 1e6 * kernel.seconds_per_call(),
                          1e3 * kernel.calls_per_step() * kernel.seconds_per_call(),
                          100 * kernel.share(), predicted(kernel.predicted_seconds_per_step()));
  }
  absl::StrAppendFormat(&text, "%-26s %36.3f %6.1f %%%s\n", "the whole step",
                        1e3 * record.seconds_per_step(), 100 * share,
                        predicted(record.predicted_seconds_per_step()));
  return text;
}

absl::Status RunBench(const CommandLine& line) {
  const auto& words = line.flags.positional();
  const std::string what = words.size() == 1 ? words[0] : "";
  if (what != "step" && what != "decode" && what != "kernels") {
    return BadFlag("bench: say what to measure: step, decode or kernels");
  }
  RETURN_IF_ERROR(CheckNumbers(line.flags));
  const std::string lengths_file = ResolvePath(line, line.flags.Text("lengths"));
  const auto integer = [&](const char* name) { return static_cast<int>(line.flags.Integer(name)); };
  const StepBenchOptions step = {.shape = line.flags.Text("shape"),
                                 .size = SizeOf(line),
                                 .lengths_file = lengths_file,
                                 .steps = integer("steps"),
                                 .compute = ComputeOf(line),
                                 .device_model = line.flags.Text("device-model"),
                                 .recompute = RecomputeOf(line)};
  const bool json = line.flags.Switch("json");
  if (what == "kernels") {
    ASSIGN_OR_RETURN(const KernelsRecord record, BenchKernels(step));
    line.out << (json ? ToJson(record) + "\n" : KernelsText(record));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const BenchRecord record,
                   what == "step" ? BenchStep(step)
                                  : BenchDecode({.size = SizeOf(line),
                                                 .lengths_file = lengths_file,
                                                 .sentences = integer("sentences"),
                                                 .beam_size = integer("beam"),
                                                 .compute = ComputeOf(line),
                                                 .device_model = line.flags.Text("device-model")}));
  line.out << (json ? ToJson(record) + "\n" : Table(record, what == "step"));
  return absl::OkStatus();
}

}  // namespace

Command MakeBenchCommand() {
  return {
      .name = "bench",
      .summary = "Measure training steps, their kernels, or decoding on this machine.",
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
          "real translation.\n"
          "`deepnet bench kernels` takes the steps of `bench step` and prints the time of every "
          "kernel; on a CPU, of every function of Ops. It times each of them, so its steps are "
          "longer.",
      .arguments = "step|decode|kernels",
      .max_arguments = 1,
      .flags =
          {ChoiceFlag("shape", "SHAPE", {"A", "B", "C", "D"},
                      "Model that `step` and `kernels` train.", "A"),
           IntegerFlag("layers", "Layers of each stack in place of the shape's; 0: the shape's.",
                       "0"),
           IntegerFlag("width",
                       "Width in place of the shape's; inner width and heads change with it; 0: "
                       "the shape's.",
                       "0"),
           IntegerFlag("tokens",
                       "Tokens of each side of a microbatch in place of the shape's; 0: the "
                       "shape's.",
                       "0"),
           ChoiceFlag("device", "DEVICE", {"cpu", "cuda", "auto"},
                      "auto: a GPU where this build sees one.", "auto"),
           TextFlag("device-model", "NAME",
                    "GPU that MFU and predictions are of, as cluster.device_model, but no file; "
                    "default: the one that CUDA names, where plans know it."),
           IntegerFlag("steps", "Steps that `step` and `kernels` time.", "8"),
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
