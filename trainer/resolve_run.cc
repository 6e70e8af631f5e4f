#include "trainer/resolve_run.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/comm/agreement.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/planner.h"
#include "trainer/checkpoint/compatibility.h"
#include "trainer/data/data_order.h"
#include "trainer/data/subword_sampler.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/model/work.h"
#include "trainer/named_files.h"
#include "trainer/telemetry/tensor_memory.h"

namespace deepnet {
namespace {

// Builds a ResolvedRun in the order of Resolve; each step uses the results of those before it.
class RunResolver {
 public:
  RunResolver(RunSpec run, const TrainOptions& options, Communicator& world, FileSystem& fs,
              Logger& log)
      : options_(options), world_(world), fs_(fs), log_(log) {
    resolved_.run = std::move(run);
    resolved_.folder = PathOf(resolved_.run.folder());
  }

  absl::StatusOr<ResolvedRun> Resolve() && {
    RETURN_IF_ERROR(AllRanks(ReadNamedFiles(options_.root, &resolved_.run)));
    if (world_.size() > 1) {
      const Fact program[] = {{"the program file", ProgramFingerprint()},
                              {"RunSpec", resolved_.run.DebugString()}};
      RETURN_IF_ERROR(CheckSameEverywhere(world_, program));
    }
    RETURN_IF_ERROR(AllRanks(OpenCorpus()));
    const Fact facts[] = {{"corpus", resolved_.corpus->content_hash()},
                          {"tokenizer", resolved_.corpus->vocabulary().hash()},
                          {"data of the corpus", resolved_.corpus->ChecksumsHash()}};
    RETURN_IF_ERROR(CheckSameEverywhere(world_, facts));
    resolved_.phases.End("corpus");
    ASSIGN_OR_RETURN(hosts_, GatherHosts(world_));
    RETURN_IF_ERROR(FindEarlierRun());
    RETURN_IF_ERROR(AllRanks(AdoptEarlierChoices()));
    resolved_.phases.End("earlier run");
    RETURN_IF_ERROR(ResolveArithmetic());
    resolved_.phases.End("arithmetic");
    RETURN_IF_ERROR(AllRanks(ChoosePlan()));
    resolved_.phases.End("plan");
    RETURN_IF_ERROR(AllRanks(CheckIdentity()));
    RETURN_IF_ERROR(AllRanks(world_.rank() == 0 ? WithExitCode(LockFolder(), ExitCode::kCheckpoint)
                                                : absl::OkStatus()));
    RETURN_IF_ERROR(CheckSameFolder(world_, fs_, resolved_.folder));
    if (world_.rank() == 0) Warn();
    resolved_.phases.End("run folder");
    return std::move(resolved_);
  }

 private:
  absl::Status AllRanks(const absl::Status& mine) { return AgreeOnStatus(world_, mine); }
  std::string PathOf(const std::string& path) const {
    return (std::filesystem::path(options_.root) / path).string();
  }

  void Warn() const {
    const DataSpec& data = resolved_.run.data();
    if (resolved_.run.model().norm() == BATCH_NORM) {
      log_.Warning(
          "model.norm: BATCH_NORM: means and variances are those of each microbatch, so the loss "
          "depends on data.microbatch, and the model can neither translate nor be exported; it is "
          "a contrast for studies");
    }
    for (const std::string& name : DirectionsOfLongPairs(*resolved_.corpus, data)) {
      log_.Warning(absl::StrCat(name,
                                ": nothing of it is learned: every pair has a side of more than ",
                                data.max_sentence_tokens(), " pieces (data.max_sentence_tokens)"));
    }
    if (std::ranges::none_of(
            resolved_.corpus->TextDirections("dev"),
            [&](const Direction& direction) { return IsSelected(direction, data); })) {
      log_.Warning(
          "the corpus has no dev sentences of these directions: nothing is validated, and no "
          "checkpoint is the best");
    }
  }

  absl::Status OpenCorpus() {
    RunSpec& run = resolved_.run;
    ASSIGN_OR_RETURN(Corpus corpus,
                     WithExitCode(Corpus::Open(PathOf(run.data().folder())), ExitCode::kData));
    resolved_.corpus = std::make_unique<Corpus>(std::move(corpus));
    RETURN_IF_ERROR(WithExitCode(resolved_.corpus->CheckTexts("dev"), ExitCode::kData));
    RETURN_IF_ERROR(WithExitCode(
        ResolveDataSpec(*resolved_.corpus, run.mutable_data(), run.model().architecture()),
        ExitCode::kBadConfig));
    if (run.data().subword_alpha() > 0) {
      RETURN_IF_ERROR(WithExitCode(
          SubwordSampler::Make(run.data(), run.seed(), &resolved_.corpus->vocabulary()).status(),
          ExitCode::kBadConfig));
    }
    const int64_t size = resolved_.corpus->vocabulary().size();
    if (run.model().vocabulary_size() != 0 && run.model().vocabulary_size() != size) {
      return ConfigError("model.vocabulary_size: ", run.model().vocabulary_size(), ": the corpus ",
                         run.data().folder(), " has a vocabulary of ", size);
    }
    run.mutable_model()->set_vocabulary_size(size);
    resolved_.inventory = Describe(run.model(), run.data().microbatch());
    return absl::OkStatus();
  }

