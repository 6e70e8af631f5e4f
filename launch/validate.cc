// Each Check* function looks at one message and adds its mistakes to the list; nothing stops at the
// first. A check that would only repeat an earlier mistake (heads of a width of 0) is left out.
#include "launch/validate.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "launch/mistakes.h"
#include "launch/validate_data.h"
#include "launch/validate_model.h"
#include "launch/validate_prepare.h"

namespace deepnet {
namespace {

bool IsPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

enum class Presence { kRequired, kMayBeAbsent };

void CheckSchedule(const OptimSpec& optim, Mistakes* mistakes) {
  mistakes->Require(optim.warmup_steps() >= 0, "optim.warmup_steps", optim.warmup_steps(),
                    "must be at least 0");
  if (optim.schedule() == INVERSE_SQRT && optim.warmup_steps() >= 0) {
    mistakes->Require(optim.warmup_steps() >= 1, "optim.warmup_steps", optim.warmup_steps(),
                      "INVERSE_SQRT decays from the warm-up on: must be at least 1");
  }
  if (optim.schedule() == COSINE) {
    mistakes->Require(
        optim.decay_steps() > optim.warmup_steps(), "optim.decay_steps", optim.decay_steps(),
        absl::StrCat("COSINE needs it, above optim.warmup_steps (", optim.warmup_steps(), ")"));
    mistakes->Require(optim.final_rate() >= 0 && optim.final_rate() <= optim.rate(),
                      "optim.final_rate", optim.final_rate(), "must be from 0 to optim.rate");
  } else {
    mistakes->Require(optim.decay_steps() == 0, "optim.decay_steps", optim.decay_steps(),
                      "only with schedule: COSINE");
    mistakes->Require(optim.final_rate() == 0, "optim.final_rate", optim.final_rate(),
                      "only with schedule: COSINE");
  }
}

void CheckOptim(const RunSpec& run, Presence presence, Mistakes* mistakes) {
  const OptimSpec& optim = run.optim();
  const bool absent = presence == Presence::kMayBeAbsent && optim.rate() == 0;
  if (!absent &&
      mistakes->Require(optim.rate() > 0, "optim.rate", optim.rate(), "required, above 0")) {
    mistakes->Require(optim.initial_rate() >= 0 && optim.initial_rate() <= optim.rate(),
                      "optim.initial_rate", optim.initial_rate(),
                      absl::StrCat("must be from 0 to optim.rate (", optim.rate(), ")"));
    CheckSchedule(optim, mistakes);
  }
  const auto decay = [&](const char* name, double value) {
    mistakes->Require(value >= 0 && value < 1, absl::StrCat("optim.", name), value,
                      "must be at least 0 and below 1");
  };
  decay("beta1", optim.beta1());
  decay("beta2", optim.beta2());
  mistakes->Require(optim.epsilon() > 0, "optim.epsilon", optim.epsilon(), "must be above 0");
  mistakes->Require(optim.weight_decay() >= 0, "optim.weight_decay", optim.weight_decay(),
                    "must be at least 0");
  mistakes->Require(optim.clip_norm() >= 0, "optim.clip_norm", optim.clip_norm(),
                    "must be above 0, or 0: off");
  decay("label_smoothing", optim.label_smoothing());
  const int replicas = optim.virtual_replicas();
  if (replicas == 0) return;  // the planner's
  const int microbatches = run.data().microbatches_per_step();
  if (mistakes->Require(IsPowerOfTwo(replicas), "optim.virtual_replicas", replicas,
                        "must be a power of two")) {
    mistakes->Require(microbatches < 1 || microbatches % replicas == 0, "optim.virtual_replicas",
                      replicas,
                      absl::StrCat("must divide data.microbatches_per_step (", microbatches, ")"));
  }
}

void CheckCompute(const ComputeSpec& compute, Mistakes* mistakes) {
  const bool cpu = compute.device() == "cpu", cuda = compute.device() == "cuda";
  mistakes->Require(cpu || cuda, "compute.device", compute.device(), "must be 'cpu' or 'cuda'");
  mistakes->Require(compute.residual_dtype() != BFLOAT16, "compute.residual_dtype",
                    DataType_Name(compute.residual_dtype()).c_str(),
                    "only FLOAT32: at 500-500 a branch starts at 0.0028 of the stream and "
                    "bfloat16 rounds at 0.0039, so it would vanish");
  mistakes->Require(!cuda || compute.matmul() != NATIVE, "compute.matmul",
                    Matmul_Name(compute.matmul()).c_str(),
                    "only with compute.device: 'cpu'; allowed here: LIBRARY");
  mistakes->Require(compute.threads_per_rank() >= 0, "compute.threads_per_rank",
                    compute.threads_per_rank(), "must be at least 1, or 0: left to the program");
}

void CheckLayout(const RunSpec& run, Mistakes* mistakes) {
  const ClusterSpec& cluster = run.cluster();
  const ParallelSpec& parallel = run.parallel();
  const bool has_ranks =
      mistakes->Require(cluster.nodes() >= 0, "cluster.nodes", cluster.nodes(),
                        "must be at least 1, or 0: those of the job") &
      mistakes->Require(cluster.devices_per_node() >= 0, "cluster.devices_per_node",
                        cluster.devices_per_node(), "must be at least 1, or 0: those of the job");
  const bool is_given = cluster.nodes() > 0 || cluster.devices_per_node() > 0;
  mistakes->Require(cluster.device_memory_gib() >= 0, "cluster.device_memory_gib",
                    cluster.device_memory_gib(), "must be above 0, or 0: what the host has");
  const int stages = parallel.pipeline_parallel_size(), replicas = parallel.data_parallel_size();
  mistakes->Require(stages >= 0, "parallel.pipeline_parallel_size", stages,
                    "must be at least 1, or 0: left to the planner");
  mistakes->Require(replicas >= 0, "parallel.data_parallel_size", replicas,
                    "must be at least 1, or 0: left to the planner");
  const int64_t ranks =
      std::max(1, cluster.nodes()) * int64_t{std::max(1, cluster.devices_per_node())};
  if (has_ranks && is_given && stages > 0 && replicas > 0) {
    mistakes->Require(int64_t{stages} * replicas == ranks, "parallel.pipeline_parallel_size",
                      stages,
                      absl::StrCat("times parallel.data_parallel_size (", replicas, ") must be ",
                                   ranks, ", all ranks of the cluster"));
  }
  const int layers = run.model().encoder_layers() + run.model().decoder_layers();
  mistakes->Require(layers < 1 || stages <= layers, "parallel.pipeline_parallel_size", stages,
                    absl::StrCat("must be at most the number of layers (", layers, ")"));
  const int microbatches = run.data().microbatches_per_step();
  mistakes->Require(microbatches < 1 || replicas <= microbatches, "parallel.data_parallel_size",
                    replicas,
                    absl::StrCat("must be at most data.microbatches_per_step (", microbatches,
                                 "): each replica computes at least one"));
}

void CheckTrain(const TrainSpec& train, Mistakes* mistakes) {
  const auto at_least = [&](const char* name, double value, double least, const char* text) {
    mistakes->Require(value >= least, absl::StrCat("train.", name), value, text);
  };
  at_least("steps", train.steps(), 0, "must be at least 1, or 0: no limit");
  at_least("minutes", train.minutes(), 0, "must be above 0, or 0: no limit");
  at_least("checkpoint_every_steps", train.checkpoint_every_steps(), 1, "must be at least 1");
  mistakes->Require(train.validate_every_steps() >= 1 || train.validate_every_steps() == -1,
                    "train.validate_every_steps", train.validate_every_steps(),
                    "must be at least 1, or -1: only at the end");
  at_least("validate_sentences", train.validate_sentences(), 1, "must be at least 1");
  at_least("keep_checkpoints", train.keep_checkpoints(), 1, "must be at least 1");
  at_least("keep_every_steps", train.keep_every_steps(), 0, "must be above 0, or 0: off");
  at_least("time_limit_minutes", train.time_limit_minutes(), 0,
           "must be above 0, or 0: until the batch system ends the job");
  at_least("log_every_steps", train.log_every_steps(), 1, "must be at least 1");
  at_least("checkpoint_every_minutes", train.checkpoint_every_minutes(), 0,
           "must be above 0, or 0: off");
  at_least("validate_every_minutes", train.validate_every_minutes(), 0,
           "must be above 0, or 0: off");
}

void CheckInstruments(const InstrumentsSpec& instruments, Mistakes* mistakes) {
  const int64_t every = instruments.every_steps();
  mistakes->Require(every >= 0, "instruments.every_steps", every, "must be at least 1, or 0: off");
  mistakes->Require(every != 0 || !instruments.model_update(), "instruments.every_steps", every,
                    "must be at least 1 with instruments.model_update");
}

void CheckDecode(const RunSpec& run, Mistakes* mistakes) {
  const DecodeSpec& decode = run.decode();
  const auto at_least_one = [&](const char* name, int value) {
    return mistakes->Require(value >= 1, absl::StrCat("decode.", name), value,
                             "must be at least 1");
  };
  const bool has_beam = at_least_one("beam_size", decode.beam_size());
  mistakes->Require(decode.length_penalty() >= 0, "decode.length_penalty", decode.length_penalty(),
                    "must be at least 0");
  at_least_one("max_tokens", decode.max_tokens());
  mistakes->Require(decode.max_ratio() >= 0, "decode.max_ratio", decode.max_ratio(),
                    "must be above 0, or 0: off");
  at_least_one("batch_tokens", decode.batch_tokens());
  const bool has_nbest = at_least_one("nbest", decode.nbest());
  mistakes->Require(decode.sampling_temperature() >= 0, "decode.sampling_temperature",
                    decode.sampling_temperature(), "must be above 0, or 0: search");
  if (has_beam && has_nbest && decode.sampling_temperature() == 0) {
    mistakes->Require(decode.nbest() <= decode.beam_size(), "decode.nbest", decode.nbest(),
                      absl::StrCat("must be at most decode.beam_size (", decode.beam_size(), ")"));
  }
  const int positions = run.model().max_positions();
  mistakes->Require(positions < 1 || decode.max_tokens() + 2 <= positions, "decode.max_tokens",
                    decode.max_tokens(),
                    absl::StrCat("must be at most model.max_positions (", positions, ") less 2"));
}

}  // namespace

absl::Status ValidateForPlan(const RunSpec& run) {
  Mistakes mistakes;
  CheckValues(run, "", &mistakes);
  CheckModel(run.model(), Vocabulary::kRequired, &mistakes);
  CheckData(run, &mistakes);
  CheckOptim(run, Presence::kMayBeAbsent, &mistakes);
  CheckCompute(run.compute(), &mistakes);
  CheckLayout(run, &mistakes);
  return mistakes.ToStatus();
}

absl::Status ValidateForTrain(const RunSpec& run) {
  Mistakes mistakes;
  CheckValues(run, "", &mistakes);
  mistakes.Require(!run.folder().empty(), "folder", run.folder(),
                   "required: where checkpoints and logs go");
  CheckModel(run.model(), Vocabulary::kFromCorpus, &mistakes);
  mistakes.Require(!run.data().folder().empty(), "data.folder", run.data().folder(),
                   "required: what `deepnet prepare` wrote");
  CheckData(run, &mistakes);
  CheckOptim(run, Presence::kRequired, &mistakes);
  CheckCompute(run.compute(), &mistakes);
  CheckLayout(run, &mistakes);
  CheckTrain(run.train(), &mistakes);
  CheckDecode(run, &mistakes);
  CheckInstruments(run.instruments(), &mistakes);
  return mistakes.ToStatus();
}

absl::Status ValidateForPrepare(const RunSpec& run) {
  Mistakes mistakes;
  CheckValues(run.prepare(), "prepare.", &mistakes);
  CheckPrepare(run, &mistakes);
  return mistakes.ToStatus();
}

}  // namespace deepnet
