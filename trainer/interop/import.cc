#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/spread_writer.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/hf_tokenizer.h"
#include "trainer/interop/interop.h"
#include "trainer/interop/safetensors.h"
#include "trainer/model/check_model.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// A folder that was read, but for its tensors.
struct Incoming {
  Manifest manifest = {};
  ImportedVocabulary vocabulary = {};
  bool from_us = false;
};

absl::StatusOr<Incoming> ReadOurs(FileSystem& fs, const std::string& folder,
                                  const ExportedCheckpoint& exported,
                                  const ImportOptions& options) {
  Incoming incoming{.from_us = true};
  Manifest& manifest = incoming.manifest;
  // A converter writes model and tags alone, and no hash of the tokenizer.
  const bool converted = exported.tokenizer_hash().empty();
  *manifest.mutable_run() = converted ? options.complete(exported.run()) : exported.run();
  manifest.set_step(exported.step());
  manifest.mutable_data()->set_step(exported.step());
  manifest.set_corpus_hash(exported.corpus_hash());
  manifest.set_optimizer_steps(exported.optimizer_steps());
  manifest.set_source_tokens(exported.source_tokens());
  manifest.set_target_tokens(exported.target_tokens());
  ASSIGN_OR_RETURN(incoming.vocabulary, ReadExportedVocabulary(fs, folder, exported));
  return incoming;
}

absl::StatusOr<Incoming> ReadM2m(FileSystem& fs, const std::string& folder, const HfConfig& config,
                                 const ImportOptions& options) {
  Incoming incoming;
  RunSpec& run = *incoming.manifest.mutable_run();
  ASSIGN_OR_RETURN(*run.mutable_model(), ModelOfM2m(config));
  run.mutable_data()->set_tags(M2M);
  run.set_name("m2m_100");
  run = options.complete(std::move(run));
  RETURN_IF_ERROR(CheckStoredModel(run));
  ASSIGN_OR_RETURN(incoming.vocabulary,
                   ReadM2mVocabulary(fs, folder, run.model().vocabulary_size(), options.tool));
  run.mutable_model()->set_vocabulary_size(static_cast<int64_t>(incoming.vocabulary.rows.size()));
  if (config.encoder_layerdrop() > 0.0 || config.decoder_layerdrop() > 0.0) {
    incoming.vocabulary.notes.emplace_back(
        "layerdrop is not applied in training here: all layers are always computed");
  }
  return incoming;
}

absl::StatusOr<Incoming> ReadFolder(FileSystem& fs, const std::string& folder,
                                    const ImportOptions& options) {
  ASSIGN_OR_RETURN(const HfConfig config, ReadHfConfig(fs, folder, options.tool));
  if (config.has_deepnet()) return ReadOurs(fs, folder, config.deepnet(), options);
  if (config.model_type() == kM2mType) return ReadM2m(fs, folder, config, options);
  return CheckpointRefused(
      "'", folder, "': model_type is '", config.model_type(),
      "'; imported are m2m_100 and what `export --format safetensors` wrote",
      config.model_type() == kMarianType
          ? " (a Marian model has other positions and starts its decoder otherwise)"
          : "");
}

absl::StatusOr<ElementReader> FindSource(const Parameter& parameter, const Incoming& incoming,
                                         SafetensorsFolder& folder, int64_t folder_rows) {
  const std::string name = HfName(parameter.name);
  const auto found = folder.tensors().find(name);
  if (found == folder.tensors().end()) return CheckpointRefused("tensor '", name, "' is missing");
  const IncomingTensor& tensor = found->second;
  const bool mapped = parameter.role == Role::kEmbedding && !incoming.vocabulary.rows.empty();
  std::vector<int64_t> expected = parameter.shape;
  if (mapped) expected[0] = folder_rows;
  if (tensor.shape != expected) {
    return CheckpointRefused("tensor '", name, "' is ", absl::StrJoin(tensor.shape, "x"),
                             "; its config.json asks for ", absl::StrJoin(expected, "x"));
  }
  ElementReader source = [&folder, &tensor](int64_t first, std::span<float> into) {
    return folder.Read(tensor, first, into);
  };
  if (!mapped) return source;
  return ReadRows(std::move(source), incoming.vocabulary.rows, parameter.shape[1]);
}

