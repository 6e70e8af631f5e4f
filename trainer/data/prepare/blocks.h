// The second reading of the training text, shared between ranks: blocks of lines are encoded, and
// the shards made of them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "proto/prepare.pb.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/context.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

class EncodedBlocks {
 public:
  // Lists the blocks of context.scans. `tokenizer` is the model of `vocabulary`; all are borrowed.
  EncodedBlocks(PrepareContext& context, const std::string& tokenizer,
                const Vocabulary& vocabulary);

  // Finds what is encoded already, in the scratch folder or in the corpus that is replaced, and
  // encodes the rest: each rank the blocks dealt to it, then those that others have not begun.
  // Collective.
  absl::Status Encode();

  // Writes the shard of every language pair of context.trained, in the temporary folder. Returns
  // for each the file and the counts of the pair. Collective.
  absl::StatusOr<std::vector<PreparedPart>> WriteShards();

  // Returns the list of blocks that goes with the corpus.
  std::string PartsText() const;

 private:
  // A block on its way into a shard.
  struct Block {
    size_t pair = 0;  // of context.trained
    const TextBlock* block = nullptr;
    PreparedPart part = {};  // with nothing but a key: yet to be encoded
  };
  // Pairs [first, first + count) of a shard.
  struct Pairs {
    std::string path;
    int64_t first = 0;
    int64_t count = 0;
  };

  const LanguagePairTexts& TextsOf(const Block& it) const { return *context_.trained[it.pair]; }
  uint64_t EncodeKey(const Block& it, const std::string& tokenizer) const;
  absl::Status Find();
  absl::Status FindEarlier();
  void WarnOfDrops() const;                           // of each text
  absl::Status NoteEncoded(const CorpusParts& mine);  // of all ranks
  absl::Status EncodeOne(const std::vector<uint64_t>& bits, Block* it);
  absl::StatusOr<std::vector<uint64_t>> ReadBits(const PreparedPart& scan) const;
  Pairs PairsOf(const PreparedPart& part) const;
  absl::StatusOr<CorpusFile> WriteShard(const LanguagePairTexts& texts,
                                        const std::vector<Pairs>& sources) const;
  absl::Status LinkOrCopy(const std::vector<Pairs>& sources, const std::string& path) const;

  PrepareContext& context_;
  const Vocabulary& vocabulary_;
  const TextFilter filter_;
  std::map<uint64_t, EarlierPart> earlier_;  // of the corpus that is replaced
  std::vector<Block> blocks_;                // in the order of their pairs
};

}  // namespace deepnet
