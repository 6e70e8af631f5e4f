#include "launch/commands/rehearse_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/json.h"

namespace deepnet {
namespace {

double Percent(double share) { return 100 * share; }

}  // namespace

void RehearsalReport::Begin() {
  if (json_) {
    out_ << absl::StrFormat(
        "{\"ranks\": %d, \"replicas\": %d, \"microbatches\": %d, \"payload\": %s, "
        "\"threads\": %s, \"corpus\": %s, \"schedules\": [\n",
        shape_.job.NumRanks(), shape_.job.exchange.replicas, shape_.microbatches,
        JsonQuoted(setting_.payload), setting_.threads ? "true" : "false",
        setting_.has_corpus ? JsonQuoted(setting_.corpus) : "null");
    return;
  }
  const std::string replicas =
      shape_.job.exchange.replicas == 1
          ? ""
          : absl::StrFormat(" = %d stages x %d replicas", shape_.job.placement.NumRanks(),
                            shape_.job.exchange.replicas);
  out_ << absl::StrFormat(
      "%d ranks (%s)%s, %s microbatches, payload %s; seconds are the cost model's\n\n"
      "%48s %30s   %s\n%-18s %9s %9s %9s %9s %10s %10s %8s %10s %10s %8s\n",
      shape_.job.NumRanks(), setting_.threads ? "threads" : "MPI", replicas,
      shape_.microbatches_text, setting_.payload, "step, s", "bubble of the pipeline",
      "exposed communication", "schedule", "planned", "simulated", "rehearsed", "planned",
      "simulated", "rehearsed", "more", "simulated", "rehearsed", "scale");
  out_ << std::flush;
}

std::string RehearsalReport::Row(const RehearsalCase& done, const Rehearsal& result) const {
  return absl::StrFormat(
      "%-18s %9.4g %9.4g %9.4g %8.2f%% %9.2f%% %9.2f%% %+7.2f%% %9.2f%% %9.2f%% %8.3g\n", done.name,
      done.planned_step_seconds, result.simulated_step, result.step, Percent(result.planned.bubble),
      Percent(result.simulated.bubble), Percent(result.bubble),
      Percent(result.bubble - result.simulated.bubble),
      Percent(result.simulated.exposed_communication), Percent(result.exposed_communication),
      result.time_scale);
}

std::string RehearsalReport::JsonRow(const RehearsalCase& done, const Rehearsal& result) const {
  return absl::StrFormat(
      "{\"schedule\": %s, \"planned_step_seconds\": %.9g, \"simulated_step_seconds\": %.9g, "
      "\"step_seconds\": %.9g, \"pipeline_seconds\": %.9g, "
      "\"planned_bubble\": %.6f, \"simulated_bubble\": %.6f, \"rehearsed_bubble\": %.6f, "
      "\"difference\": %.6f, \"simulated_exposed_communication\": %.6f, "
      "\"exposed_communication\": %.6f, \"time_scale\": %.9g, \"late_wakeup_seconds\": %.9f, "
      "\"data_wait_seconds\": [%s]}",
      JsonQuoted(done.name), done.planned_step_seconds, result.simulated_step, result.step,
      result.makespan, result.planned.bubble, result.simulated.bubble, result.bubble,
      result.bubble - result.simulated.bubble, result.simulated.exposed_communication,
      result.exposed_communication, result.time_scale, result.mean_lateness,
      absl::StrJoin(result.data_waits, ", "));
}

void RehearsalReport::Add(const RehearsalCase& done, const Rehearsal& result) {
  data_waits_.insert(data_waits_.end(), result.data_waits.begin(), result.data_waits.end());
  mean_lateness_ = std::max(mean_lateness_, result.mean_lateness);
  const bool first = rows_++ == 0;
  out_ << (json_ ? absl::StrCat(first ? "" : ",\n", JsonRow(done, result)) : Row(done, result))
       << std::flush;
}

std::string RehearsalReport::LastLines() const {
  std::string text =
      absl::StrFormat("\nthis host wakes a rank %.0f us late on average\n", 1e6 * mean_lateness_);
  if (!setting_.has_corpus) {
    return absl::StrCat(text, "data: no corpus in \"", setting_.corpus,
                        "\": steps fetch nothing\n");
  }
  absl::StrAppendFormat(&text, "data: %s: the first step waited %.1f ms", setting_.corpus,
                        1e3 * data_waits_.front());
  if (data_waits_.size() > 1) {
    absl::StrAppendFormat(&text, ", later ones at most %.1f ms (of this host)",
                          1e3 * *std::max_element(data_waits_.begin() + 1, data_waits_.end()));
  }
  return absl::StrCat(text, "\n");
}

void RehearsalReport::End() { out_ << (json_ ? "\n]}\n" : LastLines()) << std::flush; }

}  // namespace deepnet