  // Rank 0 reads and verifies every byte; the others get the name and the manifest.
  absl::Status FindEarlierRun() {
    absl::StatusOr<std::optional<FoundCheckpoint>> found = std::optional<FoundCheckpoint>();
    if (world_.rank() == 0) found = LookForEarlierRun();
    RETURN_IF_ERROR(AllRanks(WithExitCode(found.status(), ExitCode::kCheckpoint)));
    std::string name;
    if (found->has_value()) {
      for (const std::string& note : (*found)->notes) log_.Warning(note);
      name = std::filesystem::path((*found)->folder).filename().string();
    }
    ASSIGN_OR_RETURN(name, BroadcastText(world_, name, 0));
    if (name.empty()) return absl::OkStatus();
    FoundCheckpoint& earlier = resolved_.earlier.emplace();
    earlier.folder = JoinPath(resolved_.folder, name);
    if (found->has_value()) earlier.manifest = std::move((*found)->manifest);
    return BroadcastMessage(world_, earlier.manifest, 0);
  }

  absl::StatusOr<std::optional<FoundCheckpoint>> LookForEarlierRun() {
    const absl::StatusOr<std::vector<std::string>> names = fs_.List(resolved_.folder);
    if (options_.require_empty && names.ok() && !names->empty()) {
      return WithExitCode(
          absl::AlreadyExistsError(absl::StrCat("--require-empty: ", resolved_.run.folder(),
                                                " is not empty; name another run folder")),
          ExitCode::kCheckpoint);
    }
    found_ = Checkpoints();
    return FindLatest(fs_, resolved_.folder);
  }

  absl::Status AdoptEarlierChoices() {
    if (!resolved_.earlier.has_value()) return absl::OkStatus();
    RunSpec& run = resolved_.run;
    resolved_.state = resolved_.earlier->manifest;
    const RunSpec& before = resolved_.state.run();
    ComputeSpec compute = before.compute();
    // A library's sums may depend on the number of threads; this project's kernels' do not.
    if (compute.matmul() == NATIVE || run.compute().threads_per_rank() != 0) {
      compute.set_threads_per_rank(run.compute().threads_per_rank());
    }
    ComputeSpec asked = compute;
    asked.MergeFrom(run.compute());
    if (ToBytes(asked) != ToBytes(compute)) {
      return CheckpointRefused("compute: the run goes on with the arithmetic it started with {",
                               compute.ShortDebugString(), "}; asked for was {",
                               asked.ShortDebugString(), "}");
    }
    *run.mutable_compute() = compute;
    if (run.optim().virtual_replicas() == 0) {
      run.mutable_optim()->set_virtual_replicas(before.optim().virtual_replicas());
    }
    return absl::OkStatus();
  }

  // Rank 0 measures and decides. A host that does not support its choice is refused.
  absl::Status ResolveArithmetic() {
    ComputeSpec& compute = *resolved_.run.mutable_compute();
    if (compute.threads_per_rank() == 0) compute.set_threads_per_rank(hosts_.Threads());
    if (world_.rank() == 0) {
      compute = ResolveCompute(compute);
      compute.set_attention(ChooseAttention(resolved_.run.model(), compute));
    }
    const int threads = compute.threads_per_rank();
    RETURN_IF_ERROR(BroadcastMessage(world_, compute, 0));
    compute.set_threads_per_rank(threads);
    return AllRanks(CheckCompute(compute));
  }

