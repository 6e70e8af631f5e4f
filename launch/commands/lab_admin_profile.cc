#include "launch/commands/lab_admin_profile.h"

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/data_order.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/transformer.h"
#include "trainer/probe/admin_profile.h"

namespace deepnet {
namespace {

// As a field of a recipe, and for --set.
std::string Text(const std::vector<double>& omega) {
  return absl::StrCat("model { scheme { admin_omega: [",
                      absl::StrJoin(omega, ", ",
                                    [](std::string* out, double value) {
                                      absl::StrAppendFormat(out, "%.6g", value);
                                    }),
                      "] } }\n");
}

absl::Status RunAdminProfile(const CommandLine& line) {
  ASSIGN_OR_RETURN(RunSpec run, LoadRunSpec(line));
  if (run.model().residual() != ADMIN) {
    return BadFlag(absl::StrCat("model.residual: ", Residual_Name(run.model().residual()),
                                ": must be ADMIN: no other scheme has a profile"));
  }
  run.mutable_model()->mutable_scheme()->clear_admin_omega();
  const auto corpus = Corpus::Open(ResolvePath(line, run.data().folder()));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  run.mutable_model()->set_vocabulary_size(corpus->vocabulary().size());
  RETURN_IF_ERROR(ResolveDataSpec(*corpus, run.mutable_data(), run.model().architecture()));
  ASSIGN_OR_RETURN(const auto batches, CorpusBatchSource::Make(run.data(), run.seed(), &*corpus,
                                                               run.model().architecture()));
  ASSIGN_OR_RETURN(const StepBatch batch, batches->ForStep(0));
  ASSIGN_OR_RETURN(const auto ops, MakeOps(ResolveCompute(run.compute())));
  Transformer model(run.model(), run.data().microbatch(), *ops, /*trainable=*/true);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  line.out << Text(ProfileAdmin(model, batch.microbatches[0], run.seed()));
  return absl::OkStatus();
}

}  // namespace

Command MakeLabAdminProfileCommand() {
  return {
      .name = "admin-profile",
      .summary = "measure what branches add to their streams, for residual ADMIN",
      .description =
          "Runs the first microbatch of a run through the model as it starts, dropout on, and "
          "prints the vector's value that each sub-layer of residual ADMIN should start with: "
          "2N numbers of the encoder, then 3M of the decoder. Put the line into the recipe. One "
          "process; the whole model must fit.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForTrain,
      .run = RunAdminProfile};
}

}  // namespace deepnet
