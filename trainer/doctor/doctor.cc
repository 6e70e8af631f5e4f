#include "trainer/doctor/doctor.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include <google/protobuf/util/message_differencer.h>

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/links.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/planner.h"
#include "trainer/doctor/diagnosis.h"
#include "trainer/doctor/kernel_check.h"
#include "trainer/doctor/layout_check.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/model/work.h"
#include "trainer/named_files.h"
#include "trainer/optim/groups.h"
#include "trainer/telemetry/tensor_memory.h"

namespace deepnet {
namespace {

constexpr int64_t kUsualVocabulary = 32000;  // where neither run nor corpus says it
constexpr int64_t kStateBytes = 12;          // of a weight in a checkpoint, with both moments
constexpr int64_t kAverageBytes = 4;         // of its average, with optim.ema_decay

// Memory of the rank's GPU, in the order of its operations.
class DeviceLinkMemory final : public LinkMemory {
 public:
  DeviceLinkMemory(const Ops& ops, int64_t floats)
      : ops_(ops), values_(at::zeros({floats}, ops.ResidualOptions())) {}
  Buffer buffer() override { return BufferOf(ops_, values_); }
  void Write(std::span<const float> values) override {
    const auto count = static_cast<int64_t>(values.size());
    values_.narrow(0, 0, count)
        .copy_(at::from_blob(const_cast<float*>(values.data()), {count}, at::kFloat));
  }
  void Read(std::span<float> values) override {
    const at::Tensor host = values_.to(at::Device(at::kCPU));
    std::copy_n(host.const_data_ptr<float>(), values.size(), values.begin());
  }

 private:
  const Ops& ops_;
  const at::Tensor values_;
};

class Doctor {
 public:
  explicit Doctor(const DoctorOptions& options)
      : options_(options), world_(*options.world), run_(options.run) {}

  absl::StatusOr<DoctorReport> Run() && {
    const double start = SecondsNow();
    DescribeRank();
    RETURN_IF_ERROR(Gather());
    const bool same_builds = absl::c_all_of(report_.ranks(), [&](const DoctorRank& rank) {
      return rank.build() == mine_.build() && rank.program() == mine_.program();
    });
    if (same_builds) {
      RETURN_IF_ERROR(CompareRuns());
      const bool same_runs = absl::c_all_of(
          report_.ranks(), [](const DoctorRank& rank) { return rank.run_difference().empty(); });
      if (same_runs) RETURN_IF_ERROR(MeasureAndCheck());
    }
    if (mine_.device_memory_bytes() > 0) {
      RETURN_IF_ERROR(CatchErrors([] {
        FreeCachedGpuBytes();
        return absl::OkStatus();
      }));
    }
    report_.set_kind("doctor");
    report_.set_seconds(SecondsNow() - start);
    Diagnose(folder_bytes_, report_);
    return std::move(report_);
  }

 private:
  bool on_gpu() const { return run_.compute().device() != "cpu"; }

  void DescribeRank() {
    mine_ = DescribeHost();
    mine_.set_rank(world_.rank());
    mine_.set_program(options_.version);
    mine_.set_mpi(options_.mpi);
    mine_.set_nccl(options_.nccl);
    mine_.set_cuda(CudaVersions());
    ComputeSpec best;
    best.set_dtype(BFLOAT16);
    mine_.set_instructions(Isa_Name(ResolveCompute(best).isa()));
    mine_.set_device("cpu");
    if (!on_gpu()) return;
    const absl::StatusOr<std::string> name = CheckCurrentGpu();
    AddFailure("GPU", name.status());
    if (!name.ok()) return;
    const std::vector<std::string> parts = absl::StrSplit(*name, absl::MaxSplits(" (", 1));
    mine_.set_device_id(parts[0]);
    mine_.set_device(std::string(absl::StripSuffix(parts.back(), ")")));
    AddFailure("GPU memory", CatchErrors([&] {
                 mine_.set_device_memory_bytes(FreeGpuBytes());
                 return absl::OkStatus();
               }));
  }

  // Collective: report_.ranks become what all ranks know of themselves by now.
  absl::Status Gather() {
    ASSIGN_OR_RETURN(const std::vector<DoctorRank> all, AllGatherMessages(world_, mine_));
    report_.mutable_ranks()->Assign(all.begin(), all.end());
    return absl::OkStatus();
  }

