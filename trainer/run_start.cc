#include "trainer/run_start.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "parallel/plan/host_memory.h"
#include "parallel/plan/planner.h"
#include "trainer/checkpoint/compatibility.h"
#include "trainer/data/data_order.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// An error of the file system, which says nothing of codes, is one of the run folder here.
absl::Status OfRunFolder(const absl::Status& status) {
  const bool plain = !status.ok() && GetExitCode(status) == ExitCode::kInternal;
  return plain ? WithExitCode(status, ExitCode::kCheckpoint) : status;
}

// Builds a RunStart step by step; each step relies on those before it.
class Starter {
 public:
  Starter(RunSpec run, const RunStartOptions& options, Communicator& world, FileSystem& fs,
          Logger& log)
      : options_(options), world_(world), fs_(fs), log_(log) {
    start_.run = std::move(run);
    start_.folder = PathOf(start_.run.folder());
  }

  absl::StatusOr<RunStart> Start() && {
    RETURN_IF_ERROR(
        AgreeOnStatus(world_, ReadScheduleFile(options_.root, start_.run.mutable_parallel())));
    RETURN_IF_ERROR(CheckSameProgram());
    RETURN_IF_ERROR(AgreeOnStatus(world_, OpenCorpus()));
    const std::vector<Fact> facts = {{"corpus", start_.corpus->content_hash()},
                                     {"tokenizer", start_.corpus->vocabulary().hash()}};
    RETURN_IF_ERROR(CheckSameEverywhere(world_, facts));
    ASSIGN_OR_RETURN(hosts_, AllGatherText(world_, HostName()));
    RETURN_IF_ERROR(FindEarlierRun());
    RETURN_IF_ERROR(AgreeOnStatus(world_, TakeOverChoices()));
    RETURN_IF_ERROR(ResolveArithmetic());
    RETURN_IF_ERROR(AgreeOnStatus(world_, MakeThePlan()));
    RETURN_IF_ERROR(AgreeOnStatus(world_, CheckIdentity()));
    RETURN_IF_ERROR(
        AgreeOnStatus(world_, world_.rank() == 0 ? OfRunFolder(LockFolder()) : absl::OkStatus()));
    RETURN_IF_ERROR(CheckSameFolder(world_, fs_, start_.folder));
    if (world_.rank() == 0) WarnOfTheModel();
    return std::move(start_);
  }

 private:
  std::string PathOf(const std::string& path) const {
    return (std::filesystem::path(options_.root) / path).string();
  }
  void WarnOfTheModel() const;
  absl::Status CheckSameProgram();
  absl::Status OpenCorpus();
  absl::Status FindEarlierRun();
  absl::StatusOr<std::optional<FoundCheckpoint>> LookForIt();
  absl::Status TakeOverChoices();
  absl::Status ResolveArithmetic();
  absl::Status MakeThePlan();
  absl::StatusOr<ClusterSpec> ClusterAsItIs() const;
  absl::Status CheckIdentity();
  std::vector<std::string> CheckpointNames() const;
  absl::Status LockFolder();

  const RunStartOptions& options_;
  Communicator& world_;
  FileSystem& fs_;
  Logger& log_;
  std::vector<std::string> hosts_;  // [rank]
  std::vector<std::string> found_;  // rank 0: checkpoints that there were
  RunStart start_;
};

void Starter::WarnOfTheModel() const {
  if (start_.run.model().norm() != BATCH_NORM) return;
  log_.Warning(
      "model.norm: BATCH_NORM: means and variances are those of each microbatch, so the loss "
      "depends on data.microbatch, and the model can neither translate nor be exported; it is a "
      "contrast for studies");
}

absl::Status Starter::CheckSameProgram() {
  if (world_.size() == 1) return absl::OkStatus();
  const std::vector<Fact> facts = {{"the program file", ProgramFingerprint()},
                                   {"RunSpec", start_.run.DebugString()}};
  return CheckSameEverywhere(world_, facts);
}

