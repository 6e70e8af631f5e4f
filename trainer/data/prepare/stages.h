// The stages of Prepare() that have files of their own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "proto/prepare.pb.h"
#include "trainer/data/prepare/context.h"
#include "trainer/data/sentence_pieces.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

// folder.cc: the place of a corpus, claimed by one process, filled under another name, published by
// renaming. Used by rank 0 alone.
class CorpusFolder {
 public:
  explicit CorpusFolder(PrepareContext& context) : context_(context) {}

  // Deletes the temporary folder if there is nothing in it to continue with and no other rank may
  // still work in it.
  ~CorpusFolder();
  CorpusFolder(const CorpusFolder&) = delete;
  CorpusFolder& operator=(const CorpusFolder&) = delete;

  // Takes the lock and makes the temporary folder, with what an earlier preparation has finished;
  // or returns the report of a corpus that is there already and is the one asked for. Fails if the
  // place is taken or another process has the lock.
  absl::StatusOr<std::optional<CorpusReport>> Claim();

  // Renames the temporary folder, whose files are complete and durable, to the output folder.
  absl::Status Publish();

 private:
  PrepareContext& context_;
  int lock_ = -1;  // its file
  bool owns_temporary_ = false;
};

// Returns the spec without the fields that do not change the result.
PrepareSpec CanonicalSpec(PrepareSpec spec);

// scan.cc is the first reading of the training text. Fills context.scans: ranks scan the language
// pairs that are dealt to them, or find them scanned. Each has its blocks, a file of duplicate bits
// and, where a tokenizer is to be learned, a log of the sample. Collective.
absl::Status ScanTexts(PrepareContext& context);

// tokenizer.cc takes what is given, or of the corpus that is extended, or learns from the sample.
bool LearnsTokenizer(const PrepareContext& context);

// Returns the path of the rules by which the tokenizer that is, or once was, learned rewrites text;
// empty: these are no file.
std::string NormalizationFile(const PrepareContext& context);

// Returns what the sentences are sampled by that a tokenizer learns from.
SentenceSampleSpec SampleSpecOf(const PrepareSpec& spec);

// Returns the bytes of the model on every rank; rank 0 has made or read it. Collective.
absl::StatusOr<std::string> MakeTokenizer(PrepareContext& context);

// blocks.cc is the second reading of the training text, which returns this.
struct EncodedCorpus {
  std::vector<PreparedPart> shards;  // file and counts of each language pair of context.trained
  std::string parts;                 // the list of blocks that goes with the corpus
};

// Encodes the blocks of context.scans, shared between ranks, and writes the shards to the temporary
// folder. `tokenizer` is the model of `vocabulary`. Collective.
absl::StatusOr<EncodedCorpus> EncodeCorpus(PrepareContext& context, const std::string& tokenizer,
                                           const Vocabulary& vocabulary);

}  // namespace deepnet
