#include "trainer/model_loader.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"
#include "trainer/run_state.h"

namespace deepnet {
namespace {

// Rows of hypotheses computed together.
constexpr int kDecodeRows = 512;

// What two commands say of a sentence must not depend on what was the faster type a moment ago.
ComputeSpec ResolveWithoutMeasuring(ComputeSpec compute) {
  const bool cpu = compute.device().empty() || compute.device() == "cpu";
  if (cpu && compute.dtype() == DATA_TYPE_UNSPECIFIED) compute.set_dtype(FLOAT32);
  return ResolveCompute(compute);
}

ComputeSpec ChooseCompute(const ComputeSpec& stored, const ComputeSpec& overrides) {
  ComputeSpec compute = stored;
  compute.clear_threads_per_rank();
  compute.MergeFrom(overrides);
  compute = ResolveWithoutMeasuring(compute);
  return CheckCompute(compute).ok() ? compute : ResolveWithoutMeasuring(overrides);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& run_or_checkpoint,
                                                       const ComputeSpec& overrides) {
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  auto loaded = std::make_unique<LoadedModel>();
  ASSIGN_OR_RETURN(loaded->folder, ResolveCheckpoint(*fs, run_or_checkpoint));
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*fs, loaded->folder));
  loaded->run = manifest.run();
  loaded->step = manifest.step();
  const std::filesystem::path folder = std::filesystem::absolute(loaded->folder).lexically_normal();
  ASSIGN_OR_RETURN(loaded->vocabulary, LoadVocabulary(folder.parent_path().string()));
  if (loaded->vocabulary->hash() != manifest.tokenizer_hash()) {
    return WithExitCode(
        absl::FailedPreconditionError(
            absl::StrCat(folder.string(), ": made with the tokenizer ", manifest.tokenizer_hash(),
                         ", but the run folder holds ", loaded->vocabulary->hash())),
        ExitCode::kCheckpoint);
  }

  RETURN_IF_ERROR(CheckRowsAreIndependent(manifest.run().model()));
  *loaded->run.mutable_compute() = ChooseCompute(manifest.run().compute(), overrides);
  ASSIGN_OR_RETURN(loaded->ops, MakeOps(loaded->run.compute()));
  const ModelSpec& spec = loaded->run.model();
  MicrobatchSpec capacity;
  if (HasMemory(spec)) {
    capacity.set_source_tokens(std::max(spec.max_positions(), loaded->run.decode().batch_tokens()));
  }
  capacity.set_target_tokens(std::max(spec.max_positions(), kDecodeRows));
  capacity.set_sentences(capacity.target_tokens());
  loaded->model = std::make_unique<Transformer>(spec, capacity, *loaded->ops, /*trainable=*/false);
  RETURN_IF_ERROR(LoadWeights(*fs, loaded->folder, manifest, loaded->model->parameters()));
  loaded->model->Refresh();
  loaded->model->set_step(manifest.step());
  loaded->scorer = std::make_unique<ModelScorer>(*loaded->model);
  loaded->pair_scorer = std::make_unique<ModelPairScorer>(*loaded->model);
  return loaded;
}

}  // namespace deepnet
