// Lines are read into one chunk a thread, the chunks are cut into pieces side by side, then written
// in the order in which they were read: the shard is the same for any number of threads.
#include "trainer/data/encode_pass.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr size_t kChunkLines = 8192;
constexpr size_t kChunkBytes = size_t{4} << 20;

// A pair whose text lies in its chunk.
struct StoredPair {
  size_t first_begin;
  size_t second_begin;
  size_t end;
  RawPair facts;  // all but the views
  bool duplicate;
};

// What became of a chunk.
struct EncodedChunk {
  std::vector<int32_t> tokens;                     // of the kept pairs, first then second
  std::vector<std::pair<size_t, size_t>> lengths;  // pieces of each kept pair
  std::array<int64_t, kNumDropReasons> lines = {};
  std::array<int64_t, kNumDropReasons> example = {};  // line number of the first of each reason
};

struct Chunk {
  std::string text;
  std::vector<StoredPair> pairs;

  bool IsFull() const { return pairs.size() >= kChunkLines || text.size() >= kChunkBytes; }

  void Add(const RawPair& pair, bool duplicate) {
    StoredPair stored = {text.size(), text.size() + pair.first.size(), 0, pair, duplicate};
    text.append(pair.first).append(pair.second);
    stored.end = text.size();
    pairs.push_back(stored);
  }

  RawPair View(const StoredPair& stored) const {
    const std::string_view all = text;
    RawPair pair = stored.facts;
    pair.first = all.substr(stored.first_begin, stored.second_begin - stored.first_begin);
    pair.second = all.substr(stored.second_begin, stored.end - stored.second_begin);
    return pair;
  }
};

EncodedChunk Encode(const Chunk& chunk, const TextFilter::LanguagePair& languages,
                    const EncodeSpec& spec) {
  EncodedChunk result;
  for (const StoredPair& stored : chunk.pairs) {
    RawPair pair = chunk.View(stored);
    DropReason reason = spec.filter->Judge(languages, &pair);
    if (reason == DropReason::kNone && stored.duplicate) reason = DropReason::kDuplicate;
    if (reason == DropReason::kNone) {
      const std::vector<int32_t> first = spec.vocabulary->Encode(pair.first);
      const std::vector<int32_t> second = spec.vocabulary->Encode(pair.second);
      reason = JudgeLengths(spec.cleaning, static_cast<int64_t>(first.size()),
                            static_cast<int64_t>(second.size()));
      if (reason == DropReason::kNone) {
        result.tokens.insert(result.tokens.end(), first.begin(), first.end());
        result.tokens.insert(result.tokens.end(), second.begin(), second.end());
        result.lengths.emplace_back(first.size(), second.size());
      }
    }
    const auto place = static_cast<size_t>(reason);
    if (result.lines[place]++ == 0) result.example[place] = pair.line;
  }
  return result;
}

// Fills chunks up from `reader`; false at the end of the text.
absl::StatusOr<bool> Fill(const std::vector<uint64_t>& duplicate_bits, PairReader* reader,
                          size_t* line, Chunk* chunk) {
  RawPair pair;
  while (!chunk->IsFull()) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
    if (!more) return false;
    const bool duplicate =
        *line / 64 < duplicate_bits.size() && (duplicate_bits[*line / 64] >> (*line % 64) & 1) != 0;
    chunk->Add(pair, duplicate);
    ++*line;
  }
  return true;
}

absl::Status Write(const EncodedChunk& chunk, const PairReader& reader, ShardWriter* shard,
                   EncodedTotals* totals) {
  std::span<const int32_t> rest = chunk.tokens;
  for (const auto& [first, second] : chunk.lengths) {
    RETURN_IF_ERROR(shard->Add(rest.first(first), rest.subspan(first, second)));
    rest = rest.subspan(first + second);
    totals->first_tokens += static_cast<int64_t>(first);
    totals->second_tokens += static_cast<int64_t>(second);
    totals->longest = std::max(totals->longest, static_cast<int32_t>(std::max(first, second)));
  }
  for (size_t reason = 0; reason < chunk.lines.size(); ++reason) {
    if (chunk.lines[reason] > 0 && totals->counts.lines[reason] == 0) {
      totals->counts.examples[reason] = reader.Location(chunk.example[reason]);
    }
    totals->counts.lines[reason] += chunk.lines[reason];
  }
  return absl::OkStatus();
}

std::vector<EncodedChunk> EncodeSideBySide(const std::vector<Chunk>& chunks,
                                           const TextFilter::LanguagePair& languages,
                                           const EncodeSpec& spec) {
  std::vector<EncodedChunk> results(chunks.size());
  std::vector<std::thread> threads;
  for (size_t i = 1; i < chunks.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Encode(chunks[i], languages, spec); });
  }
  results[0] = Encode(chunks[0], languages, spec);
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace

absl::StatusOr<EncodedTotals> EncodeTraining(const LanguagePairTexts& texts, const EncodeSpec& spec,
                                             const std::vector<uint64_t>& duplicate_bits,
                                             ShardWriter* shard) {
  EncodedTotals totals;
  size_t line = 0;
  for (const ParallelFiles& text : texts.train) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
    const TextFilter::LanguagePair languages = FilterPair(texts, text);
    for (bool more = true; more;) {
      std::vector<Chunk> chunks(static_cast<size_t>(spec.num_threads));
      for (Chunk& chunk : chunks) {
        if (!more) break;
        ASSIGN_OR_RETURN(more, Fill(duplicate_bits, reader.get(), &line, &chunk));
      }
      for (const EncodedChunk& chunk : EncodeSideBySide(chunks, languages, spec)) {
        RETURN_IF_ERROR(Write(chunk, *reader, shard, &totals));
      }
    }
  }
  return totals;
}

}  // namespace deepnet
