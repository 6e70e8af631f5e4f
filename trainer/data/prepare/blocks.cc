#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/text_format.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/prepare/stages.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

std::string NameOf(const PreparedPart& part) { return absl::StrFormat("%016x", part.key()); }

std::string PairsName(const PreparedPart& part) { return NameOf(part) + ".pairs"; }

absl::StatusOr<CorpusFile> FileAt(const fs::path& path, uint64_t hash) {
  CorpusFile file;
  file.set_name(path.filename());
  ASSIGN_OR_RETURN(const int64_t bytes, MakePosixFileSystem()->Size(path));
  file.set_bytes(bytes);
  file.set_hash(hash);
  return file;
}

constexpr size_t kBatchLines = 8192;
constexpr size_t kBatchBytes = size_t{4} << 20;

// Pairs in the order of their text, with a copy of it.
struct LineBatch {
  struct Line {
    RawPair pair;  // views of `text`
    bool duplicate;
  };

  bool IsFull() const { return lines.size() >= kBatchLines || text.size() >= kBatchBytes; }

  void Add(RawPair pair, bool duplicate) {
    text.reserve(kBatchBytes + 2 * LineReader::kMaxLineBytes);  // so that views stay valid
    for (std::string_view* side : {&pair.first, &pair.second}) {
      *side = {text.append(*side).data() + text.size() - side->size(), side->size()};
    }
    lines.push_back({pair, duplicate});
  }

  std::string text;
  std::vector<Line> lines;
};

// The pairs of a batch after filters and tokenizer.
struct EncodedBatch {
  std::vector<int32_t> tokens;                     // of the kept pairs, first then second
  std::vector<std::pair<size_t, size_t>> lengths;  // pieces of each kept pair
  DropCounts counts;
};

// Appends the kept pairs of one block to a shard in the order of the text; the first sides of
// synthetic text begin with its tag. Lines are read into one batch a thread; the batches are
// tokenized side by side, then written in the order in which they were read: the shard is the same
// for any number of threads. Memory: some 10 MiB a thread.
class BlockEncoder {
 public:
  BlockEncoder(const TextFilter& filter, const Vocabulary& vocabulary,
               const LanguagePairTexts& texts)
      : filter_(filter),
        vocabulary_(vocabulary),
        texts_(texts),
        tag_(vocabulary.TagId(texts.tag)) {}

  // `duplicate_bits` as the scan gives them. Returns the counts of the block. Once.
  absl::StatusOr<LanguagePairReport> Run(const TextBlock& block, int num_threads,
                                         const std::vector<uint64_t>& duplicate_bits,
                                         ShardWriter& shard) {
    const ParallelFiles& text = texts_.train[static_cast<size_t>(block.text())];
    languages_ = TextFilter::LanguagePair::Of(texts_, text);
    ASSIGN_OR_RETURN(reader_, PairReader::Open(text));
    const std::vector<int64_t> offsets(block.offset().begin(), block.offset().end());
    if (block.line() > 0) RETURN_IF_ERROR(reader_->SkipTo(block.line(), offsets));
    const int64_t end = block.bit() + block.lines();
    for (int64_t bit = block.bit(); bit < end;) {
      std::vector<LineBatch> batches(static_cast<size_t>(num_threads));
      for (LineBatch& batch : batches) {
        for (RawPair pair; bit < end && !batch.IsFull(); ++bit) {
          ASSIGN_OR_RETURN(const bool more, reader_->Next(&pair));
          if (!more) {
            return DataLoss(reader_->Location(pair.line),
                            ": fewer lines than when it was read first");
          }
          const uint64_t word = duplicate_bits[static_cast<size_t>(bit / 64)];
          batch.Add(pair, (word >> (bit % 64) & 1) != 0);
        }
      }
      ASSIGN_OR_RETURN(const std::vector<EncodedBatch> encoded, EncodeSideBySide(batches));
      for (const EncodedBatch& batch : encoded) RETURN_IF_ERROR(Write(batch, shard));
    }
    LanguagePairReport report = MakePairReport(texts_, "train", counts_);
    SetLengths(first_tokens_, second_tokens_, longest_, &report);
    return report;
  }