absl::Status Starter::OpenCorpus() {
  RunSpec& run = start_.run;
  auto corpus = Corpus::Open(PathOf(run.data().folder()));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  start_.corpus = std::make_unique<Corpus>(std::move(*corpus));
  RETURN_IF_ERROR(
      WithExitCode(ResolveDataSpec(*start_.corpus, run.mutable_data(), run.model().architecture()),
                   ExitCode::kBadConfig));
  const int64_t size = start_.corpus->vocabulary().size();
  if (run.model().vocabulary_size() != 0 && run.model().vocabulary_size() != size) {
    return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                            "model.vocabulary_size: ", run.model().vocabulary_size(),
                            ": the corpus ", run.data().folder(), " has a vocabulary of ", size)),
                        ExitCode::kBadConfig);
  }
  run.mutable_model()->set_vocabulary_size(size);
  start_.inventory = Describe(run.model(), run.data().microbatch());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<FoundCheckpoint>> Starter::LookForIt() {
  const std::string& folder = start_.folder;
  if (options_.fresh && std::filesystem::exists(folder) && !std::filesystem::is_empty(folder)) {
    return WithExitCode(
        absl::AlreadyExistsError(absl::StrCat("--fresh: ", start_.run.folder(),
                                              " is not empty; name another run folder")),
        ExitCode::kCheckpoint);
  }
  found_ = CheckpointNames();
  return FindLatest(fs_, folder);
}

std::vector<std::string> Starter::CheckpointNames() const {
  std::vector<std::string> names;
  const absl::StatusOr<std::vector<std::string>> all = fs_.List(start_.folder);
  if (!all.ok()) return names;
  for (const std::string& name : *all) {
    if (StepOfCheckpointName(name).has_value()) names.push_back(name);
  }
  return names;
}

// Late, because a start that is refused for another reason leaves nothing behind.
absl::Status Starter::LockFolder() {
  RunLockOptions options = options_.lock;
  options.note = [this](const std::string& sentence) { log_.Info(sentence); };
  ASSIGN_OR_RETURN(start_.lock, RunLock::Acquire(fs_, start_.folder, MakeRunOwner(options_.job_id),
                                                 std::move(options)));
  if (CheckpointNames() == found_) return absl::OkStatus();
  return WithExitCode(absl::AbortedError(absl::StrCat("another job saved in ", start_.run.folder(),
                                                      " while this one started; start it again")),
                      ExitCode::kCheckpoint);
}

// One rank reads and verifies every byte; the others are told where and what.
absl::Status Starter::FindEarlierRun() {
  absl::StatusOr<std::optional<FoundCheckpoint>> found = std::optional<FoundCheckpoint>();
  if (world_.rank() == 0) found = LookForIt();
  RETURN_IF_ERROR(AgreeOnStatus(world_, OfRunFolder(found.status())));
  std::string name, manifest;
  if (found->has_value()) {
    for (const std::string& note : (*found)->notes) log_.Warning(note);
    name = std::filesystem::path((*found)->folder).filename().string();
    manifest = (*found)->manifest.SerializeAsString();
  }
  ASSIGN_OR_RETURN(name, BroadcastText(world_, name, 0));
  ASSIGN_OR_RETURN(manifest, BroadcastText(world_, manifest, 0));
  if (name.empty()) return absl::OkStatus();
  start_.earlier.emplace();
  start_.earlier->folder = JoinPath(start_.folder, name);
  if (!start_.earlier->manifest.ParseFromString(manifest)) {
    return absl::InternalError("a manifest did not survive being sent");
  }
  return absl::OkStatus();
}

absl::Status Starter::TakeOverChoices() {
  if (!start_.earlier.has_value()) return absl::OkStatus();
  RunSpec& run = start_.run;
  start_.state = start_.earlier->manifest;
  const RunSpec& before = start_.state.run();
  ComputeSpec compute = before.compute();
  // The library's sums may depend on the number of threads, this project's do not.
  if (compute.matmul() == NATIVE || run.compute().threads_per_rank() != 0) {
    compute.set_threads_per_rank(run.compute().threads_per_rank());
  }
  ComputeSpec asked = compute;
  asked.MergeFrom(run.compute());
  if (asked.SerializeAsString() != compute.SerializeAsString()) {
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "compute: the run goes on with the arithmetic it started with {",
            compute.ShortDebugString(), "}; asked for was {", asked.ShortDebugString(), "}")),
        ExitCode::kCheckpoint);
  }
  *run.mutable_compute() = compute;
  if (run.optim().virtual_replicas() == 0) {
    run.mutable_optim()->set_virtual_replicas(before.optim().virtual_replicas());
  }
  return absl::OkStatus();
}

