#include "launch/commands/rehearse_arguments.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr int64_t kSmallPayload = 64;  // bytes of a tensor: latency without bandwidth

}  // namespace

std::vector<Flag> RehearseFlags() {
  return {{.name = "schedule",
           .value = "NAME|FILE",
           .help = "In place of parallel.schedule: a name, or a file with a schedule as text "
                   "(as `plan --print schedule` shows it)."},
          {.name = "compare",
           .kind = FlagKind::kSwitch,
           .help = "Every schedule, one after the other, on as many stages as the plan has."},
          {.name = "time-scale",
           .kind = FlagKind::kNumber,
           .value = "K",
           .default_value = "0",
           .help = "Seconds waited for each second of the cost model. 0: a step takes 3 s, or "
                   "longer where actions are many."},
          {.name = "payload",
           .value = "SIZE",
           .default_value = "small",
           .help = "full: messages of real size. small: at most 64 bytes a tensor, where "
                   "this host's memory is not the network that is planned for.",
           .allowed = {"full", "small"}},
          {.name = "steps",
           .kind = FlagKind::kInteger,
           .value = "N",
           .default_value = "3",
           .help = "Steps a schedule; the fastest counts."},
          {.name = "trace",
           .value = "FILE",
           .help = "Write what every rank did and when, for chrome://tracing or "
                   "ui.perfetto.dev. Not with --compare."},
          JsonFlag()};
}

absl::Status CheckRehearseFlags(const ParsedFlags& flags) {
  std::vector<std::string> mistakes;
  if (flags.Number("time-scale") < 0) mistakes.push_back("--time-scale: must be above 0");
  if (flags.Integer("steps") < 1) mistakes.push_back("--steps: must be at least 1");
  if (flags.Switch("compare") && flags.Given("trace")) {
    mistakes.push_back("--trace: shows one schedule: not with --compare");
  }
  if (flags.Switch("compare") && flags.Given("schedule")) {
    mistakes.push_back("--compare: shows every schedule: not with --schedule");
  }
  if (mistakes.empty()) return absl::OkStatus();
  return WithExitCode(absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n")),
                      ExitCode::kBadConfig);
}

RehearsalOptions MakeRehearsalOptions(const ParsedFlags& flags, const ParallelSpec& parallel) {
  RehearsalOptions options;
  options.time_scale = flags.Number("time-scale");
  if (flags.Text("payload") == "small") options.payload_limit_bytes = kSmallPayload;
  options.steps = static_cast<int>(flags.Integer("steps"));
  options.executor.limits = MakeTimeLimits(parallel, /*first_step=*/true);
  return options;
}

}  // namespace deepnet