 private:
  EncodedBatch Encode(const LineBatch& batch) const {
    EncodedBatch result;
    for (auto [pair, duplicate] : batch.lines) {
      DropReason reason = filter_.Judge(languages_, &pair);
      if (reason == DropReason::kNone && duplicate) reason = DropReason::kDuplicate;
      if (reason == DropReason::kNone) {
        std::vector<int32_t> first = vocabulary_.Encode(pair.first);
        const std::vector<int32_t> second = vocabulary_.Encode(pair.second);
        reason = filter_.JudgeLengths(std::ssize(first), std::ssize(second));
        if (reason == DropReason::kNone) {
          if (tag_.has_value()) first.insert(first.begin(), *tag_);
          result.tokens.insert(result.tokens.end(), first.begin(), first.end());
          result.tokens.insert(result.tokens.end(), second.begin(), second.end());
          result.lengths.emplace_back(first.size(), second.size());
        }
      }
      result.counts.Add(reason, *reader_, pair.line);
    }
    return result;
  }

  absl::StatusOr<std::vector<EncodedBatch>> EncodeSideBySide(
      const std::vector<LineBatch>& batches) const {
    std::vector<EncodedBatch> results(batches.size());
    std::vector<std::thread> threads;
    absl::Status started;
    for (size_t i = 1; i < batches.size() && started.ok(); ++i) {
      auto thread = StartThread([&, i] { results[i] = Encode(batches[i]); });
      started = WithPrefix(absl::StrCat("prepare.threads: ", i, " of ", batches.size(), " run"),
                           thread.status());
      if (thread.ok()) threads.push_back(*std::move(thread));
    }
    if (started.ok()) results[0] = Encode(batches[0]);
    for (std::thread& thread : threads) thread.join();
    RETURN_IF_ERROR(started);
    return results;
  }

  absl::Status Write(const EncodedBatch& batch, ShardWriter& shard) {
    std::span<const int32_t> rest = batch.tokens;
    for (const auto& [first, second] : batch.lengths) {
      RETURN_IF_ERROR(shard.Add(rest.first(first), rest.subspan(first, second)));
      rest = rest.subspan(first + second);
      first_tokens_ += static_cast<int64_t>(first);
      second_tokens_ += static_cast<int64_t>(second);
      longest_ = std::max(longest_, static_cast<int32_t>(std::max(first, second)));
    }
    counts_.Add(batch.counts);
    return absl::OkStatus();
  }

  const TextFilter& filter_;
  const Vocabulary& vocabulary_;
  const LanguagePairTexts& texts_;
  const std::optional<int32_t> tag_;  // what the first sides begin with
  TextFilter::LanguagePair languages_;
  std::unique_ptr<PairReader> reader_;
  // Sums over the pairs that were kept.
  DropCounts counts_;
  int64_t first_tokens_ = 0;  // pieces
  int64_t second_tokens_ = 0;
  int32_t longest_ = 0;  // pieces of the longest side
};

class EncodedBlocks {
 public:
  // Lists the blocks of context.scans. `tokenizer` is the model of `vocabulary`; all are borrowed.
  EncodedBlocks(PrepareContext& context, const std::string& tokenizer, const Vocabulary& vocabulary)
      : context_(context), vocabulary_(vocabulary), filter_(context.Filter()) {
    for (size_t pair = 0; pair < context_.scans.size(); ++pair) {
      for (const TextBlock& block : context_.scans[pair].blocks()) {
        blocks_.push_back({pair, &block});
        blocks_.back().part.set_key(EncodeKey(blocks_.back(), tokenizer));
      }
    }
  }

  absl::StatusOr<EncodedCorpus> Run() {
    RETURN_IF_ERROR(FindEarlier());
    RETURN_IF_ERROR(Find());
    RETURN_IF_ERROR(EncodeRest());
    EncodedCorpus corpus;
    ASSIGN_OR_RETURN(corpus.shards, WriteShards());
    if (context_.IsFirst()) corpus.parts = PartsText();
    return corpus;
  }

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

