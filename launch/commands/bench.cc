#include "trainer/bench.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/commands.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
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
  if (mistakes.empty()) return absl::OkStatus();
  return WithExitCode(absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n")),
                      ExitCode::kBadConfig);
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
  for (const auto& [name, level] :
       {std::pair{"ffn", SELECTIVE_FFN}, {"gemm", SELECTIVE_GEMM}, {"layer", FULL}}) {
    if (line.flags.Text("recompute") == name) choice.level = level;
  }
  return choice;
}

std::string RecomputeLine(const BenchRecord& r) {
  if (r.recompute() == Recompute_Name(NONE)) return "";
  const std::string segment =
      r.recompute_segment() > 1 ? absl::StrCat(" by ", r.recompute_segment()) : "";
  return absl::StrFormat("  recomputing %s%s: %+.1f %% of the time of a step without\n",
                         r.recompute(), segment, 100 * r.recompute_share());
}

std::string Table(const BenchRecord& r) {
  return absl::StrFormat(
             "%-10s %s %s, %d threads\n"
             "  tokens/s    %10.0f median  %10.0f best   (source + target, padding not counted)\n"
             "  GFLOP/s     %10.1f median  %10.1f product ceiling   efficiency %.1f %%\n"
             "  step        %10.3f s\n"
             "  peak memory %10.0f MiB\n",
             r.name(), r.dtype(), r.isa(), r.threads(), r.tokens_per_second(),
             r.tokens_per_second_best(), r.gflops(), r.ceiling_gflops(), 100 * r.gemm_efficiency(),
             r.seconds_per_step(), static_cast<double>(r.peak_resident_bytes()) / (1 << 20)) +
         RecomputeLine(r);
}

std::string DecodeTable(const BenchRecord& r) {
  return absl::StrFormat(
      "%-10s %s %s, %d threads\n"
      "  sentences/s %10.1f\n"
      "  tokens/s    %10.0f   (source + target)\n"
      "  GFLOP/s     %10.1f   %10.1f product ceiling   efficiency %.1f %%\n"
      "  peak memory %10.0f MiB\n",
      r.name(), r.dtype(), r.isa(), r.threads(), r.sentences_per_second(), r.tokens_per_second(),
      r.gflops(), r.ceiling_gflops(), 100 * r.gemm_efficiency(),
      static_cast<double>(r.peak_resident_bytes()) / (1 << 20));
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
  absl::StatusOr<BenchRecord> record;
  if (what == "step") {
    record = BenchStep({.shape = line.flags.Text("shape"),
                        .lengths_file = lengths_file,
                        .steps = static_cast<int>(line.flags.Integer("steps")),
                        .compute = compute,
                        .recompute = RecomputeOf(line)});
  } else {
    record = BenchDecode({.lengths_file = lengths_file,
                          .sentences = static_cast<int>(line.flags.Integer("sentences")),
                          .beam_size = static_cast<int>(line.flags.Integer("beam")),
                          .compute = compute});
  }
  RETURN_IF_ERROR(record.status());
  const std::string table = what == "step" ? Table(*record) : DecodeTable(*record);
  line.out << (line.flags.Switch("json") ? ToJson(*record) + "\n" : table);
  return absl::OkStatus();
}

}  // namespace

Command MakeBenchCommand() {
  return {
      .name = "bench",
      .summary = "measure training steps or decoding on this machine",
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
      .flags = {{.name = "shape",
                 .value = "SHAPE",
                 .default_value = "A",
                 .help = "Model that `step` trains.",
                 .allowed = {"A", "B", "C", "D"}},
                {.name = "steps",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .default_value = "8",
                 .help = "Steps that `step` times."},
                {.name = "recompute",
                 .value = "LEVEL",
                 .default_value = "none",
                 .help = "What the layers of `step` compute again in the backward pass.",
                 .allowed = {"none", "ffn", "gemm", "layer"}},
                {.name = "segment",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .default_value = "1",
                 .help = "With --recompute layer: layers between two kept inputs."},
                {.name = "sentences",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .default_value = "200",
                 .help = "Sentences that `decode` searches, the first of --lengths."},
                {.name = "beam",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .default_value = "5",
                 .help = "Hypotheses that `decode` keeps; 1 is greedy."},
                {.name = "dtype",
                 .value = "TYPE",
                 .help = "Operands of matrix products; default: the faster one here.",
                 .allowed = {"float32", "bfloat16"}},
                {.name = "threads",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .default_value = "0",
                 .help = "Threads; 0: all cores of this process."},
                {.name = "library",
                 .kind = FlagKind::kSwitch,
                 .help = "Use LibTorch's operations, the reference, instead of the kernels."},
                {.name = "lengths",
                 .value = "FILE",
                 .default_value = "tests/bench/lengths.json",
                 .help = "JSON list of [source, target] lengths."},
                JsonFlag()},
      .run = RunBench};
}

}  // namespace deepnet
