#include "trainer/model_loader.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/philox.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/ensemble_scorer.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/check_model.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// `count` rows of the new table from `row` on are those of the old one from `earlier` on.
struct RowRun {
  int64_t row = 0, earlier = 0, count = 0;
};

// Returns the runs in order of rows, as few as possible.
std::vector<RowRun> MatchRows(const Vocabulary& earlier, const Vocabulary& vocabulary) {
  absl::flat_hash_map<std::string, int32_t> ids;
  for (int32_t id = 0; id < earlier.size(); ++id) ids.emplace(earlier.Piece(id), id);
  std::vector<RowRun> runs;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const auto found = ids.find(vocabulary.Piece(id));
    if (found == ids.end()) continue;
    if (!runs.empty() && runs.back().row + runs.back().count == id &&
        runs.back().earlier + runs.back().count == found->second) {
      ++runs.back().count;
    } else {
      runs.push_back({.row = id, .earlier = found->second, .count = 1});
    }
  }
  return runs;
}

// Returns the shape in which `name` is stored; {} if it is not.
std::vector<int64_t> StoredShape(const Manifest& manifest, const std::string& name) {
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      if (extent.name() == name) return {extent.shape().begin(), extent.shape().end()};
    }
  }
  return {};
}

// Two commands must give a sentence the same score, whichever type was the faster one a moment ago.
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

// The rows of embeddings that are read where the checkpoint's vocabulary is another.
struct EarlierRows {
  int64_t all = 0;  // of the checkpoint's vocabulary
  std::vector<RowRun> runs;
};

// Loads the weights of `parameters`, which hold a whole model or some of its layers; of embeddings
// only `rows`, if they are given.
absl::Status LoadWeights(FileSystem& fs, const std::string& checkpoint_folder,
                         const Manifest& manifest, Parameters& parameters,
                         const std::optional<EarlierRows>& rows = {}) {
  const at::Tensor host = parameters.weights().to(at::kCPU);  // itself where it is there
  float* const weights = host.data_ptr<float>();
  std::vector<MutableNamedTensor> tensors;
  for (const Parameter& p : parameters.inventory().parameters) {
    const std::string name = kWeightPrefix + p.name;
    float* const data = weights + p.offset;
    if (p.role != Role::kEmbedding || !rows.has_value()) {
      tensors.push_back({name, p.shape, {data, static_cast<size_t>(p.NumElements())}});
      continue;
    }
    std::vector<int64_t> shape = StoredShape(manifest, name);
    if (shape.size() != 2 || shape[1] != p.shape[1] || shape[0] < rows->all) shape = p.shape;
    for (const RowRun& run : rows->runs) {  // a shape that does not fit is refused by ReadTensors
      tensors.push_back({name,
                         shape,
                         {data + run.row * p.shape[1], static_cast<size_t>(run.count * p.shape[1])},
                         run.earlier * p.shape[1]});
    }
  }
  RETURN_IF_ERROR(ReadTensors(fs, checkpoint_folder, manifest, tensors));
  if (!host.is_same(parameters.weights())) parameters.weights().copy_(host);
  return absl::OkStatus();
}

// Returns the vocabulary of a run folder.
absl::StatusOr<std::unique_ptr<Vocabulary>> LoadVocabulary(const std::string& run_folder) {
  const std::string list = absl::StrCat(run_folder, "/", kRunLanguagesFile);
  auto languages = ReadLanguages(*MakePosixFileSystem(), list);
  if (absl::IsNotFound(languages.status())) {
    languages = NotFound(list, ": not found; is this a run folder?");
  }
  if (!languages.ok()) return WithExitCode(languages.status(), ExitCode::kCheckpoint);
  const std::string model = absl::StrCat(run_folder, "/", kRunTokenizerFile);
  ASSIGN_OR_RETURN(Vocabulary vocabulary,
                   WithExitCode(Vocabulary::Open(model, *languages), ExitCode::kCheckpoint));
  return std::make_unique<Vocabulary>(std::move(vocabulary));
}

// Returns the vocabulary beside a checkpoint, which must be the one that it was made with.
absl::StatusOr<std::unique_ptr<Vocabulary>> VocabularyOf(const FoundModel& found) {
  ASSIGN_OR_RETURN(std::unique_ptr<Vocabulary> vocabulary,
                   LoadVocabulary(ParentFolder(found.folder)));
  if (vocabulary->hash() == found.manifest.tokenizer_hash()) return vocabulary;
  return CheckpointRefused(found.folder, ": made with the tokenizer ",
                           found.manifest.tokenizer_hash(), ", but the run folder holds ",
                           vocabulary->hash());
}

absl::StatusOr<std::unique_ptr<Transformer>> LoadTransformer(const FoundModel& found, Ops& ops) {
  const RunSpec& run = found.manifest.run();
  const ModelSpec& spec = run.model();
  const MicrobatchSpec capacity =
      DecodeCapacity(spec, run.decode(), run.compute().device() == "cuda");
  auto model = std::make_unique<Transformer>(spec, capacity, ops, /*trainable=*/false);
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  RETURN_IF_ERROR(LoadWeights(*fs, found.folder, found.manifest, model->parameters()));
  model->Refresh();
  model->set_step(found.manifest.step());
  return model;
}

