// In the second reading lines are read into one batch a thread; the batches are tokenized side by
// side, then written in the order in which they were read: the shard is the same for any number of
// threads.
#include "trainer/data/prepare/corpus_passes.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/start_thread.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

// 64 MiB while duplicates are looked for.
constexpr int64_t kDuplicateRecords = int64_t{1} << 22;

// A text has about so many blocks, for ranks to share; a larger one has larger blocks, up to
// kMaxBlockFactor smallest ones. A compressed text is read from its beginning for each block, so
// its blocks are at least as large, and no more than kMaxCompressedBlocks.
constexpr int64_t kBlocksOfText = 32;
constexpr int64_t kMaxBlockFactor = 8;
constexpr int64_t kMaxCompressedBlocks = 16;

int64_t DivideUp(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Cuts a text that is being read into blocks.
class BlockCutter {
 public:
  BlockCutter(int text, int64_t block_lines) : text_(text), block_lines_(block_lines) {}

  // Says where the next line is, before it is read.
  void Before(const PairReader& reader, int64_t line, int64_t bit) {
    if (line % block_lines_ != 0) return;
    Finish();
    next_.set_text(text_);
    next_.set_line(line);
    next_.set_bit(bit);
    for (const int64_t offset : reader.offsets()) next_.add_offset(offset);
  }

  // Says what became of the line.
  void After(DropReason reason, uint64_t hash) {
    next_.set_lines(next_.lines() + 1);
    const char byte = static_cast<char>(reason);
    judged_.Update({&byte, 1});
    if (reason == DropReason::kNone) {
      judged_.Update({reinterpret_cast<const char*>(&hash), sizeof(hash)});
    }
  }

  // Returns the blocks of the text.
  std::vector<TextBlock> Blocks(bool compressed) {
    Finish();
    const int64_t count = std::ssize(blocks_);
    const int64_t group =
        compressed ? std::max(kMaxBlockFactor, DivideUp(count, kMaxCompressedBlocks))
                   : std::clamp<int64_t>(DivideUp(count, kBlocksOfText), 1, kMaxBlockFactor);
    std::vector<TextBlock> taken;
    for (int64_t i = 0; i < count; ++i) {
      if (i % group == 0) {
        taken.push_back(blocks_[i]);
        continue;
      }
      TextBlock& last = taken.back();
      last.set_lines(last.lines() + blocks_[i].lines());
      last.set_judged(HashBytes(absl::StrCat(blocks_[i].judged()), last.judged()));
    }
    return taken;
  }

 private:
  void Finish() {
    next_.set_judged(judged_.Digest());
    if (next_.lines() > 0) blocks_.push_back(next_);
    next_.Clear();
    judged_ = ContentHasher();
  }

  const int text_;
  const int64_t block_lines_;
  std::vector<TextBlock> blocks_;
  TextBlock next_;
  ContentHasher judged_;
};

uint64_t HashPair(const RawPair& pair) { return HashBytes(pair.second, HashBytes(pair.first)); }

// The words of the bits of a block.
std::string_view BitsOf(const TextBlock& block, const std::vector<uint64_t>& bits) {
  const auto first = static_cast<size_t>(block.bit() / 64);
  const auto count = static_cast<size_t>((block.lines() + 63) / 64);
  return {reinterpret_cast<const char*>(&bits[first]), count * sizeof(uint64_t)};
}

constexpr size_t kBatchLines = 8192;
constexpr size_t kBatchBytes = size_t{4} << 20;

// The pairs of a batch after filters and tokenizer.
struct EncodedBatch {
  std::vector<int32_t> tokens;                     // of the kept pairs, first then second
  std::vector<std::pair<size_t, size_t>> lengths;  // pieces of each kept pair
  DropCounts counts;
};

// Pairs in the order of their text, with a copy of it.
class LineBatch {
 public:
  struct Line {
    RawPair pair;  // views of text_
    bool duplicate;
  };

  bool IsFull() const { return lines_.size() >= kBatchLines || text_.size() >= kBatchBytes; }

  void Add(RawPair pair, bool duplicate) {
    text_.reserve(kBatchBytes + 2 * LineReader::kMaxLineBytes);  // so that views stay valid
    pair.first = Copy(pair.first);
    pair.second = Copy(pair.second);
    lines_.push_back({pair, duplicate});
  }

  const std::vector<Line>& lines() const { return lines_; }

 private:
  std::string_view Copy(std::string_view side) {
    return {text_.append(side).data() + text_.size() - side.size(), side.size()};
  }

  std::string text_;
  std::vector<Line> lines_;
};

// `tag`: what the first sides begin with, if anything.
EncodedBatch Encode(const LineBatch& batch, const TextFilter::LanguagePair& languages,
                    const EncodeSpec& spec, std::optional<int32_t> tag, const PairReader& reader) {
  EncodedBatch result;
  for (auto [pair, duplicate] : batch.lines()) {
    DropReason reason = spec.filter->Judge(languages, &pair);
    if (reason == DropReason::kNone && duplicate) reason = DropReason::kDuplicate;
    if (reason == DropReason::kNone) {
      std::vector<int32_t> first = spec.vocabulary->Encode(pair.first);
      const std::vector<int32_t> second = spec.vocabulary->Encode(pair.second);
      reason = JudgeLengths(spec.cleaning, static_cast<int64_t>(first.size()),
                            static_cast<int64_t>(second.size()));
      if (reason == DropReason::kNone) {
        if (tag.has_value()) first.insert(first.begin(), *tag);
        result.tokens.insert(result.tokens.end(), first.begin(), first.end());
        result.tokens.insert(result.tokens.end(), second.begin(), second.end());
        result.lengths.emplace_back(first.size(), second.size());
      }
    }
    result.counts.Add(reason, reader, pair.line);
  }
  return result;
}

// Lines of a block that are yet to be read.
struct RestOfBlock {
  int64_t bit = 0;  // of the next line
  int64_t lines = 0;
};

// Fills a batch up from `reader`, to the end of the block at most.
absl::Status Fill(const std::vector<uint64_t>& duplicate_bits, PairReader* reader,
                  RestOfBlock* rest, LineBatch* batch) {
  RawPair pair;
  for (; rest->lines > 0 && !batch->IsFull(); --rest->lines, ++rest->bit) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
    if (!more) {
      return absl::DataLossError(
          absl::StrCat(reader->Location(pair.line), ": fewer lines than when it was read first"));
    }
    const uint64_t word = duplicate_bits[static_cast<size_t>(rest->bit / 64)];
    batch->Add(pair, (word >> (rest->bit % 64) & 1) != 0);
  }
  return absl::OkStatus();
}