  JobHosts Hosts() const {
    JobHosts hosts{.rank = world_.rank(), .names = {}, .cores = {}};
    for (const DoctorRank& rank : report_.ranks()) {
      hosts.names.push_back(rank.host());
      hosts.cores.push_back(rank.cores_list());
    }
    return hosts;
  }

  // Every rank compares its run with rank 0's. Collective.
  absl::Status CompareRuns() {
    RunSpec first = run_;
    RETURN_IF_ERROR(BroadcastMessage(world_, first, 0));
    google::protobuf::util::MessageDifferencer differencer;
    differencer.set_message_field_comparison(
        google::protobuf::util::MessageDifferencer::EQUIVALENT);
    // Hosts may differ in their cores.
    differencer.IgnoreField(ComputeSpec::descriptor()->FindFieldByName("threads_per_rank"));
    std::string difference;
    differencer.ReportDifferencesToString(&difference);
    if (!differencer.Compare(first, run_)) {
      mine_.set_run_difference(
          absl::StrReplaceAll(absl::StripSuffix(difference, "\n"), {{"\n", "; "}}));
    }
    return Gather();
  }

  absl::Status MeasureAndCheck() {
    RETURN_IF_ERROR(ExamineFolder());
    RETURN_IF_ERROR(DecideArithmetic());
    RETURN_IF_ERROR(ExamineDevice());
    DecideLayout();
    report_.set_layout(LayoutText(run_.parallel()));
    RETURN_IF_ERROR(ExamineLinks());
    const auto offsets = ClockOffsets(world_, options_.clock, options_.limit * 6);
    RETURN_IF_ERROR(offsets.status());
    mine_.set_clock_offset_seconds((*offsets)[world_.rank()]);
    const bool laid_out =
        run_.parallel().pipeline_parallel_size() * run_.parallel().data_parallel_size() ==
        world_.size();
    if (laid_out && all_compute_) {
      ASSIGN_OR_RETURN(*mine_.add_checks(), CheckLayout(run_, world_));
    }
    if (on_gpu() && all_compute_) {
      AddFailure("CUDA graphs", CatchErrors([&]() -> absl::Status {
                   ASSIGN_OR_RETURN(*mine_.add_checks(), CheckGraphs(run_));
                   return absl::OkStatus();
                 }));
    }
    RETURN_IF_ERROR(Gather());
    MergeChecks(report_);
    return absl::OkStatus();
  }

  // All ranks work in the folder at the same time, as they do in a save; then each looks for a file
  // of rank 0.
  absl::Status ExamineFolder() {
    FileSystem& files = *options_.folder.files;
    const std::filesystem::path root(options_.root);
    std::error_code ignored;
    std::string asked =
        std::filesystem::absolute(root / run_.folder(), ignored).lexically_normal().string();
    if (asked.size() > 1 && asked.back() == '/') asked.pop_back();
    const std::string folder = NearestFolder(files, asked);
    ASSIGN_OR_RETURN(const std::string tag,
                     BroadcastText(world_, absl::StrCat(absl::ToUnixMicros(absl::Now())), 0));
    const std::string token = JoinPath(folder, absl::StrCat(".doctor-", tag));
    CheckFolder(options_.folder, folder, absl::StrCat(".doctor-", tag, "-", world_.rank()), mine_);
    if (world_.rank() == 0) ReplaceFile(files, token, tag).IgnoreError();
    RETURN_IF_ERROR(world_.Barrier());
    const bool seen = Exists(files, token).value_or(false);
    RETURN_IF_ERROR(world_.Barrier());
    if (world_.rank() == 0) files.Delete(token).IgnoreError();
    if (!seen && world_.rank() > 0) {
      mine_.add_folder_failures("it does not show a file that rank 0 wrote");
    }
    return absl::OkStatus();
  }

  // As a run: rank 0 decides what is open, and every rank takes its share of its host's cores.
  absl::Status DecideArithmetic() {
    ComputeSpec& compute = *run_.mutable_compute();
    const int threads =
        compute.threads_per_rank() > 0 ? compute.threads_per_rank() : Hosts().Threads();
    mine_.set_threads(threads);
    compute.set_threads_per_rank(threads);
    if (world_.rank() == 0) {
      compute = ResolveCompute(compute);
      if (options_.has_run) compute.set_attention(ChooseAttention(run_.model(), compute));
    }
    RETURN_IF_ERROR(BroadcastMessage(world_, compute, 0));
    compute.set_threads_per_rank(threads);
    AddFailure("arithmetic of rank 0", CatchErrors([&]() -> absl::Status {
                 ASSIGN_OR_RETURN(ops_, MakeOps(compute));
                 return absl::OkStatus();
               }));
    return absl::OkStatus();
  }

