#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/communicator.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/spread_writer.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/data/vocabulary.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/hf_tokenizer.h"
#include "trainer/interop/interop.h"
#include "trainer/interop/marian.h"
#include "trainer/model/architecture.h"
#include "trainer/model/check_model.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// Everything that goes into the folder.
struct Package {
  HfConfig config = {};
  std::vector<int64_t> ids = {};  // [exported row]: our id, or kRowOfZeros
  std::vector<OutgoingTensor> tensors = {};
};

// Returns the vocabulary of the run folder, and the bytes of its model in `model_bytes`.
absl::StatusOr<Vocabulary> ReadVocabulary(FileSystem& fs, const std::string& run_folder,
                                          const Manifest& manifest, std::string* model_bytes) {
  const auto read = [&]() -> absl::StatusOr<Vocabulary> {
    ASSIGN_OR_RETURN(*model_bytes, ReadWholeFile(fs, JoinPath(run_folder, kRunTokenizerFile),
                                                 kMaxTokenizerBytes));
    ASSIGN_OR_RETURN(std::vector<std::string> languages,
                     ReadLanguages(fs, JoinPath(run_folder, kRunLanguagesFile)));
    return Vocabulary::FromBytes(*model_bytes, std::move(languages));
  };
  ASSIGN_OR_RETURN(Vocabulary vocabulary, CheckpointError(read(), "the tokenizer"));
  const int64_t rows = manifest.run().model().vocabulary_size();
  if (vocabulary.size() == rows && vocabulary.hash() == manifest.tokenizer_hash()) {
    return vocabulary;
  }
  return CheckpointRefused(absl::StrCat(
      "'", run_folder, "' holds the tokenizer ", vocabulary.hash(), " of ", vocabulary.size(),
      " ids; the checkpoint was made with ", manifest.tokenizer_hash(), " of ", rows));
}

// Returns generation_config.json: the search that the checkpoint's run has configured, as
// transformers understands it. Tags, <s> and <pad> are never emitted.
std::string GenerationJson(const HfConfig& config, const DecodeSpec& decode,
                           const Vocabulary& vocabulary, const std::vector<int64_t>& ids) {
  std::vector<std::string> bad_words;
  for (size_t row = 0; row < ids.size(); ++row) {
    const bool bad = ids[row] == kBos || ids[row] == kPad || ids[row] == kRowOfZeros ||
                     ids[row] >= vocabulary.first_tag();
    if (bad) bad_words.push_back(absl::StrCat("[", row, "]"));
  }
  return absl::StrCat(
      "{\n  \"bad_words_ids\": [", absl::StrJoin(bad_words, ", "), "],\n  \"bos_token_id\": ", kBos,
      ",\n  \"eos_token_id\": ", kEos, ",\n  \"pad_token_id\": ", config.pad_token_id(),
      ",\n  \"decoder_start_token_id\": ", config.decoder_start_token_id(),
      ",\n  \"num_beams\": ", std::max(decode.beam_size(), 1), ",\n  \"early_stopping\": true",
      ",\n  \"length_penalty\": ", decode.has_length_penalty() ? decode.length_penalty() : 1.0,
      ",\n  \"min_new_tokens\": 1,\n  \"max_length\": ",
      std::min(decode.max_tokens() > 0 ? decode.max_tokens() + 1 : config.max_position_embeddings(),
               config.max_position_embeddings()),
      "\n}\n");
}

absl::StatusOr<Package> MakePackage(const ExportOptions& options, const Vocabulary& vocabulary,
                                    TensorReader& reader) {
  const ModelSpec& model = reader.manifest().run().model();
  Package package;
  package.config = MakeHfConfig(reader.manifest(), vocabulary.languages());
  if (options.format == ExportFormat::kMarian) {
    package.config = MakeMarianConfig(package.config);
    package.ids = MarianIds(model.vocabulary_size());
    ASSIGN_OR_RETURN(package.tensors, MarianTensors(model, reader));
  } else {
    package.ids.resize(static_cast<size_t>(model.vocabulary_size()));
    std::iota(package.ids.begin(), package.ids.end(), 0);
    ASSIGN_OR_RETURN(package.tensors, StoredWeights(model, reader));
    for (OutgoingTensor& tensor : package.tensors) tensor.name = HfName(tensor.name);
  }
  package.config.set_dtype(options.layout.type == FloatType::kBfloat16 ? "bfloat16" : "float32");
  return package;
}

std::vector<std::string> Statements(const Manifest& manifest, const ExportOptions& options) {
  const ModelSpec& model = manifest.run().model();
  std::vector<std::string> statements;
  if (options.format == ExportFormat::kMarian) {
    statements = MarianStatements(model, manifest.run().data().tags(), manifest.step());
  } else if (const std::vector<std::string> differences = DifferencesFromM2m(model);
             !differences.empty()) {
    statements.push_back(
        absl::StrCat("model_type is deepnet, for which transformers has no class: ",
                     absl::StrJoin(differences, ", "), ". `deepnet checkpoint import` reads it."));
  }
  if (options.layout.type == FloatType::kBfloat16) {
    statements.push_back("Weights are rounded to bfloat16.");
  }
  return statements;
}

