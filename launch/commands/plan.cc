#include "launch/commands/plan.h"

#include <unistd.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "absl/strings/str_format.h"
#include "google/protobuf/util/json_util.h"

#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/host_memory.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/schedule_text.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// `cluster`, whose ranks share this host's memory where it says nothing else.
ClusterSpec WithMemory(ClusterSpec cluster, std::ostream& err) {
  if (cluster.device_memory_gib() > 0) return cluster;
  const int ranks = std::max(1, cluster.devices_per_node());
  cluster = WithHostMemory(cluster);
  err << absl::StrFormat(
      "cluster.device_memory_gib is not set: taking %.1f, this host's memory over "
      "%d rank%s\n",
      cluster.device_memory_gib(), ranks, ranks == 1 ? "" : "s");
  return cluster;
}

std::string Json(const Plan& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(plan, &json, options);  // cannot fail: no Any
  return json;
}

void Print(const Plan& plan, const Inventory& inventory, const CommandLine& line) {
  line.out << (line.flags.Switch("json") ? Json(plan) : ToText(plan, inventory));
  if (line.flags.Switch("schedule")) line.out << "\n" << ToText(MakeSchedule(plan));
}

// A plan that does not fit is an error, but what it would look like is printed all the same.
absl::Status RunPlan(const CommandLine& line) {
  if (line.flags.Switch("json") && line.flags.Switch("schedule")) {
    return WithExitCode(absl::InvalidArgumentError("--schedule is text: not with --json"),
                        ExitCode::kBadConfig);
  }
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  const Inventory inventory = Describe(run.model(), run.data().microbatch());
  const absl::StatusOr<Plan> plan = MakePlan(inventory, run.data(), run.optim(), run.compute(),
                                             WithMemory(run.cluster(), line.err), run.parallel());
  if (const auto closest = ClosestPlan(plan.status())) Print(*closest, inventory, line);
  RETURN_IF_ERROR(plan.status());
  Print(*plan, inventory, line);
  return absl::OkStatus();
}

}  // namespace

Command MakePlanCommand() {
  return {.name = "plan",
          .summary = "print how a run would be split over ranks and whether it fits",
          .description =
              "Cuts the layers by cost over parallel.pipeline_parallel_size stages (chosen from "
              "cluster and its memory if not set) and adds up the bytes of every rank by what they "
              "hold: weights, packed copies for matrix products, gradients, Adam's moments, "
              "activations, workspace. Reads no corpus, allocates nothing, needs none of the "
              "machines. Exit code 6 if it does not fit, saying by how much and what would.\n"
              "So far `train` runs on one rank: plans of more say what they would need.",
          .spec = SpecUse::kRequired,
          .validate = ValidateForPlan,
          .flags = {{.name = "schedule",
                     .kind = FlagKind::kSwitch,
                     .help = "Also print each rank's actions in order: chunk, F or B, microbatch. "
                             "Not with --json."},
                    JsonFlag()},
          .run = RunPlan};
}

}  // namespace deepnet