  // Every rank has an Ops, or none measures: what is compared are rates of ranks that all compute.
  absl::Status ExamineDevice() {
    const absl::Status mine = ops_ != nullptr ? absl::OkStatus() : absl::UnavailableError("");
    all_compute_ = AgreeOnStatus(world_, mine).ok();
    if (!all_compute_) return absl::OkStatus();
    RETURN_IF_ERROR(CatchErrors(
        [&]() -> absl::Status {
          ASSIGN_OR_RETURN(const Rates rates, MeasureRates(*ops_, mine_.device_memory_bytes(),
                                                           [&] { return world_.Barrier(); }));
          mine_.set_product_flops(rates.product_flops);
          mine_.set_memory_bytes_per_second(rates.copied_bytes);
          return absl::OkStatus();
        },
        {.ops = ops_.get()}));
    ops_ = nullptr;
    CheckOperations();
    return absl::OkStatus();
  }

  // Operands of every type that the device has, whatever the run uses. One Ops after the other:
  // see RunAttention.
  void CheckOperations() {
    for (const DataType dtype : {FLOAT32, BFLOAT16, FLOAT16}) {
      const at::ScalarType operand = TypeOf(dtype);
      ComputeSpec compute = run_.compute();
      compute.set_dtype(dtype);
      compute.set_attention(OWN);
      if (!CheckCompute(compute).ok()) continue;  // a CPU has no float16
      const auto with = [&](const char* what, const std::function<void(Ops&)>& work) {
        AddFailure(absl::StrCat(what, ", ", DataType_Name(dtype)),
                   CatchErrors([&]() -> absl::Status {
                     ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, MakeOps(compute));
                     work(*ops);
                     return absl::OkStatus();
                   }));
      };
      const auto add = [&](const std::vector<DoctorCheck>& checks) {
        mine_.mutable_checks()->Add(checks.begin(), checks.end());
      };
      const bool has_flash = on_gpu() && dtype != FLOAT32;
      AttentionResults own;
      with("operations", [&](Ops& ops) {
        add(CheckKernels(ops, operand, options_.beat));
        if (has_flash) own = RunAttention(ops, operand);
      });
      if (own.empty()) continue;
      compute.set_attention(FLASH);
      with("flash attention",
           [&](Ops& ops) { add(CompareAttention(RunAttention(ops, operand), own, operand)); });
    }
  }

  // Decides every field of `parallel` that CheckLayout reads: by the run's plan, else a pipeline,
  // in two replicas where there are ranks for it.
  void DecideLayout() {
    ParallelSpec& parallel = *run_.mutable_parallel();
    if (!options_.has_run) {
      const int replicas = world_.size() >= 4 && world_.size() % 2 == 0 ? 2 : 1;
      const int stages = world_.size() / replicas;
      parallel.set_data_parallel_size(replicas);
      parallel.set_pipeline_parallel_size(stages);
      parallel.set_schedule(stages > 1 ? "1f1b" : "single_stage");
      return;
    }
    absl::StatusOr<Plan> plan = PlanRun();
    if (world_.rank() == 0) AddFailure("plan", plan.status());
    if (const auto closest = ClosestPlan(plan.status())) plan = *closest;
    if (!plan.ok()) return;
    parallel.set_pipeline_parallel_size(plan->pipeline_parallel_size());
    parallel.set_data_parallel_size(plan->data_parallel_size());
    parallel.set_virtual_pipeline_size(plan->virtual_pipeline_size());
    if (plan->schedule_text().empty()) parallel.set_schedule(plan->schedule());
  }