// Rank 0 measures; a host that cannot do what it chose is refused.
absl::Status Starter::ResolveArithmetic() {
  ComputeSpec& compute = *start_.run.mutable_compute();
  if (compute.threads_per_rank() == 0) {
    const auto here = std::count(hosts_.begin(), hosts_.end(), hosts_[world_.rank()]);
    compute.set_threads_per_rank(ThreadsPerRank(static_cast<int>(here)));
  }
  if (world_.rank() == 0) compute = ResolveCompute(compute);
  ASSIGN_OR_RETURN(const std::string decided,
                   BroadcastText(world_, compute.SerializeAsString(), 0));
  const int threads = compute.threads_per_rank();
  if (!compute.ParseFromString(decided)) {
    return absl::InternalError("a ComputeSpec did not survive being sent");
  }
  compute.set_threads_per_rank(threads);
  return AgreeOnStatus(world_, CheckCompute(compute));
}

// What the job really has: the cluster's fields where they are given, and then they must be true.
// A rank may use what the smallest host has for it.
absl::StatusOr<ClusterSpec> Starter::ClusterAsItIs() const {
  ClusterSpec cluster = start_.run.cluster();
  if (cluster.nodes() == 0 && cluster.devices_per_node() == 0) {
    const int hosts = static_cast<int>(std::set(hosts_.begin(), hosts_.end()).size());
    const bool even = world_.size() % hosts == 0;
    cluster.set_nodes(even ? hosts : 1);
    cluster.set_devices_per_node(even ? world_.size() / hosts : world_.size());
  }
  const int asked = std::max(1, cluster.nodes()) * std::max(1, cluster.devices_per_node());
  if (asked != world_.size()) {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrFormat(
            "cluster: nodes %d x devices_per_node %d = %d ranks, but this job has %d (start it "
            "with mpirun -n %d, or leave both fields out)",
            std::max(1, cluster.nodes()), std::max(1, cluster.devices_per_node()), asked,
            world_.size(), asked)),
        ExitCode::kBadConfig);
  }
  if (start_.run.compute().device() != "cpu") return cluster;
  ASSIGN_OR_RETURN(const std::vector<std::string> memories,
                   AllGatherText(world_, WithHostMemory(cluster).SerializeAsString()));
  for (const std::string& text : memories) {
    ClusterSpec theirs;
    theirs.ParseFromString(text);
    if (cluster.device_memory_gib() == 0 ||
        theirs.device_memory_gib() < cluster.device_memory_gib()) {
      cluster.set_device_memory_gib(theirs.device_memory_gib());
    }
  }
  return cluster;
}

absl::Status Starter::MakeThePlan() {
  RunSpec& run = start_.run;
  ASSIGN_OR_RETURN(const ClusterSpec cluster, ClusterAsItIs());
  ASSIGN_OR_RETURN(start_.plan, MakePlan(start_.inventory, run.data(), run.optim(), run.compute(),
                                         cluster, run.parallel(), run.instruments()));
  if (run.optim().virtual_replicas() == 0) {
    run.mutable_optim()->set_virtual_replicas(start_.plan.virtual_replicas());
  }
  return absl::OkStatus();
}

absl::Status Starter::CheckIdentity() {
  const RunIdentity identity{start_.inventory.Hash(), start_.corpus->content_hash(),
                             start_.corpus->vocabulary().hash()};
  Manifest& state = start_.state;
  if (start_.earlier.has_value()) {
    RETURN_IF_ERROR(CheckSameRun(start_.earlier->manifest, identity, start_.run));
  }
  state.set_inventory_hash(identity.inventory_hash);
  state.set_corpus_hash(identity.corpus_hash);
  state.set_tokenizer_hash(identity.tokenizer_hash);
  *state.mutable_run() = start_.run;
  state.clear_files();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunStart> StartRun(RunSpec run, const RunStartOptions& options, Communicator& world,
                                  FileSystem& fs, Logger& log) {
  return Starter(std::move(run), options, world, fs, log).Start();
}

}  // namespace deepnet
