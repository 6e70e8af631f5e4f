#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/command.h"
#include "launch/commands/sbatch.h"
#include "launch/validate.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/device_model.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/planner_text.h"
#include "parallel/plan/roofline.h"
#include "parallel/plan/schedule.h"
#include "trainer/named_files.h"
#include "trainer/optim/learning_rate.h"

namespace deepnet {
namespace {

constexpr int kGridColumns = 110;
constexpr int kMaxGridRanks = 32;

// `cluster`, whose ranks share this host's memory where it says nothing else. GPUs may be anywhere:
// they have what their model has, or no limit where none is named.
ClusterSpec WithMemory(ClusterSpec cluster, const ComputeSpec& compute, std::ostream& err) {
  if (cluster.device_memory_gib() > 0) return cluster;
  if (compute.device() != "cpu") {
    if (const auto device = FindDeviceModel(cluster.device_model()); device.ok()) {
      cluster.set_device_memory_gib(device->memory_gib());
      err << absl::StrFormat("cluster.device_memory_gib is not set: taking %.1f, of %s\n",
                             device->memory_gib(), device->name());
    } else {
      err << "cluster.device_memory_gib is not set: planning for GPUs without a limit\n";
    }
    return cluster;
  }
  const int ranks = std::max(1, cluster.devices_per_node());
  cluster = WithMemoryShare(cluster, UsableMemoryBytes());
  err << absl::StrFormat(
      "cluster.device_memory_gib is not set: taking %.1f, this host's memory over %d rank%s\n",
      cluster.device_memory_gib(), ranks, ranks == 1 ? "" : "s");
  return cluster;
}

std::string ScheduleText(const Plan& plan, const RunSpec& run) {
  std::string text;
  if (plan.pipeline_parallel_size() <= kMaxGridRanks) {
    text = absl::StrCat(DrawGrid(SimulatePlan(plan, run.cluster(), run.compute()), kGridColumns),
                        "\n");
  }
  return text + ToText(MakeSchedule(plan));
}

std::string Section(const std::string& name, const Plan& plan, const RunSpec& run,
                    const Inventory& inventory) {
  if (name == "schedule") return ScheduleText(plan, run);
  if (name == "layout") return ChunksText(plan, inventory);
  if (name == "memory") return MemoryText(plan);
  if (name == "kernels") return KernelsText(plan);
  return PlanText(plan, inventory);
}

void Print(const Plan& plan, const RunSpec& run, const Inventory& inventory,
           const CommandLine& line) {
  if (line.flags.Switch("json")) {
    line.out << ToIndentedJson(plan);
    return;
  }
  std::vector<std::string> sections = line.flags.List("print");
  if (sections.empty()) sections = {"plan"};
  for (size_t i = 0; i < sections.size(); ++i) {
    line.out << (i > 0 ? "\n" : "") << Section(sections[i], plan, run, inventory);
  }
}

absl::Status WriteText(const CommandLine& line, const std::string& flag, const std::string& text) {
  const std::string path = ResolvePath(line, line.flags.Text(flag));
  absl::Status written = ReplaceFile(*MakePosixFileSystem(Durability::kProcessEnd), path, text);
  if (written.ok()) return written;
  return ConfigError("--", flag, ": ", written.message());
}

std::string Svg(const Plan& plan, const RunSpec& run) {
  const std::string title =
      absl::StrCat(plan.schedule(), ", ", plan.pipeline_parallel_size(), " ranks, ",
                   PipelineShapeOf(plan).num_microbatches, " microbatches");
  return DrawSvg(SimulatePlan(plan, run.cluster(), run.compute()), title);
}

// Returns the job script for this plan; its `train` gets the words that this command got.
std::string Script(const Plan& plan, const RunSpec& run, const CommandLine& line) {
  std::vector<std::string> words;
  if (line.flags.Given("root")) words = {"--root", line.flags.Text("root")};
  for (const std::string& file : line.flags.List("config")) {
    words.insert(words.end(), {"--config", file});
  }
  for (const std::string& set : line.flags.List("set")) words.insert(words.end(), {"--set", set});
  return SbatchScript(RequestFor(plan, run, UsableCores()), plan, run, words);
}

absl::Status CheckFlags(const ParsedFlags& flags) {
  const bool json = flags.Switch("json"), compare = flags.Switch("compare");
  if ((json || compare) && flags.Given("print")) {
    return ConfigError("--print is for tables of a plan: not with --json, --compare");
  }
  if (compare && (json || flags.Given("svg") || flags.Given("sbatch"))) {
    return ConfigError("--compare is a table of its own: not with --json, --svg, --sbatch");
  }
  return absl::OkStatus();
}

// A plan that does not fit is an error, but what it would look like is printed all the same.
absl::Status RunPlan(const CommandLine& line) {
  RETURN_IF_ERROR(CheckFlags(line.flags));
  ASSIGN_OR_RETURN(RunSpec run, LoadRunSpec(line));
  RETURN_IF_ERROR(ReadNamedFiles(RootFolder(line), &run));
  const Inventory inventory = InventoryOf(line, run);
  if (line.flags.Switch("compare")) {
    ASSIGN_OR_RETURN(const std::string text,
                     CompareText(inventory, {run.data(), run.optim(), run.compute(), run.cluster(),
                                             run.parallel(), run.instruments()}));
    line.out << text;
    return absl::OkStatus();
  }
  if (run.compute().device() != "cpu" && run.cluster().device_model().empty()) {
    line.err << "cluster.device_model is not set: taking the speeds of " << kDefaultDeviceModel
             << "\n";
  }
  const std::string scale = BatchScaleText(run.optim(), run.data());
  if (!scale.empty()) line.err << scale << "\n";
  *run.mutable_cluster() = WithMemory(run.cluster(), run.compute(), line.err);
  std::string warning;
  const absl::StatusOr<Plan> plan = MakePlan(
      inventory,
      {run.data(), run.optim(), run.compute(), run.cluster(), run.parallel(), run.instruments()},
      &warning);
  if (!warning.empty()) line.err << "warning: " << warning << "\n";
  if (const auto closest = ClosestPlan(plan.status())) Print(*closest, run, inventory, line);
  RETURN_IF_ERROR(plan.status());
  Print(*plan, run, inventory, line);
  if (line.flags.Given("svg")) RETURN_IF_ERROR(WriteText(line, "svg", Svg(*plan, run)));
  if (!line.flags.Given("sbatch")) return absl::OkStatus();
  return WriteText(line, "sbatch", Script(*plan, run, line));
}

}  // namespace

Command MakePlanCommand() {
  return {
      .name = "plan",
      .summary = "Print how a run would be split over ranks and whether it fits.",
      .description =
          "Decides what the RunSpec leaves open (stages, replicas, schedule, chunks, what each "
          "rank recomputes) so that a simulated step takes least under every device's memory, and "
          "adds up the bytes of every rank by what they hold. Seconds follow from the speeds in "
          "cluster, on GPUs kernel by kernel from cluster.device_model. Reads no corpus, allocates "
          "nothing, needs none of the machines. Exit code 6 if it does not fit, saying by how much "
          "and what would.",
      .spec = SpecUse::kRequired,
      .plans = true,
      .validate = ValidateForPlan,
      .flags = {ListFlag("print", "WHAT",
                         "plan: degrees and a row a rank (the default); layout: a row a chunk of "
                         "the model; memory: bytes of each rank by what they hold; schedule: a "
                         "drawing of the simulated step and each rank's actions in order; kernels: "
                         "those that take most of a GPU's step. Several add up.",
                         {"plan", "layout", "memory", "schedule", "kernels"}),
                TextFlag("svg", "FILE", "Also draw the simulated step of one replica into FILE."),
                TextFlag("sbatch", "FILE",
                         "Also write a job script for Slurm that trains this plan into FILE, with "
                         "its nodes, ranks, cores, memory, GPUs and time (launch/slurm)."),
                SwitchFlag("compare",
                           "Instead: every schedule on parallel.pipeline_parallel_size stages, "
                           "with bubble and memory, beside equal halves of encoder and decoder."),
                JsonFlag()},
      .run = RunPlan};
}

}  // namespace deepnet
