#include "launch/commands/train.h"

#include <csignal>

#include "launch/validate.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

// What the last signal asks for (TrainOptions::request). Signal handlers can reach nothing else.
std::atomic<int> g_request{0};  // NOLINT: a handler takes no argument

extern "C" void HandleStop(int) { g_request = 1; }
extern "C" void HandleSave(int) { g_request = 2; }
extern "C" void HandleInterrupt(int signal) {
  if (g_request.exchange(1) == 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

absl::Status RunTrain(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  std::signal(SIGTERM, HandleStop);
  std::signal(SIGUSR1, HandleStop);
  std::signal(SIGUSR2, HandleSave);
  std::signal(SIGINT, HandleInterrupt);
  LoggerOptions options = StderrOptions();
  options.plain_seconds = line.flags.Number("log-seconds");
  Logger log(options);
  return Train(
      run, {.root = RootFolder(line), .fresh = line.flags.Switch("fresh"), .request = &g_request},
      log);
}

}  // namespace

Command MakeTrainCommand() {
  return {
      .name = "train",
      .summary = "train a model, or go on with a run",
      .description =
          "Trains what the RunSpec says on the corpus of data.folder and writes checkpoints and "
          "metrics.jsonl into the run's folder. A folder that has checkpoints is continued from "
          "the newest good one, with the same next step bit for bit.\n"
          "SIGTERM, SIGUSR1 or one SIGINT: save and exit with code 75. SIGUSR2: save and go on. "
          "A second SIGINT: end at once.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForTrain,
      .flags = {{.name = "fresh",
                 .kind = FlagKind::kSwitch,
                 .help = "refuse a run folder that is not empty"},
                {.name = "log-seconds",
                 .kind = FlagKind::kNumber,
                 .value = "SECONDS",
                 .default_value = "5",
                 .help = "in a file or pipe, a line of progress at most this often"}},
      .run = RunTrain};
}

}  // namespace deepnet