// Holds what an export reads of a checkpoint.
struct Export {
  std::unique_ptr<TensorReader> reader;
  std::string model_bytes = {};  // of the tokenizer
  std::unique_ptr<Vocabulary> vocabulary = nullptr;
  Package package = {};
};

absl::StatusOr<Export> OpenExport(FileSystem& fs, const std::string& checkpoint_folder,
                                  const std::string& output, const ExportOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output, /*may_be_left_over=*/false));
  Export opened;
  ASSIGN_OR_RETURN(opened.reader, TensorReader::Open(fs, checkpoint_folder, options.tool));
  TensorReader* const alone[] = {opened.reader.get()};
  RETURN_IF_ERROR(
      ShareMemory(alone, kWriteManifestFactor, kSafetensorsWriteBytes, options.tool, "exporting"));
  const Manifest& manifest = opened.reader->manifest();
  if (manifest.run().model().residual() == RESIDUAL_UNSPECIFIED) {
    return CheckpointRefused(
        absl::StrCat("'", checkpoint_folder, "' does not say what its model is"));
  }
  RETURN_IF_ERROR(CheckStoredModel(manifest.run()));
  RETURN_IF_ERROR(CheckRowsAreIndependent(manifest.run().model()));
  RETURN_IF_ERROR(CheckTranslates(manifest.run().model(), "checkpoint export"));
  if (options.format == ExportFormat::kMarian) RETURN_IF_ERROR(CheckMarian(manifest.run().model()));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(fs, ParentFolder(checkpoint_folder),
                                                         manifest, &opened.model_bytes));
  opened.vocabulary = std::make_unique<Vocabulary>(std::move(vocabulary));
  ASSIGN_OR_RETURN(opened.package, MakePackage(options, *opened.vocabulary, *opened.reader));
  return opened;
}

// Makes `folder` anew, with everything but the weights.
absl::Status BeginFolder(FileSystem& fs, const std::string& folder, const Export& it) {
  RETURN_IF_ERROR(DeleteIfThere(fs, folder));
  RETURN_IF_ERROR(fs.MakeFolder(folder));
  const HfConfig& config = it.package.config;
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, kConfigFile), HfConfigJson(config)));
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, "generation_config.json"),
                              GenerationJson(config, it.reader->manifest().run().decode(),
                                             *it.vocabulary, it.package.ids)));
  return WriteHfTokenizer(fs, folder, it.model_bytes, *it.vocabulary, it.package.ids,
                          config.max_position_embeddings());
}

// A mount point cannot be replaced: what is complete is moved into it, and last the file that
// readers look for.
absl::Status PublishFolder(FileSystem& fs, const std::string& temporary,
                           const std::string& output) {
  RETURN_IF_ERROR(fs.SyncFolder(temporary));
  if (ParentFolder(temporary) != output) {
    RETURN_IF_ERROR(fs.Rename(temporary, output));
    return fs.SyncFolder(ParentFolder(output));
  }
  ASSIGN_OR_RETURN(std::vector<std::string> names, fs.List(temporary));
  std::erase(names, kConfigFile);
  names.push_back(kConfigFile);
  for (const std::string& name : names) {
    RETURN_IF_ERROR(fs.Rename(JoinPath(temporary, name), JoinPath(output, name)));
  }
  RETURN_IF_ERROR(fs.Delete(temporary));
  return fs.SyncFolder(output);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExportCheckpoint(FileSystem& fs,
                                                          const std::string& checkpoint_folder,
                                                          const std::string& output,
                                                          const ExportOptions& options) {
  SelfCommunicator alone;
  Communicator& world = options.tool.world != nullptr ? *options.tool.world : alone;
  const bool is_first = world.rank() == 0;
  const absl::StatusOr<Export> opened = OpenExport(fs, checkpoint_folder, output, options);
  RETURN_IF_ERROR(AgreeOnStatus(world, opened.status()));
  const std::string temporary =
      IsMountPoint(output) ? JoinPath(output, kUnfinishedEnd) : output + kUnfinishedEnd;
  const auto agree = [&](const absl::Status& mine) {
    return AgreeOnStatus(world, CheckpointError(mine, absl::StrCat("writing '", output, "'")));
  };
  const auto write = [&]() -> absl::Status {
    RETURN_IF_ERROR(agree(is_first ? BeginFolder(fs, temporary, *opened) : absl::OkStatus()));
    RETURN_IF_ERROR(agree(
        WriteSafetensors(fs, temporary, opened->package.tensors, options.layout, options.tool)));
    return agree(is_first ? PublishFolder(fs, temporary, output) : absl::OkStatus());
  };
  const absl::Status written = write();
  if (!written.ok()) {
    if (is_first) fs.DeleteTree(temporary).IgnoreError();
    return written;
  }
  return Statements(opened->reader->manifest(), options);
}

}  // namespace deepnet