// Finds all parameters of `inventory`, in its order; refuses a folder that holds more tensors than
// that.
absl::StatusOr<std::vector<ElementReader>> FindSources(const Inventory& inventory,
                                                       const Incoming& incoming,
                                                       SafetensorsFolder& folder,
                                                       int64_t folder_rows) {
  std::vector<ElementReader> sources;
  std::set<std::string> known;
  for (const Parameter& parameter : inventory.parameters) {
    ASSIGN_OR_RETURN(ElementReader source, FindSource(parameter, incoming, folder, folder_rows));
    sources.push_back(std::move(source));
    known.insert(HfName(parameter.name));
  }
  for (const auto& [name, tensor] : folder.tensors()) {
    if (known.contains(name) || (!incoming.from_us && IsRepeatedInHf(name))) continue;
    return CheckpointRefused("tensor '", name, "' is none of this model's");
  }
  return sources;
}

absl::Status CopyTensors(const Inventory& inventory, const std::vector<ElementReader>& sources,
                         const ImportOptions& options, SpreadWriter& writer) {
  const int64_t total = inventory.NumElements();
  std::vector<float> piece;
  int64_t done = 0;
  for (size_t p = 0; p < sources.size(); ++p) {
    const Parameter& parameter = inventory.parameters[p];
    const StoredTensor stored{.name = absl::StrCat(kWeightPrefix, parameter.name),
                              .shape = parameter.shape,
                              .num_elements = parameter.NumElements()};
    for (int64_t at = 0; at < stored.num_elements; at += kCopyElements) {
      piece.resize(static_cast<size_t>(std::min(kCopyElements, stored.num_elements - at)));
      RETURN_IF_ERROR(sources[p](at, piece));
      RETURN_IF_ERROR(writer.Append(
          stored, {reinterpret_cast<const char*>(piece.data()), piece.size() * sizeof(float)}));
      done += static_cast<int64_t>(piece.size());
      options.tool.progress(done * kElementBytes, total * kElementBytes);
    }
  }
  return absl::OkStatus();
}

absl::Status WriteVocabulary(FileSystem& fs, const std::string& run_folder,
                             const ImportedVocabulary& vocabulary) {
  std::string list;
  for (const std::string& language : vocabulary.languages) absl::StrAppend(&list, language, "\n");
  RETURN_IF_ERROR(WriteVocabularyFile(fs, run_folder, kRunTokenizerFile, vocabulary.model_bytes));
  return WriteVocabularyFile(fs, run_folder, kRunLanguagesFile, list);
}

}  // namespace

absl::StatusOr<ImportReport> ImportFolder(FileSystem& fs, const std::string& folder,
                                          const std::string& output_run,
                                          const ImportOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output_run));
  ASSIGN_OR_RETURN(Incoming incoming, ReadFolder(fs, folder, options));
  Manifest& manifest = incoming.manifest;
  const ModelSpec& model = manifest.run().model();
  RETURN_IF_ERROR(CheckStoredModel(manifest.run()));
  const Inventory inventory = Describe(model, manifest.run().data().microbatch());
  manifest.set_inventory_hash(inventory.Hash());
  manifest.set_tokenizer_hash(incoming.vocabulary.hash);
  manifest.set_block_bytes(kDefaultBlockBytes);

  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFolder> tensors,
                   SafetensorsFolder::Open(fs, folder, options.tool));
  int64_t folder_rows = 0;
  const auto embedding = tensors->tensors().find("model.shared.weight");
  if (embedding != tensors->tensors().end()) folder_rows = embedding->second.shape[0];
  for (const int64_t row : incoming.vocabulary.rows) {
    if (row >= folder_rows)
      return CheckpointRefused("'model.shared.weight' has fewer rows than vocab_size");
  }
  ASSIGN_OR_RETURN(const std::vector<ElementReader> sources,
                   CheckpointError(FindSources(inventory, incoming, *tensors, folder_rows),
                                   absl::StrCat("'", folder, "'")));

  RETURN_IF_ERROR(CheckpointError(WriteVocabulary(fs, output_run, incoming.vocabulary),
                                  "writing the tokenizer"));
  SpreadWriter writer(fs, output_run, {.num_files = 1, .num_elements = inventory.NumElements()},
                      manifest);
  RETURN_IF_ERROR(CheckpointError(writer.Begin(), "importing"));
  RETURN_IF_ERROR(CheckpointError(CopyTensors(inventory, sources, options, writer), "importing"));
  ASSIGN_OR_RETURN(const Manifest files, writer.Finish());
  ASSIGN_OR_RETURN(std::string written, writer.Commit(files));
  return ImportReport{.folder = std::move(written), .notes = std::move(incoming.vocabulary.notes)};
}

}  // namespace deepnet
