#include "launch/commands/sbatch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace deepnet {
namespace {

constexpr double kGiB = 1 << 30;
// A rank has these besides tensors: libraries and corpus; beside a GPU also what CUDA and NCCL pin.
constexpr double kProgramGib = 1.0, kGpuProgramGib = 6.0;
// A rank with a GPU computes, moves messages, writes a save and watches its peers, a thread each.
constexpr int kCoresPerGpu = 4;
constexpr double kStartSeconds = 600.0;  // until the first step, and to leave
constexpr double kSaveBytesPerSecond = 1e9;
// Published runs reach three quarters of the speed that is predicted for them
// (docs/design/roofline.md).
constexpr double kTimeMargin = 4.0 / 3.0;

int CeilDivide(int a, int b) { return (a + b - 1) / b; }

// Host memory of one rank: all it has on a CPU; beside a GPU the pinned copy of a save.
double RankGib(const StagePlan& stage, const RunSpec& run) {
  const MemoryEstimate& memory = stage.memory();
  if (run.compute().device() != "cuda") {
    return static_cast<double>(memory.total()) / kGiB + kProgramGib;
  }
  return static_cast<double>(memory.weights() + memory.moments()) / kGiB + kGpuProgramGib;
}

// A checkpoint's bytes: weights, moments and average of one replica, tied tensors as often as held.
double CheckpointBytes(const Plan& plan, const RunSpec& run) {
  double weights = 0;
  for (int stage = 0; stage < plan.pipeline_parallel_size(); ++stage) {
    weights += static_cast<double>(plan.stages(stage).memory().weights());
  }
  return (run.optim().ema_decay() > 0 ? 4 : 3) * weights;
}

double RunSeconds(const Plan& plan, const RunSpec& run) {
  const TrainSpec& train = run.train();
  const double limit = 60 * train.max_train_minutes();
  double seconds = limit;
  if (train.steps() > 0) {
    const auto steps = static_cast<double>(train.steps());
    const double save = CheckpointBytes(plan, run) / kSaveBytesPerSecond;
    const double interval =
        static_cast<double>(std::max<int64_t>(1, train.checkpoint_every_steps()));
    // In the background a save holds training up only where the next one is due before its end.
    const double stall = run.parallel().blocking_saves()
                             ? save
                             : std::max(0.0, save - interval * plan.step_seconds());
    seconds = steps * plan.step_seconds() + std::floor(steps / interval) * stall + 2 * save;
    if (limit > 0) seconds = std::min(seconds, limit);
  }
  return seconds > 0 ? kTimeMargin * seconds + kStartSeconds : 0.0;
}

// 90061 -> "1-01:02:00", rounded up to minutes: what Slurm takes for a time.
std::string SlurmTime(double seconds) {
  const auto minutes = static_cast<int64_t>(std::ceil(seconds / 60));
  return absl::StrFormat("%d-%02d:%02d:00", minutes / 1440, minutes / 60 % 24, minutes % 60);
}

std::string Quoted(const std::string& word) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string Name(const RunSpec& run) {
  std::string name = run.name().empty() ? "train" : run.name();
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  }
  return name;
}

// The degrees of the plan, so that the job trains with them whatever it finds; a schedule from a
// file is among the user's words.
std::vector<std::string> Degrees(const Plan& plan) {
  std::vector<std::string> sets = {
      absl::StrCat("parallel.pipeline_parallel_size=", plan.pipeline_parallel_size()),
      absl::StrCat("parallel.data_parallel_size=", plan.data_parallel_size())};
  if (plan.schedule_text().empty()) {
    sets.push_back(absl::StrCat("parallel.schedule=", plan.schedule()));
    sets.push_back(absl::StrCat("parallel.virtual_pipeline_size=", plan.virtual_pipeline_size()));
  }
  return sets;
}

}  // namespace

JobRequest RequestFor(const Plan& plan, const RunSpec& run, int host_cores) {
  JobRequest request;
  request.ranks = plan.stages_size();
  const ClusterSpec& cluster = run.cluster();
  const int nodes = std::max(1, cluster.nodes());
  const int devices = cluster.devices_per_node() > 0 ? cluster.devices_per_node()
                                                     : CeilDivide(request.ranks, nodes);
  request.ranks_per_node = std::min(devices, request.ranks);
  request.nodes = CeilDivide(request.ranks, request.ranks_per_node);
  const bool cuda = run.compute().device() == "cuda";
  request.gpus_per_node = cuda ? request.ranks_per_node : 0;
  const int threads = run.compute().threads_per_rank();
  request.cores_per_rank = threads > 0 ? threads
                           : cuda      ? kCoresPerGpu
                                       : std::max(1, host_cores / request.ranks_per_node);
  double node = 0;
  for (int rank = 0; rank < request.ranks; ++rank) {
    if (rank % request.ranks_per_node == 0) node = 0;
    node += RankGib(plan.stages(rank), run);
    request.node_memory_gib = std::max(request.node_memory_gib, node);
  }
  request.run_seconds = RunSeconds(plan, run);
  return request;
}

std::string SbatchScript(const JobRequest& request, const Plan& plan, const RunSpec& run,
                         std::vector<std::string> words) {
  for (const std::string& set : Degrees(plan)) words.insert(words.end(), {"--set", set});
  const std::string command = absl::StrJoin(
      words, " ",
      [](std::string* out, const std::string& word) { absl::StrAppend(out, Quoted(word)); });
  std::string text = absl::StrFormat(
      "#!/usr/bin/env bash\n"
      "# Trains %s as `deepnet plan` found it: %d x %d ranks (stages x replicas), schedule %s, %s\n"
      "# seconds a step. Submit it in the project's folder: sbatch [OPTION...] FILE. Options of "
      "sbatch\n"
      "# on the command line win; account and partition are among them. A shorter --time will do: "
      "the\n"
      "# run saves and the job goes back into the queue (launch/slurm/README.md).\n"
      "#SBATCH --job-name=%s\n"
      "#SBATCH --nodes=%d\n"
      "#SBATCH --ntasks=%d\n"
      "#SBATCH --ntasks-per-node=%d\n"
      "#SBATCH --cpus-per-task=%d\n"
      "#SBATCH --mem=%dG\n",
      Name(run), plan.pipeline_parallel_size(), plan.data_parallel_size(), plan.schedule(),
      absl::StrFormat("%.3g", plan.step_seconds()), Name(run), request.nodes, request.ranks,
      request.ranks_per_node, request.cores_per_rank,
      static_cast<int64_t>(std::ceil(request.node_memory_gib)));
  if (request.gpus_per_node > 0) {
    absl::StrAppendFormat(&text, "#SBATCH --gres=gpu:%d\n", request.gpus_per_node);
  }
  if (request.run_seconds > 0) {
    absl::StrAppendFormat(&text, "#SBATCH --time=%s\n", SlurmTime(request.run_seconds));
  }
  absl::StrAppend(&text,
                  "#SBATCH --output=%x_%j.log\n"
                  "#SBATCH --open-mode=append\n"
                  "#SBATCH --requeue\n"
                  "#SBATCH --signal=B:USR1@300\n"
                  "# shellcheck source=launch/slurm/run.sh\n"
                  "source \"${DEEPNET_HOME:-$SLURM_SUBMIT_DIR}/launch/slurm/run.sh\"\n"
                  "run_ranks train ",
                  command, " \"$@\"\n");
  return text;
}

}  // namespace deepnet