// Models of an ensemble read the same ids.
absl::Status CheckTogether(const FoundModel& first, const FoundModel& other) {
  const RunSpec &a = first.manifest.run(), &b = other.manifest.run();
  const char* what = nullptr;
  if (first.manifest.tokenizer_hash() != other.manifest.tokenizer_hash()) what = "vocabularies";
  if (a.data().tags() != b.data().tags()) what = "data.tags";
  if (a.model().architecture() != b.model().architecture()) what = "architectures";
  if (what == nullptr) return absl::OkStatus();
  return CheckpointRefused(first.folder, " and ", other.folder, " have different ", what,
                           " and cannot be an ensemble");
}

}  // namespace

absl::Status SaveVocabulary(FileSystem& fs, const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder) {
  const auto save = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::string tokenizer,
                     ReadWholeFile(fs, tokenizer_file, kMaxTokenizerBytes));
    std::string list;
    for (const std::string& language : languages) absl::StrAppend(&list, language, "\n");
    RETURN_IF_ERROR(WriteVocabularyFile(fs, run_folder, kRunTokenizerFile, tokenizer));
    return WriteVocabularyFile(fs, run_folder, kRunLanguagesFile, list);
  };
  return WithExitCode(save(), ExitCode::kCheckpoint);
}

std::vector<uint64_t> ParameterHashes(const Parameters& parameters) {
  const at::Tensor host = parameters.weights().to(at::kCPU);
  std::vector<uint64_t> hashes;
  for (const Parameter& p : parameters.inventory().parameters) {
    hashes.push_back(HashName({reinterpret_cast<const char*>(host.data_ptr<float>() + p.offset),
                               static_cast<size_t>(p.NumElements()) * sizeof(float)}));
  }
  return hashes;
}

std::string WeightsHash(std::span<const uint64_t> parameter_hashes) {
  return absl::StrFormat("%016x", HashName({reinterpret_cast<const char*>(parameter_hashes.data()),
                                            parameter_hashes.size_bytes()}));
}

absl::StatusOr<InitialRows> InitializeFrom(FileSystem& fs, const std::string& path,
                                           const Vocabulary& vocabulary, Architecture architecture,
                                           Parameters& parameters) {
  ASSIGN_OR_RETURN(const std::string folder, ResolveCheckpoint(fs, path));
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs, folder));
  if (const Architecture stored = manifest.run().model().architecture(); stored != architecture) {
    return CheckpointRefused("--init-from ", path, ": model.architecture is ",
                             Architecture_Name(stored), " in the checkpoint and ",
                             Architecture_Name(architecture), " in this run");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Vocabulary> earlier, LoadVocabulary(ParentFolder(folder)));
  const std::vector<RowRun> runs = MatchRows(*earlier, vocabulary);
  RETURN_IF_ERROR(
      LoadWeights(fs, folder, manifest, parameters, EarlierRows{earlier->size(), runs}));
  InitialRows rows;
  for (const RowRun& run : runs) rows.taken += run.count;
  rows.drawn = vocabulary.size() - rows.taken;
  return rows;
}

absl::StatusOr<FoundModel> FindModel(const std::string& run_or_checkpoint,
                                     const ComputeSpec& overrides) {
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  FoundModel found;
  ASSIGN_OR_RETURN(found.folder, ResolveCheckpoint(*fs, run_or_checkpoint));
  ASSIGN_OR_RETURN(found.manifest, ReadManifest(*fs, found.folder));
  RETURN_IF_ERROR(CheckStoredModel(found.manifest.run()));
  RETURN_IF_ERROR(CheckRowsAreIndependent(found.manifest.run().model()));
  ComputeSpec* const compute = found.manifest.mutable_run()->mutable_compute();
  *compute = ChooseCompute(*compute, overrides);
  return found;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadEnsemble(std::span<const FoundModel> found) {
  const FoundModel& first = found.front();
  std::vector<std::string> folders;
  for (const FoundModel& one : found) {
    RETURN_IF_ERROR(CheckTogether(first, one));
    folders.push_back(one.folder);
  }
  auto loaded = std::make_unique<LoadedModel>();
  loaded->run = first.manifest.run();
  loaded->folder = absl::StrJoin(folders, ",");
  loaded->step = first.manifest.step();
  ASSIGN_OR_RETURN(loaded->vocabulary, VocabularyOf(first));
  ASSIGN_OR_RETURN(loaded->ops, MakeOps(loaded->run.compute()));
  std::vector<Transformer*> models;
  for (const FoundModel& one : found) {
    ASSIGN_OR_RETURN(loaded->models.emplace_back(), LoadTransformer(one, *loaded->ops));
    models.push_back(loaded->models.back().get());
  }
  if (models.size() == 1) {
    loaded->scorer = std::make_unique<ModelScorer>(*models.front());
    loaded->pair_scorer = std::make_unique<ModelPairScorer>(*models.front());
    return loaded;
  }
  loaded->scorer = std::make_unique<EnsembleScorer>(models);
  loaded->pair_scorer = std::make_unique<EnsemblePairScorer>(models);
  return loaded;
}

}  // namespace deepnet
