#include "trainer/bench/bench.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/command.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "trainer/telemetry/metrics.h"

namespace deepnet {
namespace {

ComputeSpec ComputeOf(const CommandLine& line) {
  ComputeSpec compute;
  compute.set_threads_per_rank(static_cast<int>(line.flags.Integer("threads")));
  const std::string& dtype = line.flags.Text("dtype");
  if (dtype == "float32") compute.set_dtype(FLOAT32);
  if (dtype == "bfloat16") compute.set_dtype(BFLOAT16);
  if (line.flags.Switch("library")) compute.set_matmul(LIBRARY);
  AttentionKernel attention = AUTO;
  AttentionKernel_Parse(line.flags.Text("attention"), &attention);
  compute.set_attention(attention);
  compute.set_cuda_graphs(line.flags.Switch("graphs"));
  compute.set_device(line.flags.Switch("library") ? "cpu" : line.flags.Text("device"));
  ResolveDevice(line, &compute);
  return compute;
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
  int width = 26;  // of names
  for (const KernelRecord& product : record.products()) {
    width = std::max(width, static_cast<int>(product.name().size()));
  }
  std::string text = absl::StrFormat(
      "%s %s %s\n%-*s %10s %12s %12s %8s%s\n", record.name(), record.dtype(), record.device(),
      width, "kernel", "calls/step", "us/call", "ms/step", "share",
      predicts ? absl::StrCat("  ms/step of ", record.device_model(), "'s roofline") : "");
  const auto predicted = [&](double seconds) {
    return predicts && seconds > 0 ? absl::StrFormat("  %12.3f", 1e3 * seconds) : "";
  };
  double share = 0.0;
  const auto add = [&](const KernelRecord& kernel) {
    absl::StrAppendFormat(&text, "%-*s %10.1f %12.2f %12.3f %6.1f %%%s\n", width, kernel.name(),
                          kernel.calls_per_step(), 1e6 * kernel.seconds_per_call(),
                          1e3 * kernel.calls_per_step() * kernel.seconds_per_call(),
                          100 * kernel.share(), predicted(kernel.predicted_seconds_per_step()));
  };
  for (const KernelRecord& kernel : record.kernels()) {
    share += kernel.share();
    add(kernel);
  }
  absl::StrAppendFormat(&text, "%-*s %36.3f %6.1f %%%s\n", width, "the whole step",
                        1e3 * record.seconds_per_step(), 100 * share,
                        predicted(record.predicted_seconds_per_step()));
  if (record.products().empty()) return text;
  text += "products among them\n";
  for (const KernelRecord& product : record.products()) add(product);
  return text;
}

// Returns the milliseconds of all products of a step in the way of this name; those that have no
// split sums are as the best. 0 where no product has it.
double StepMilliseconds(const ProductsRecord& record, std::string_view name) {
  double seconds = 0.0;
  bool has = false;
  for (const ProductRecord& product : record.products()) {
    double of_call = product.ways(name == "split" ? 1 : 0).seconds_per_call();
    for (const ProductTime& way : product.ways()) {
      if (way.way() != name || way.seconds_per_call() == 0) continue;
      of_call = way.seconds_per_call();
      has = true;
    }
    seconds += product.calls_per_step() * of_call;
  }
  return has ? 1e3 * seconds : 0.0;
}

std::string ProductsText(const ProductsRecord& record) {
  std::string text = absl::StrFormat("%s %s %s\n%-34s %-20s %7s  %-20s %10s %9s %3s  %-10s %s\n",
                                     record.name(), record.dtype(), record.device(), "product",
                                     "rows x columns x sum", "calls", "way", "us", "GFLOP/s", "of",
                                     absl::StrCat("bits of ", record.repeats()), "algorithm");
  for (const ProductRecord& product : record.products()) {
    const std::string shape =
        absl::StrCat(product.rows(), " x ", product.columns(), " x ", product.depth());
    const double flops = 2.0 * static_cast<double>(product.rows()) *
                         static_cast<double>(product.columns()) *
                         static_cast<double>(product.depth());
    for (int i = 0; i < product.ways_size(); ++i) {
      const ProductTime& way = product.ways(i);
      const std::string begin = i > 0 ? std::string(63, ' ')
                                      : absl::StrFormat("%-34s %-20s %7.0f", product.name(), shape,
                                                        product.calls_per_step());
      if (way.seconds_per_call() == 0) {
        absl::StrAppendFormat(&text, "%s  %-20s %10s\n", begin, way.way(), "none");
        continue;
      }
      absl::StrAppendFormat(
          &text, "%s  %-20s %10.1f %9.0f %3d  %-10s %s\n", begin, way.way(),
          1e6 * way.seconds_per_call(), 1e-9 * flops / way.seconds_per_call(), way.candidates(),
          way.unequal() == 0 ? "equal" : absl::StrCat(way.unequal(), " differ"), way.algorithm());
    }
  }
  text += "ms a step";
  for (const char* name : {"first", "best", "split", "NATIVE", "MKL", "BLAS", "oneDNN"}) {
    const double milliseconds = StepMilliseconds(record, name);
    if (milliseconds > 0) absl::StrAppendFormat(&text, "  %s %.3f", name, milliseconds);
  }
  return text + "\n";
}

absl::Status RunBench(const CommandLine& line) {
  const auto& words = line.flags.positional();
  const std::string what = words.size() == 1 ? words[0] : "";
  if (what != "step" && what != "decode" && what != "kernels" && what != "products") {
    return ConfigError("bench: say what to measure: step, decode, kernels or products");
  }
  const auto integer = [&](const char* name) { return static_cast<int>(line.flags.Integer(name)); };
  BenchOptions options = {
      .shape = what == "decode" ? "A" : line.flags.Text("shape"),
      .size = {.layers = integer("layers"), .width = integer("width"), .tokens = integer("tokens")},
      .lengths_file = ResolvePath(line, line.flags.Text("lengths")),
      .compute = ComputeOf(line),
      .device_model = what == "products" ? "" : line.flags.Text("device-model"),
      .steps = integer("steps"),
      .microbatches = integer("microbatches"),
      .recompute = {.segment = integer("segment")},
      .repeats = integer("repeats"),
      .sentences = integer("sentences"),
      .beam_size = integer("beam"),
      .batch_tokens = integer("batch-tokens")};
  Recompute_Parse(line.flags.Text("recompute"), &options.recompute.level);
  if (line.flags.Given("residual")) {
    Residual_Parse(line.flags.Text("residual"), &options.size.residual);
  }
  const auto print = [&](const auto& record, const auto& to_text) {
    RETURN_IF_ERROR(record.status());
    line.out << (line.flags.Switch("json") ? ToJson(*record) + "\n" : to_text(*record));
    return absl::OkStatus();
  };
  if (what == "kernels") return print(BenchKernels(options), KernelsText);
  if (what == "products") return print(BenchProducts(options), ProductsText);
  const bool is_step = what == "step";
  return print(is_step ? BenchStep(options) : BenchDecode(options),
               [&](const BenchRecord& record) { return Table(record, is_step); });
}

std::vector<Flag> BenchFlags() {
  return {
      ChoiceFlag("shape", "SHAPE", {"A", "B", "C", "D", "paper", "paper-100"},
                 "Model that `step` and `kernels` train, and whose products are timed.", "A"),
      IntegerFlag("layers", "Layers of each stack in place of the shape's; 0: the shape's.", "0",
                  {0, 10000}),
      IntegerFlag(
          "width",
          "Width in place of the shape's; inner width and heads change with it; 0: the shape's.",
          "0", {0, 65536}),
      IntegerFlag("tokens",
                  "Tokens of each side of a microbatch in place of the shape's; 0: the shape's.",
                  "0", {0, 1000000}),
      ChoiceFlag("residual", "SCHEME", {"DEEPNORM", "POST_LN", "PRE_LN", "NORMFORMER", "SUB_LN"},
                 "Scheme of the shape's sub-layers, as model.residual.", "DEEPNORM"),
      ChoiceFlag("device", "DEVICE", {"cpu", "cuda", "auto"},
                 "auto: a GPU where this build sees one.", "auto"),
      TextFlag("device-model", "NAME",
               "GPU that MFU and predictions are of, as cluster.device_model, but no file; "
               "default: the one that CUDA names, where plans know it."),
      IntegerFlag("steps", "Steps that `step` and `kernels` time.", "8", {1, 1000000}),
      IntegerFlag("microbatches", "Microbatches of such a step.", "1", {1, 100000}),
      ChoiceFlag("attention", "KERNEL", {"AUTO", "OWN", "FLASH"},
                 "Kernels of attention on a GPU, as compute.attention.", "AUTO"),
      SwitchFlag("graphs", "On a GPU: CUDA graphs, as compute.cuda_graphs."),
      IntegerFlag("repeats", "Repeats of each way that `products` compares the bits of.", "50",
                  {1, 1000000}),
      ChoiceFlag("recompute", "LEVEL", {"NONE", "SELECTIVE_FFN", "SELECTIVE_GEMM", "FULL"},
                 "What the layers of `step` recompute, as parallel.recompute.", "NONE"),
      IntegerFlag("segment", "With --recompute FULL: layers between two kept inputs.", "1",
                  {1, 100000}),
      IntegerFlag("sentences", "Sentences that `decode` searches, the first of --lengths.", "200",
                  {1, 1000000}),
      IntegerFlag("beam", "Hypotheses that `decode` keeps; 1 is greedy.", "5", {1, 1000}),
      IntegerFlag("batch-tokens",
                  "Source tokens that `decode` searches together; 0: as `translate` does.", "0",
                  {0, 1000000}),
      ChoiceFlag("dtype", "TYPE", {"float32", "bfloat16"},
                 "Operands of matrix products; default: the faster one here."),
      IntegerFlag("threads", "Threads; 0: all cores of this process.", "0", {0, 1024}),
      SwitchFlag("library", "Use LibTorch's operations, the reference, instead of the kernels."),
      TextFlag("lengths", "FILE", "JSON list of [source, target] lengths.",
               "tests/bench/lengths.json"),
      JsonFlag()};
}

}  // namespace

Command MakeBenchCommand() {
  return {
      .name = "bench",
      .summary = "Measure training steps, kernels, matrix products, or decoding on this machine.",
      .description =
          "`deepnet bench step --shape A` trains a few steps of a fixed model on made-up tokens of "
          "real sentence lengths: A 6+6 layers and B 18+18 layers of width 256, C 100+100 and D "
          "500+500 layers of width 64, paper 500+500 and paper-100 100+100 layers of width 512 "
          "with 250,002 pieces. It prints tokens per second without padding, the share of the best "
          "matrix product measured in the same process, and peak memory. With --recompute each "
          "step is also taken by a twin that keeps everything, in turns, and the share of time "
          "that recomputation adds is printed.\n"
          "`deepnet bench decode` searches translations with a 6+6 model of width 256 and 8,000 "
          "pieces, in batches as `translate` has them, and prints sentences per second. Weights "
          "and sources are made up; each search ends at the length of the real translation.\n"
          "`deepnet bench kernels` takes the steps of `bench step` and prints the time of every "
          "kernel, and of every matrix product by what it is for; on a CPU, of every function of "
          "Ops. It times each of them, so its steps are longer.\n"
          "`deepnet bench products` times every matrix product of a full microbatch in all ways "
          "that there are: on a GPU cuBLASLt's first choice (first), the best of 16 (best), sums "
          "that are split in a fixed order (split), and epilogues beside the kernels that do the "
          "same; on a CPU this project's kernels and LibTorch's libraries. Each way's fastest is "
          "then repeated, and results with other bits are counted.",
      .arguments = "step|decode|kernels|products",
      .max_arguments = 1,
      .flags = BenchFlags(),
      .run = RunBench};
}

}  // namespace deepnet
