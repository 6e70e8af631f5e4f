#include "launch/commands/doctor.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "launch/commands/command.h"
#include "launch/device_group.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "launch/version.h"
#include "parallel/base/file_system.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/backends.h"
#include "parallel/comm/links.h"
#include "trainer/data/corpus.h"
#include "trainer/doctor/diagnosis.h"
#include "trainer/doctor/doctor.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/monitored_run.h"

namespace deepnet {
namespace {

// Reads all of the run's corpus, if there is one. Ranks of a host share its files. Collective.
absl::Status CheckCorpus(const CommandLine& line, const RunSpec& run, Communicator& world) {
  ASSIGN_OR_RETURN(const JobHosts hosts, GatherHosts(world));
  const std::string folder = ResolvePath(line, run.data().folder());
  const auto corpus = Corpus::Open(folder);
  const auto exists = Exists(*MakePosixFileSystem(), folder);
  const bool missing = run.data().folder().empty() || (exists.ok() && !*exists);
  absl::Status status = missing ? absl::OkStatus() : corpus.status();
  if (corpus.ok()) status = corpus->CheckContent(hosts.RanksBefore(), hosts.RanksHere());
  RETURN_IF_ERROR(AgreeOnStatus(world, WithExitCode(status, ExitCode::kData)));
  const std::string hash =
      missing ? "none" : absl::StrCat(corpus->content_hash(), " ", corpus->ChecksumsHash());
  const Fact facts[] = {{"corpus", hash}};
  return CheckSameEverywhere(world, facts);
}

// The same on all ranks: they have the same report.
absl::Status StatusOf(const DoctorReport& report) {
  if (report.findings().empty()) return absl::OkStatus();
  const auto failures = std::count_if(report.findings().begin(), report.findings().end(),
                                      [](const DoctorFinding& f) { return f.failure(); });
  const auto outliers = report.findings_size() - failures;
  return WithExitCode(
      FailedPrecondition("doctor: ", failures, failures == 1 ? " failure, " : " failures, ",
                         outliers, outliers == 1 ? " outlier" : " outliers"),
      CodeOf(report));
}

absl::Status DoctorOnAllRanks(const CommandLine& line, Communicator& hosts) {
  RETURN_IF_ERROR(CheckReachable(hosts, DoctorLimit(hosts.size())));
  const bool has_run = line.flags.Given("config");
  ASSIGN_OR_RETURN(RunSpec run, AgreeOn(hosts, LoadConfig(line)));
  RETURN_IF_ERROR(AgreeOnStatus(hosts, has_run ? ValidateForTrain(run) : absl::OkStatus()));
  ResolveDevice(line, run.mutable_compute());
  ASSIGN_OR_RETURN(*run.mutable_compute()->mutable_device(),
                   BroadcastText(hosts, run.compute().device(), 0));
  ASSIGN_OR_RETURN(const auto devices, JoinDevices(run.compute(), hosts));
  Communicator& world = devices != nullptr ? *devices : hosts;
  ASSIGN_OR_RETURN(const DoctorReport report, ExamineJob(line, run, has_run, world));
  if (world.rank() == 0) {
    line.out << (line.flags.Switch("json") ? ToIndentedJson(report) : DoctorTable(report))
             << std::flush;
  }
  return AgreeOnStatus(world, StatusOf(report));
}

}  // namespace

ExitCode CodeOf(const DoctorReport& report) {
  const auto first = std::ranges::find_if(report.findings(), &DoctorFinding::code);
  return first == report.findings().end() ? ExitCode::kPreflight
                                          : static_cast<ExitCode>(first->code());
}

absl::StatusOr<DoctorReport> ExamineJob(const CommandLine& line, const RunSpec& run, bool has_run,
                                        Communicator& world) {
  const auto files = MakePosixFileSystem();
  const absl::Duration limit = DoctorLimit(world.size());
  ParallelSpec limits;  // outside of steps ranks may be silent for four times it
  limits.set_comm_timeout_seconds(absl::ToDoubleSeconds(limit));
  MonitoredRun monitored(limits, world, *files, EndProcess);
  RETURN_IF_ERROR(monitored.Join());
  absl::StatusOr<DoctorReport> report;
  const absl::Status status = CatchErrors([&] {
    report = RunDoctor({.world = &monitored.world(),
                        .run = run,
                        .has_run = has_run,
                        .root = RootFolder(line),
                        .version = kVersion,
                        .mpi = MpiVersion(),
                        .nccl = NcclVersion(),
                        .folder = {.files = &monitored.files()},
                        .limit = limit,
                        .beat = [&] { monitored.heartbeat().Beat(); }});
    return report.status();
  });
  RETURN_IF_ERROR(monitored.End(status));
  const bool same_builds = std::ranges::all_of(report->ranks(), [&](const DoctorRank& rank) {
    return rank.build() == report->ranks(0).build();
  });
  if (!has_run || !same_builds) return report;
  const absl::Status corpus = CheckCorpus(line, run, world);
  if (!corpus.ok() && !IsAgreed(corpus)) return corpus;
  if (!corpus.ok()) {
    DoctorFinding& finding = *report->add_findings();
    finding.set_failure(true);
    finding.set_text(absl::StrCat("data.folder: ", corpus.message()));
    finding.set_code(static_cast<int32_t>(GetExitCode(corpus)));
  }
  return report;
}

Command MakeDoctorCommand() {
  return {.name = "doctor",
          .summary = "Examine the hosts, devices and links of a job before it trains.",
          .description =
              "With --config it takes the run's device, layout and folder. Prints a row a rank: "
              "cores and memory that it may use, its device, the rate of its matrix products and "
              "of its memory, its clock and what the run folder is like; the latency and rate of "
              "links between ranks that exchange messages in a step; and the largest error of "
              "every operation beside a slow twin, of messages and sums beside the host's, and of "
              "a tiny model on the run's layout beside one rank, which must be equal to the bit; "
              "with --config, the bytes of the corpus beside their checksums. Names whatever "
              "failed, and ranks and links that are far off the others. Takes less than a minute "
              "and the time to read the corpus, alone or as `mpirun -n R deepnet doctor ...`. Exit "
              "code 3 if anything is named, 4 if that is the corpus.",
          .spec = SpecUse::kOptional,
          .flags = {JsonFlag()},
          .run = [](const CommandLine& line) { return RunOnRanks(line, DoctorOnAllRanks); }};
}

}  // namespace deepnet