  // The plan that `train` would make for the ranks that there are.
  absl::StatusOr<Plan> PlanRun() {
    RETURN_IF_ERROR(ReadNamedFiles(options_.root, &run_));
    if (run_.model().vocabulary_size() == 0) {
      run_.mutable_model()->set_vocabulary_size(kUsualVocabulary);
    }
    Inventory inventory = Describe(run_.model(), run_.data().microbatch());
    const int64_t bytes = kStateBytes + (run_.optim().ema_decay() > 0 ? kAverageBytes : 0);
    for (const Parameter& parameter : inventory.parameters) {
      folder_bytes_ += 2 * bytes * parameter.NumElements();
    }
    ClusterSpec cluster = WithNodes(run_.cluster(), Hosts().names);
    if (const int asked = NumRanks(cluster); asked != world_.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("cluster asks for ", asked, " ranks, this job has ", world_.size()));
    }
    if (cluster.device_memory_gib() == 0) {
      int64_t least = INT64_MAX;
      for (const DoctorRank& rank : report_.ranks()) {
        least = std::min(least, on_gpu() ? rank.device_memory_bytes() : rank.memory_bytes());
      }
      if (!on_gpu()) cluster = WithMemoryShare(cluster, least);
      if (on_gpu()) cluster.set_device_memory_gib(double(least + kContextBytes) / kGib);
    }
    DescribeWork(run_.model(), run_.data().microbatch(), run_.compute(), inventory);
    return MakePlan(inventory, {run_.data(), run_.optim(), run_.compute(), cluster, run_.parallel(),
                                run_.instruments()});
  }

  // Ranks between which a step has messages: stages of a replica in a row, in a ring where a rank
  // has several chunks; and replicas of a stage in a row.
  std::vector<std::pair<int, int>> Neighbours() const {
    const int stages = std::max(1, run_.parallel().pipeline_parallel_size());
    std::set<std::pair<int, int>> pairs;
    for (int rank = 0; rank < world_.size(); ++rank) {
      const int stage = rank % stages, first = rank - stage;
      if (stage + 1 < stages && rank + 1 < world_.size()) pairs.insert({rank, rank + 1});
      const bool ring = run_.parallel().virtual_pipeline_size() > 1;
      if (ring && stage + 1 == stages && stage > 1) pairs.insert({first, rank});
      if (rank + stages < world_.size()) pairs.insert({rank, rank + stages});
    }
    return {pairs.begin(), pairs.end()};
  }

  absl::Status ExamineLinks() {
    if (world_.size() == 1) return absl::OkStatus();
    LinkOptions options{.limit = options_.limit};
    std::unique_ptr<Ops> ops;
    if (on_gpu() && all_compute_) {
      ASSIGN_OR_RETURN(ops, MakeOps(run_.compute()));
      options.rate_bytes = int64_t{32} << 20;
      options.memory = [&ops](int64_t floats) {
        return std::make_unique<DeviceLinkMemory>(*ops, floats);
      };
    }
    const std::vector<std::pair<int, int>> pairs = Neighbours();
    RETURN_IF_ERROR(
        world_.Barrier(options_.limit * 6));  // a rank that still computes is not a cut link
    RETURN_IF_ERROR(ConnectLinks(world_, pairs, options));
    ASSIGN_OR_RETURN(const std::vector<LinkCheck> checks, CheckMessages(world_, options));
    for (const LinkCheck& seen : checks) {
      DoctorCheck& check = *mine_.add_checks();
      check.set_name(seen.name);
      check.set_error(static_cast<double>(seen.wrong));
    }
    ASSIGN_OR_RETURN(const std::vector<LinkRate> rates, MeasureLinks(world_, pairs, options));
    for (const LinkRate& rate : rates) {
      DoctorLink& link = *report_.add_links();
      link.set_from(rate.from);
      link.set_to(rate.to);
      link.set_between_hosts(report_.ranks(rate.from).host() != report_.ranks(rate.to).host());
      link.set_latency_seconds(rate.latency_seconds);
      link.set_bytes_per_second(rate.bytes_per_second);
    }
    return absl::OkStatus();
  }

  // Records something that failed as a whole.
  void AddFailure(const std::string& name, const absl::Status& status) {
    if (status.ok()) return;
    DoctorCheck& check = *mine_.add_checks();
    check.set_name(name);
    check.set_failure(std::string(status.message()));
  }

  const DoctorOptions& options_;
  Communicator& world_;
  RunSpec run_;
  DoctorRank mine_;
  int64_t folder_bytes_ = 0;  // needed, for two checkpoints; 0: not known
  DoctorReport report_;
  std::unique_ptr<Ops> ops_;  // until the device is examined; null: it could not be used
  bool all_compute_ = false;  // every rank could use its device
};

}  // namespace

absl::Duration DoctorLimit(int ranks) {
  return std::max(absl::Seconds(10), absl::Milliseconds(10) * ranks);
}

double WallClockSeconds() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

absl::StatusOr<DoctorReport> RunDoctor(const DoctorOptions& options) {
  return Doctor(options).Run();
}

}  // namespace deepnet