absl::Status Write(const EncodedBatch& batch, ShardWriter* shard, EncodedTotals* totals) {
  std::span<const int32_t> rest = batch.tokens;
  for (const auto& [first, second] : batch.lengths) {
    RETURN_IF_ERROR(shard->Add(rest.first(first), rest.subspan(first, second)));
    rest = rest.subspan(first + second);
    totals->first_tokens += static_cast<int64_t>(first);
    totals->second_tokens += static_cast<int64_t>(second);
    totals->longest = std::max(totals->longest, static_cast<int32_t>(std::max(first, second)));
  }
  totals->counts.Add(batch.counts);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EncodedBatch>> EncodeSideBySide(
    const std::vector<LineBatch>& batches, const TextFilter::LanguagePair& languages,
    const EncodeSpec& spec, std::optional<int32_t> tag, const PairReader& reader) {
  std::vector<EncodedBatch> results(batches.size());
  std::vector<std::thread> threads;
  absl::Status started;
  for (size_t i = 1; i < batches.size() && started.ok(); ++i) {
    auto thread =
        StartThread([&, i] { results[i] = Encode(batches[i], languages, spec, tag, reader); });
    started = WithPrefix(absl::StrCat("prepare.threads: ", i, " of ", batches.size(), " run"),
                         thread.status());
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  if (started.ok()) results[0] = Encode(batches[0], languages, spec, tag, reader);
  for (std::thread& thread : threads) thread.join();
  RETURN_IF_ERROR(started);
  return results;
}

}  // namespace

absl::Status JudgeTexts(
    const LanguagePairTexts& texts, std::string_view split, const TextFilter& filter,
    const FileSeenFn& seen,
    const std::function<absl::Status(DropReason, const RawPair&, const PairReader&)>& visit) {
  for (const ParallelFiles& text : texts.Of(split)) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
    TextFilter::LanguagePair languages = TextFilter::LanguagePair::Of(texts, text);
    languages.is_training = split == "train";
    RawPair pair;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
      if (!more) break;
      RETURN_IF_ERROR(visit(filter.Judge(languages, &pair), pair, *reader));
    }
    if (seen) reader->ForEachFile(seen);
  }
  return absl::OkStatus();
}