  // Encodes what was not found: each rank the blocks dealt to it, then those that others have not
  // begun.
  absl::Status EncodeRest() {
    std::vector<size_t> open;  // of blocks_
    std::vector<int64_t> costs;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (!blocks_[i].part.files().empty()) continue;
      open.push_back(i);
      costs.push_back(blocks_[i].block->lines());
    }
    CorpusParts mine;
    std::vector<uint64_t> bits;
    const LanguagePairTexts* bits_of = nullptr;
    for (const size_t i : ClaimOrder(Deal(costs, context_.world.size()), context_.world.rank())) {
      Block& it = blocks_[open[i]];
      ASSIGN_OR_RETURN(const bool is_mine,
                       context_.parts.Claim(absl::StrCat(NameOf(it.part), ".", context_.token)));
      if (!is_mine) continue;
      if (bits_of != &TextsOf(it)) {
        bits_of = &TextsOf(it);
        ASSIGN_OR_RETURN(bits, ReadBits(context_.scans[it.pair]));
      }
      RETURN_IF_ERROR(EncodeOne(bits, &it));
      *mine.add_parts() = it.part;
    }
    return NoteEncoded(mine);
  }

  absl::StatusOr<std::vector<PreparedPart>> WriteShards() {
    std::vector<std::vector<const PreparedPart*>> blocks(context_.trained.size());
    std::vector<int64_t> costs(blocks.size(), 0);
    for (const Block& it : blocks_) {
      blocks[it.pair].push_back(&it.part);
      costs[it.pair] += it.part.counts().kept();
    }
    if (context_.IsFirst()) WarnOfDrops();
    const std::vector<int> owners = Deal(costs, context_.world.size());
    CorpusParts mine;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (owners[i] != context_.world.rank()) continue;
      ASSIGN_OR_RETURN(*mine.add_parts(), WriteShard(*context_.trained[i], blocks[i]));
    }
    return context_.AllGatherParts(mine, owners);
  }

  std::string PartsText() const {
    CorpusParts parts;
    for (const Block& it : blocks_) {
      PreparedPart& part = *parts.add_parts();
      part.set_key(it.part.key());
      part.add_files()->set_name(ShardFileName(TextsOf(it).Name()));
      *part.mutable_counts() = it.part.counts();
    }
    std::string text;
    google::protobuf::TextFormat::PrintToString(parts, &text);
    return text;
  }

  // The place is part of the key because the counts name it; so is the number of a tag, which a
  // language that is added changes.
  uint64_t EncodeKey(const Block& it, const std::string& tokenizer) const {
    const ParallelFiles& text = TextsOf(it).train[static_cast<size_t>(it.block->text())];
    const std::optional<int32_t> tag = vocabulary_.TagId(TextsOf(it).tag);
    const std::string facts[] = {
        "encode 1",
        absl::StrCat(TextsOf(it).Name(), tag.has_value() ? absl::StrCat(" ", *tag) : ""),
        tokenizer,
        absl::StrCat(filter_.spec().max_sentence_tokens(), " ", filter_.spec().max_length_ratio()),
        absl::StrCat(text.first_file, " ", text.second_file, " ",
                     text.origin.empty() ? text.tsv_file : text.origin),
        absl::StrCat(it.block->line(), " ", it.block->lines(), " ", it.block->judged())};
    return KeyOf(facts);
  }

  // Finds what is encoded already, in the scratch folder or in the corpus that is replaced.
  absl::Status Find() {
    CorpusParts mine;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (!context_.IsMine(i)) continue;
      const PreparedPart& wanted = blocks_[i].part;
      const auto earlier = earlier_.find(wanted.key());
      auto found = context_.parts.Find(NameOf(wanted), wanted.key());
      if (!found.has_value() && earlier != earlier_.end()) found = earlier->second.part;
      *mine.add_parts() = found.value_or(wanted);
    }
    ASSIGN_OR_RETURN(std::vector<PreparedPart> found,
                     context_.AllGatherParts(mine, context_.OwnersInTurn(blocks_.size())));
    int64_t num_found = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].part = std::move(found[i]);
      num_found += blocks_[i].part.files().empty() ? 0 : 1;
    }
    if (num_found > 0) {
      context_.Say(absl::StrCat(num_found, " of ", blocks_.size(), " blocks are encoded already"));
    }
    return absl::OkStatus();
  }

  // Fills earlier_ with the parts that are wanted and whose shards are intact. Ranks share the
  // shards.
  absl::Status FindEarlier() {
    std::map<uint64_t, EarlierPart> all = ReadEarlierParts(context_.output);
    std::map<std::string, std::vector<uint64_t>> wanted;  // keys by shard
    for (const Block& it : blocks_) {
      const auto found = all.find(it.part.key());
      if (found != all.end()) wanted[found->second.part.files(0).name()].push_back(found->first);
    }
    CorpusParts damaged;
    size_t number = 0;
    for (const auto& [name, keys] : wanted) {
      if (!context_.IsMine(number++)) continue;
      const auto shard = Shard::Open(absl::StrCat(context_.output, "/", name), vocabulary_.size());
      const auto is_inside = [&](uint64_t key) {
        const EarlierPart& it = all.at(key);
        const int64_t kept = it.part.counts().kept();
        return kept >= 0 && kept <= shard->num_pairs() - it.first_pair;
      };
      const bool intact =
          shard.ok() && shard->CheckContent().ok() && std::ranges::all_of(keys, is_inside);
      if (!intact) damaged.add_parts()->add_files()->set_name(name);
    }
    ASSIGN_OR_RETURN(const std::vector<CorpusParts> of_ranks,
                     AllGatherMessages(context_.world, damaged));
    for (const CorpusParts& parts : of_ranks) {
      for (const PreparedPart& part : parts.parts()) {
        const std::string& name = part.files(0).name();
        context_.Say(absl::StrCat("warning: ", name,
                                  " of the earlier corpus is damaged: encoding it again"));
        wanted.erase(name);
      }
    }
    for (const auto& [name, keys] : wanted) {
      for (const uint64_t key : keys) earlier_[key] = std::move(all.at(key));
    }
    return absl::OkStatus();
  }

  absl::Status EncodeOne(const std::vector<uint64_t>& bits, Block* it) {
    const LanguagePairTexts& texts = TextsOf(*it);
    PreparedPart& part = it->part;
    const std::string path = JoinPath(context_.OwnFolder(), PairsName(part));
    ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(path, vocabulary_.size()));
    ASSIGN_OR_RETURN(*part.mutable_counts(),
                     BlockEncoder(filter_, vocabulary_, texts)
                         .Run(*it->block, context_.num_threads, bits, *shard));
    RETURN_IF_ERROR(shard->Finish());
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
    ASSIGN_OR_RETURN(*part.add_files(), FileAt(path, hash));
    *part.add_blocks() = *it->block;
    RETURN_IF_ERROR(context_.Keep(NameOf(part), part));
    context_.Say(absl::StrCat("encoded ", texts.Name(), " from line ", it->block->line() + 1, ": ",
                              part.counts().kept(), " pairs of ", part.counts().lines(), " lines"));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<uint64_t>> ReadBits(const PreparedPart& scan) const {
    const std::string path = context_.parts.Path(scan.files(0).name());
    ASSIGN_OR_RETURN(const int64_t bytes, context_.files->Size(path));
    std::vector<uint64_t> bits(static_cast<size_t>(bytes) / sizeof(uint64_t));
    const std::span<char> into(reinterpret_cast<char*>(bits.data()),
                               bits.size() * sizeof(uint64_t));
    ASSIGN_OR_RETURN(const int64_t read, context_.files->ReadAt(path, 0, into));
    if (read == bytes) return bits;
    return DataLoss(path, ": damaged");
  }

  absl::Status NoteEncoded(const CorpusParts& mine) {
    ASSIGN_OR_RETURN(const std::vector<CorpusParts> all, AllGatherMessages(context_.world, mine));
    std::map<uint64_t, const PreparedPart*> encoded;
    for (const CorpusParts& parts : all) {
      for (const PreparedPart& part : parts.parts()) encoded[part.key()] = &part;
    }
    for (Block& it : blocks_) {
      if (!it.part.files().empty()) continue;
      const auto found = encoded.find(it.part.key());
      if (found == encoded.end()) {
        return DataLoss(context_.parts.Path(NameOf(it.part)),
                        ": a rank has claimed it, and none has encoded it");
      }
      it.part = *found->second;
    }
    return absl::OkStatus();
  }

  // The pairs of a block are in a file of its own, or in the shard of an earlier corpus.
  Pairs PairsOf(const PreparedPart& part) const {
    const std::string& name = part.files(0).name();
    const int64_t count = part.counts().kept();
    if (name == PairsName(part)) return {context_.parts.Path(name), 0, count};
    return {absl::StrCat(context_.output, "/", name), earlier_.at(part.key()).first_pair, count};
  }

  absl::StatusOr<PreparedPart> WriteShard(const LanguagePairTexts& texts,
                                          const std::vector<const PreparedPart*>& blocks) const {
    PreparedPart shard;
    LanguagePairReport& counts = *shard.mutable_counts();
    counts = MakePairReport(texts, "train", DropCounts());
    counts.set_tag(texts.tag);
    std::vector<Pairs> sources;
    for (const PreparedPart* block : blocks) {
      AddCounts(block->counts(), &counts);
      sources.push_back(PairsOf(*block));
    }
    SetLengths(counts.first_tokens(), counts.second_tokens(), counts.longest(), &counts);
    const std::string path = JoinPath(context_.temporary, ShardFileName(texts.Name()));
    RETURN_IF_ERROR(LinkOrCopy(sources, path));
    ASSIGN_OR_RETURN(const Shard written, Shard::Open(path));
    ASSIGN_OR_RETURN(*shard.add_files(), FileAt(path, written.content_hash()));
    return shard;
  }

  absl::Status LinkOrCopy(const std::vector<Pairs>& sources, const std::string& path) const {
    if (sources.size() == 1) {
      ASSIGN_OR_RETURN(const Shard only, Shard::Open(sources[0].path, vocabulary_.size()));
      std::error_code no_links;
      if (only.num_pairs() == sources[0].count) {
        RETURN_IF_ERROR(only.CheckContent());
        fs::create_hard_link(sources[0].path, path, no_links);
        if (!no_links) return absl::OkStatus();
      }
    }
    ASSIGN_OR_RETURN(auto writer, ShardWriter::Create(path, vocabulary_.size()));
    std::optional<Shard> shard;
    std::string open;  // its path
    for (const Pairs& source : sources) {
      if (open != source.path) {
        ASSIGN_OR_RETURN(shard, Shard::Open(source.path, vocabulary_.size()));
        open = source.path;
      }
      for (int64_t pair = source.first; pair < source.first + source.count; ++pair) {
        RETURN_IF_ERROR(writer->Add(shard->First(pair), shard->Second(pair)));
      }
      RETURN_IF_ERROR(shard->Intact());
    }
    return writer->Finish();
  }

  void WarnOfDrops() const {
    std::map<std::pair<size_t, int>, LanguagePairReport> texts;  // by language pair and place in it
    for (const Block& it : blocks_) {
      const auto [text, is_new] = texts.try_emplace({it.pair, it.block->text()}, it.part.counts());
      if (!is_new) AddCounts(it.part.counts(), &text->second);
      text->second.set_tag(TextsOf(it).tag);
    }
    for (const auto& [place, counts] : texts) context_.Warn(DropWarning(counts));
  }

  PrepareContext& context_;
  const Vocabulary& vocabulary_;
  const TextFilter filter_;
  std::map<uint64_t, EarlierPart> earlier_;  // of the corpus that is replaced
  std::vector<Block> blocks_;                // in the order of their pairs
};

}  // namespace

absl::StatusOr<EncodedCorpus> EncodeCorpus(PrepareContext& context, const std::string& tokenizer,
                                           const Vocabulary& vocabulary) {
  return EncodedBlocks(context, tokenizer, vocabulary).Run();
}

}  // namespace deepnet
