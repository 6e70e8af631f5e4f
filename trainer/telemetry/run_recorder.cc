#include "trainer/telemetry/run_recorder.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/comm/agreement.h"
#include "trainer/instruments/non_finite.h"
#include "trainer/telemetry/report.h"
#include "trainer/telemetry/spikes.h"

namespace deepnet {

void RunRecorder::Begin(const PhaseClock& resolving, const PhaseClock& building) {
  std::vector<TimedPhase> phases = resolving.phases();
  phases.insert(phases.end(), building.phases().begin(), building.phases().end());
  const std::string line = StartLine(phases);
  if (!line.empty()) log_.Info(line);
}

void RunRecorder::Record(StepRecord record, NextTimes next, const std::string& figures) {
  record.set_restarts(restarts_);
  const double left = record.seconds_to_end();
  for (double* const seconds : {&next.save, &next.validation}) {
    if (left > 0 && *seconds >= left) *seconds = -1.0;
  }
  Write(record);
  WritePrometheus(next);
  Progress progress = ProgressOf(record, train_, next);
  progress.figures += figures;
  log_.Show(progress);
}

void RunRecorder::Record(const SaveRecord& record) {
  Write(record);
  const std::string step = WithCommas(record.step());
  if (record.error().empty()) {
    log_.Info(absl::StrFormat("saved step %s: %s in %.2f s, of which training stood still %.3f s",
                              step, ByteText(record.bytes()), record.seconds(),
                              record.stall_seconds()));
  } else {
    log_.Warning(absl::StrFormat("step %s could not be saved (%s so far): %s", step,
                                 WithCommas(record.failed_saves()), record.error()));
  }
}

void RunRecorder::Record(const SpikeRecord& record) {
  log_.Warning(SpikeLine(record));
  Write(record);
}

void RunRecorder::Record(const NonFiniteRecord& record) {
  log_.Warning(absl::StrCat("step ", record.step(), ": ", NonFiniteLine(record)));
  Write(record);
}

absl::Status RunRecorder::Record(std::vector<Straggler> stragglers, int64_t step,
                                 Communicator& world) {
  if (stragglers.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(world, HostName()));
  for (auto& [record, is_new] : stragglers) {
    record.set_step(step);
    record.set_host(hosts[static_cast<size_t>(record.rank())]);
    Write(record);
    if (world.rank() == 0 && is_new) log_.Warning(StragglerLine(record));
  }
  return absl::OkStatus();
}

void RunRecorder::GoBack(int64_t step) {
  if (files_.events != nullptr) files_.events->GoBack(step);
  if (files_.metrics != nullptr) WarnUnlessOk(files_.metrics->GoBack(step));
}

void RunRecorder::End(const Manifest& state) {
  WritePrometheus({});
  log_.EndProgress();
  log_.Info(absl::StrFormat("done: step %s, %s source and %s target tokens in %s of training",
                            WithCommas(state.step()), WithCommas(state.source_tokens()),
                            WithCommas(state.target_tokens()), ClockText(state.train_seconds())));
}

void RunRecorder::Write(const google::protobuf::Message& record) {
  if (files_.prometheus != nullptr) files_.prometheus->Remember(record);
  if (files_.metrics != nullptr) WarnUnlessOk(files_.metrics->Write(record));
  if (files_.events != nullptr) WarnUnlessOk(files_.events->Write(record));
}

void RunRecorder::WarnUnlessOk(const absl::Status& status) {
  if (!status.ok()) log_.Warning(std::string(status.message()));
}

void RunRecorder::WritePrometheus(const NextTimes& next) {
  if (files_.prometheus == nullptr || !files_.prometheus->has_steps()) return;
  const absl::Status written = files_.prometheus->Write(next);
  if (written.ok() || std::exchange(prometheus_failed_, true)) return;
  log_.Warning(absl::StrCat("train.prometheus_file: ", written.message()));
}

}  // namespace deepnet