  absl::Status ChoosePlan() {
    RunSpec& run = resolved_.run;
    ASSIGN_OR_RETURN(const ClusterSpec cluster, ActualCluster());
    if (run.compute().device() != "cpu" && run.cluster().device_memory_gib() == 0) {
      log_.Info(
          absl::StrFormat("cluster.device_memory_gib is not set: taking %.2f, the least of all "
                          "GPUs' free memory and %.2f for CUDA's context",
                          cluster.device_memory_gib(), kContextBytes / kGib));
    }
    DescribeWork(run.model(), run.data().microbatch(), run.compute(), resolved_.inventory);
    std::string cost;
    ASSIGN_OR_RETURN(resolved_.plan, MakePlan(resolved_.inventory,
                                              {run.data(), run.optim(), run.compute(), cluster,
                                               run.parallel(), run.instruments()},
                                              &cost));
    if (world_.rank() == 0 && !cost.empty()) log_.Warning(cost);
    OptimSpec& optim = *run.mutable_optim();
    if (optim.virtual_replicas() == 0) {
      optim.set_virtual_replicas(resolved_.plan.virtual_replicas());
    }
    const int replicas = resolved_.plan.data_parallel_size();
    if (world_.rank() == 0 && optim.virtual_replicas() % replicas != 0) {
      log_.Warning(absl::StrCat(
          "parallel.data_parallel_size: ", replicas, " does not divide optim.virtual_replicas (",
          optim.virtual_replicas(), "): other numbers of ranks give other rounding"));
    }
    return absl::OkStatus();
  }

  // Returns the cluster that the job really has. Fields that are given must be true. The memory of
  // a rank is that of the smallest host, or of the GPU that has least.
  absl::StatusOr<ClusterSpec> ActualCluster() {
    ClusterSpec cluster = WithNodes(resolved_.run.cluster(), hosts_.names);
    if (const int asked = NumRanks(cluster); asked != world_.size()) {
      return ConfigError(absl::StrFormat(
          "cluster: nodes %d x devices_per_node %d = %d ranks, but this job has %d (start it "
          "with mpirun -n %d, or leave both fields out)",
          std::max(1, cluster.nodes()), std::max(1, cluster.devices_per_node()), asked,
          world_.size(), asked));
    }
    ClusterSpec own = WithMemoryShare(cluster, UsableMemoryBytes());
    if (resolved_.run.compute().device() != "cpu") {
      if (cluster.device_memory_gib() > 0) return cluster;
      // A rank may use what is free and what the context, which the plan counts, has taken already.
      RETURN_IF_ERROR(AllRanks(CatchErrors([&] {
        own.set_device_memory_gib(static_cast<double>(FreeGpuBytes() + kContextBytes) / kGib);
        return absl::OkStatus();
      })));
    }
    ASSIGN_OR_RETURN(const std::vector<ClusterSpec> all, AllGatherMessages(world_, own));
    for (const ClusterSpec& rank : all) {
      own.set_device_memory_gib(std::min(own.device_memory_gib(), rank.device_memory_gib()));
    }
    return own;
  }

  absl::Status CheckIdentity() {
    Manifest& state = resolved_.state;
    state.set_inventory_hash(resolved_.inventory.Hash());
    state.set_corpus_hash(resolved_.corpus->content_hash());
    state.set_tokenizer_hash(resolved_.corpus->vocabulary().hash());
    *state.mutable_run() = resolved_.run;
    state.clear_files();
    if (!resolved_.earlier.has_value()) return absl::OkStatus();
    return CheckSameRun(resolved_.earlier->manifest, state);
  }

  // Returns the steps of the checkpoints in the run folder.
  std::vector<int64_t> Checkpoints() const {
    const absl::StatusOr<std::vector<std::string>> names = fs_.List(resolved_.folder);
    return names.ok() ? CheckpointSteps(*names) : std::vector<int64_t>();
  }

  // Runs late, so that a start which is refused for another reason leaves nothing behind.
  absl::Status LockFolder() {
    RunLockOptions options = options_.lock;
    options.note = [this](const std::string& sentence) { log_.Info(sentence); };
    ASSIGN_OR_RETURN(
        resolved_.lock,
        RunLock::Acquire(fs_, resolved_.folder, MakeRunOwner(options_.job_id), std::move(options)));
    if (Checkpoints() == found_) return absl::OkStatus();
    return WithExitCode(
        absl::AbortedError(absl::StrCat("another job saved in ", resolved_.run.folder(),
                                        " while this one started; start it again")),
        ExitCode::kCheckpoint);
  }

  const TrainOptions& options_;
  Communicator& world_;
  FileSystem& fs_;
  Logger& log_;
  JobHosts hosts_;
  std::vector<int64_t> found_;  // rank 0: the checkpoints before the lock was taken
  ResolvedRun resolved_;
};

}  // namespace

absl::StatusOr<ResolvedRun> ResolveRun(RunSpec run, const TrainOptions& options,
                                       Communicator& world, FileSystem& fs, Logger& log) {
  return RunResolver(std::move(run), options, world, fs, log).Resolve();
}

}  // namespace deepnet
