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

// Returns the vocabulary of the run folder, without ids.
absl::StatusOr<ExportedVocabulary> ReadVocabulary(FileSystem& fs, const std::string& run_folder,
                                                  const Manifest& manifest) {
  const auto read = [&]() -> absl::StatusOr<ExportedVocabulary> {
    ASSIGN_OR_RETURN(std::string bytes, ReadWholeFile(fs, JoinPath(run_folder, kRunTokenizerFile),
                                                      kMaxTokenizerBytes));
    ASSIGN_OR_RETURN(std::vector<std::string> languages,
                     ReadLanguages(fs, JoinPath(run_folder, kRunLanguagesFile)));
    ASSIGN_OR_RETURN(Vocabulary pieces, Vocabulary::FromBytes(bytes, std::move(languages)));
    return ExportedVocabulary{.model_bytes = std::move(bytes), .pieces = std::move(pieces)};
  };
  ASSIGN_OR_RETURN(ExportedVocabulary vocabulary, CheckpointError(read(), "the tokenizer"));
  const Vocabulary& pieces = vocabulary.pieces;
  const int64_t rows = manifest.run().model().vocabulary_size();
  if (pieces.size() == rows && pieces.hash() == manifest.tokenizer_hash()) return vocabulary;
  return CheckpointRefused("'", run_folder, "' holds the tokenizer ", pieces.hash(), " of ",
                           pieces.size(), " ids; the checkpoint was made with ",
                           manifest.tokenizer_hash(), " of ", rows);
}

// Returns generation_config.json: the search that the checkpoint's run has configured, as
// transformers understands it. Tags, <s> and <pad> are never emitted.
std::string GenerationJson(const HfConfig& config, const DecodeSpec& decode,
                           const ExportedVocabulary& vocabulary) {
  const std::vector<int64_t>& ids = vocabulary.ids;
  std::vector<std::string> bad_words;
  for (size_t row = 0; row < ids.size(); ++row) {
    const bool bad = ids[row] == kBos || ids[row] == kPad || ids[row] == kRowOfZeros ||
                     ids[row] >= vocabulary.pieces.first_tag();
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

struct Export {
  std::unique_ptr<TensorReader> reader;
  ExportedVocabulary vocabulary;
  HfConfig config = {};
  std::vector<OutgoingTensor> tensors = {};
};

absl::StatusOr<Export> OpenExport(FileSystem& fs, const std::string& checkpoint_folder,
                                  const std::string& output, const ExportOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output, /*may_be_left_over=*/false));
  ASSIGN_OR_RETURN(auto reader, TensorReader::Open(fs, checkpoint_folder, options.tool));
  TensorReader* const alone[] = {reader.get()};
  RETURN_IF_ERROR(
      ShareMemory(alone, kWriteManifestFactor, kSafetensorsWriteBytes, options.tool, "exporting"));
  const Manifest& manifest = reader->manifest();
  const ModelSpec& model = manifest.run().model();
  if (model.residual() == RESIDUAL_UNSPECIFIED) {
    return CheckpointRefused("'", checkpoint_folder, "' does not say what its model is");
  }
  const bool marian = options.format == ExportFormat::kMarian;
  RETURN_IF_ERROR(CheckStoredModel(manifest.run()));
  RETURN_IF_ERROR(CheckRowsAreIndependent(model));
  RETURN_IF_ERROR(CheckTranslates(model, "checkpoint export"));
  if (marian) RETURN_IF_ERROR(CheckMarian(model));
  ASSIGN_OR_RETURN(ExportedVocabulary vocabulary,
                   ReadVocabulary(fs, ParentFolder(checkpoint_folder), manifest));
  Export opened{.reader = std::move(reader), .vocabulary = std::move(vocabulary)};
  opened.config = MakeHfConfig(manifest, opened.vocabulary.pieces.languages());
  std::vector<int64_t>& ids = opened.vocabulary.ids;
  if (marian) {
    opened.config = MakeMarianConfig(opened.config);
    ids = MarianIds(model.vocabulary_size());
    ASSIGN_OR_RETURN(opened.tensors, MarianTensors(model, *opened.reader));
  } else {
    ids.resize(static_cast<size_t>(model.vocabulary_size()));
    std::iota(ids.begin(), ids.end(), 0);
    ASSIGN_OR_RETURN(opened.tensors, StoredWeights(model, *opened.reader));
    for (OutgoingTensor& tensor : opened.tensors) tensor.name = HfName(tensor.name);
  }
  opened.config.set_dtype(options.layout.type == FloatType::kBfloat16 ? "bfloat16" : "float32");
  return opened;
}

// Makes `folder` anew, with everything but the weights.
absl::Status BeginFolder(FileSystem& fs, const std::string& folder, const Export& it) {
  RETURN_IF_ERROR(DeleteIfThere(fs, folder));
  RETURN_IF_ERROR(fs.MakeFolder(folder));
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, kConfigFile), HfConfigJson(it.config)));
  RETURN_IF_ERROR(
      ReplaceFile(fs, JoinPath(folder, "generation_config.json"),
                  GenerationJson(it.config, it.reader->manifest().run().decode(), it.vocabulary)));
  return WriteHfTokenizer(fs, folder, it.vocabulary, it.config.max_position_embeddings());
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
    RETURN_IF_ERROR(
        agree(WriteSafetensors(fs, temporary, opened->tensors, options.layout, options.tool)));
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
