#include "launch/commands/rehearse_data.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus_batch_source.h"

namespace deepnet {

absl::StatusOr<std::unique_ptr<RehearsalData>> RehearsalData::Open(const RunSpec& run,
                                                                   const std::string& folder) {
  if (run.data().folder().empty() || absl::IsNotFound(ReadManifest(folder).status())) {
    return nullptr;
  }
  absl::StatusOr<Corpus> corpus = Corpus::Open(folder);
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  const int64_t size = corpus->vocabulary().size();
  if (run.model().vocabulary_size() != size) {
    return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                            "model.vocabulary_size: ", run.model().vocabulary_size(),
                            ": the corpus ", run.data().folder(), " has a vocabulary of ", size)),
                        ExitCode::kBadConfig);
  }
  DataSpec data = run.data();
  RETURN_IF_ERROR(WithExitCode(ResolveDataSpec(*corpus, &data, run.model().architecture()),
                               ExitCode::kBadConfig));
  std::unique_ptr<RehearsalData> made(new RehearsalData(*std::move(corpus)));
  auto source =
      CorpusBatchSource::Make(data, run.seed(), &made->corpus_, run.model().architecture());
  if (!source.ok()) return WithExitCode(source.status(), ExitCode::kBadConfig);
  made->batches_ = std::make_unique<Prefetcher>(*std::move(source));
  return made;
}

absl::Status RehearsalData::Fetch(int64_t step) {
  const std::lock_guard lock(mutex_);
  if (step == step_) return absl::OkStatus();
  const absl::StatusOr<StepBatch> batch = batches_->ForStep(step);
  if (!batch.ok()) return WithExitCode(batch.status(), ExitCode::kData);
  step_ = step;
  target_tokens_ = batch->num_target_tokens;
  return absl::OkStatus();
}

}  // namespace deepnet