// The bits of each text begin with a word, so that blocks have words of their own.
absl::StatusOr<ScanResult> ScanTraining(const LanguagePairTexts& texts, const TextFilter& filter,
                                        const ScanSpec& spec, const FileSeenFn& seen) {
  ScanResult result;
  DuplicateFinder finder(spec.folder, kDuplicateRecords);
  int64_t bit = 0;
  for (size_t i = 0; i < texts.train.size(); ++i) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(texts.train[i]));
    const auto languages = TextFilter::LanguagePair::Of(texts, texts.train[i]);
    BlockCutter blocks(static_cast<int>(i), spec.block_lines);
    RawPair pair;
    for (int64_t line = 0;; ++line, ++bit, ++result.num_lines) {
      blocks.Before(*reader, line, bit);
      ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
      if (!more) break;
      const DropReason reason = filter.Judge(languages, &pair);
      const uint64_t hash = reason == DropReason::kNone ? HashPair(pair) : 0;
      blocks.After(reason, hash);
      if (reason != DropReason::kNone) continue;
      if (spec.find_duplicates) RETURN_IF_ERROR(finder.Add(bit, hash));
      if (spec.sample != nullptr) {
        spec.sample->Add(0, pair.first);
        spec.sample->Add(1, pair.second);
      }
    }
    reader->ForEachFile(seen);
    for (TextBlock& block : blocks.Blocks(reader->compressed()))
      result.blocks.push_back(std::move(block));
    bit = (bit + 63) / 64 * 64;
  }
  ASSIGN_OR_RETURN(result.duplicate_bits, finder.Finish());
  result.duplicate_bits.resize(static_cast<size_t>(bit / 64));
  for (TextBlock& block : result.blocks) {
    block.set_judged(HashBytes(BitsOf(block, result.duplicate_bits), block.judged()));
  }
  return result;
}

absl::Status SampleTraining(const LanguagePairTexts& texts, const TextFilter& filter,
                            int64_t num_added, SentenceSample* sample) {
  return JudgeTexts(texts, "train", filter, nullptr,
                    [&](DropReason reason, const RawPair& pair, const PairReader& /*reader*/) {
                      if (reason != DropReason::kNone) return absl::OkStatus();
                      if (--num_added < 0) sample->Add(texts.first, pair.first);
                      if (--num_added < 0) sample->Add(texts.second, pair.second);
                      return absl::OkStatus();
                    });
}

absl::StatusOr<DropCounts> CountDrops(std::span<const LanguagePairTexts* const> pairs,
                                      const TextFilter& filter) {
  DropCounts counts;
  const auto count = [&](DropReason reason, const RawPair& pair, const PairReader& reader) {
    counts.Add(reason, reader, pair.line);
    return absl::OkStatus();
  };
  for (const LanguagePairTexts* texts : pairs) {
    RETURN_IF_ERROR(JudgeTexts(*texts, "train", filter, nullptr, count));
  }
  return counts;
}

absl::StatusOr<EncodedTotals> EncodeBlock(const LanguagePairTexts& texts, const TextBlock& block,
                                          const EncodeSpec& spec,
                                          const std::vector<uint64_t>& duplicate_bits,
                                          ShardWriter* shard) {
  const ParallelFiles& text = texts.train[static_cast<size_t>(block.text())];
  const auto languages = TextFilter::LanguagePair::Of(texts, text);
  const std::optional<int32_t> tag = spec.vocabulary->TagId(texts.tag);
  ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
  const std::vector<int64_t> offsets(block.offset().begin(), block.offset().end());
  if (block.line() > 0) RETURN_IF_ERROR(reader->SkipTo(block.line(), offsets));
  EncodedTotals totals;
  for (RestOfBlock rest = {block.bit(), block.lines()}; rest.lines > 0;) {
    std::vector<LineBatch> batches(static_cast<size_t>(spec.num_threads));
    for (LineBatch& batch : batches) {
      RETURN_IF_ERROR(Fill(duplicate_bits, reader.get(), &rest, &batch));
    }
    ASSIGN_OR_RETURN(const std::vector<EncodedBatch> encoded,
                     EncodeSideBySide(batches, languages, spec, tag, *reader));
    for (const EncodedBatch& batch : encoded) {
      RETURN_IF_ERROR(Write(batch, shard, &totals));
    }
  }
  return totals;
}

}  // namespace deepnet
