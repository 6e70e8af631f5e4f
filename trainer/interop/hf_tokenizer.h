// Vocabularies as Hugging Face's tokenizers keep them: a SentencePiece model beside vocab.json.
//
// Exports are made for MarianTokenizer, which takes any vocabulary: a language tag __de__ is called
// >>de<< there and written in front of the text. M2M100Tokenizer, which imports are read for, has
// its languages built in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/interop.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

inline constexpr int64_t kRowOfZeros = -1;  // the "id" of a row that only other programs have
inline constexpr char kTrainedPad[] = "<pad:trained>";  // name of kPad where that row is <pad>

// The vocabulary of a checkpoint that is exported.
struct ExportedVocabulary {
  std::string model_bytes;        // the SentencePiece model
  Vocabulary pieces;              // made of it
  std::vector<int64_t> ids = {};  // [exported row]: our id, each once; kRowOfZeros may stand last
};

// Writes source.spm, target.spm, vocab.json and tokenizer_config.json into `folder`. Fails with
// FAILED_PRECONDITION, naming the piece, if a piece occurs twice.
absl::Status WriteHfTokenizer(FileSystem& fs, const std::string& folder,
                              const ExportedVocabulary& vocabulary, int max_positions);

// The vocabulary that was made of a folder.
struct ImportedVocabulary {
  std::string model_bytes;             // the SentencePiece model
  std::vector<std::string> languages;  // sorted
  std::vector<int64_t> rows;           // [our id]: the row of the imported embedding; empty: itself
  std::string hash;                    // Vocabulary::hash()
  std::vector<std::string> notes;      // a sentence for each kind of piece that does not fit
};

// Reads what WriteHfTokenizer() wrote. Fails unless it has the hash that `exported` says, if any.
absl::StatusOr<ImportedVocabulary> ReadExportedVocabulary(FileSystem& fs, const std::string& folder,
                                                          const ExportedCheckpoint& exported);

// Reads sentencepiece.bpe.model and vocab.json of `folder`. Our order of pieces is that of the
// SentencePiece model; vocab.json has another one, so rows are found by piece. Rows without a piece
// (made-up words that pad the vocabulary) become pieces that no text is cut into, so that the
// softmax is over the same rows. A piece that vocab.json does not have gets the row of <unk>, as in
// M2M100Tokenizer.
absl::StatusOr<ImportedVocabulary> ReadM2mVocabulary(FileSystem& fs, const std::string& folder,
                                                     int64_t vocabulary_size,
                                                     const ToolOptions& options);

}  // namespace deepnet
