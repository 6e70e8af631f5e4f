#include "trainer/data/prepare/blocks.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/text_format.h>

#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/pair_report.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

std::string NameOf(const PreparedPart& part) { return absl::StrFormat("%016x", part.key()); }

}  // namespace

EncodedBlocks::EncodedBlocks(PrepareContext& context, const std::string& tokenizer,
                             const Vocabulary& vocabulary)
    : context_(context), vocabulary_(vocabulary) {
  for (size_t pair = 0; pair < context_.scans.size(); ++pair) {
    for (const TextBlock& block : context_.scans[pair].blocks()) {
      blocks_.push_back({pair, &block});
      blocks_.back().part.set_key(EncodeKey(blocks_.back(), tokenizer));
    }
  }
}

// The place is part of the key because the counts name it; so is the number of a tag, which a
// language that is added changes.
uint64_t EncodedBlocks::EncodeKey(const Block& it, const std::string& tokenizer) const {
  const CleaningSpec cleaning = WithDefaults(context_.spec.cleaning());
  const ParallelFiles& text = TextsOf(it).train[static_cast<size_t>(it.block->text())];
  const std::optional<int32_t> tag = vocabulary_.TagId(TextsOf(it).tag);
  const std::string facts[] = {
      "encode 1",
      absl::StrCat(TextsOf(it).Name(), tag.has_value() ? absl::StrCat(" ", *tag) : ""),
      tokenizer,
      absl::StrCat(cleaning.max_sentence_tokens(), " ", cleaning.max_length_ratio()),
      absl::StrCat(text.first_file, " ", text.second_file, " ",
                   text.origin.empty() ? text.tsv_file : text.origin),
      absl::StrCat(it.block->line(), " ", it.block->lines(), " ", it.block->judged())};
  return KeyOf(facts);
}

// Fills earlier_ with the parts that are wanted and whose shards are intact. Ranks share the
// shards.
absl::Status EncodedBlocks::FindEarlier() {
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
      context_.Say(
          absl::StrCat("warning: ", name, " of the earlier corpus is damaged: encoding it again"));
      wanted.erase(name);
    }
  }
  for (const auto& [name, keys] : wanted) {
    for (const uint64_t key : keys) earlier_[key] = std::move(all.at(key));
  }
  return absl::OkStatus();
}

absl::Status EncodedBlocks::Find() {
  RETURN_IF_ERROR(FindEarlier());
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

absl::Status EncodedBlocks::Encode() {
  RETURN_IF_ERROR(Find());
  std::vector<size_t> open;  // of blocks_
  std::vector<int64_t> costs;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].part.files().empty()) continue;
    open.push_back(i);
    costs.push_back(blocks_[i].block->lines());
  }
  const TextFilter filter(context_.spec.cleaning(), context_.languages, &context_.held_out);
  EncodeSpec encode;
  encode.filter = &filter;
  encode.vocabulary = &vocabulary_;
  encode.cleaning = WithDefaults(context_.spec.cleaning());
  encode.num_threads = context_.num_threads;
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
    RETURN_IF_ERROR(EncodeOne(encode, bits, &it));
    *mine.add_parts() = it.part;
  }
  return NoteEncoded(mine);
}

absl::Status EncodedBlocks::NoteEncoded(const CorpusParts& mine) {
  ASSIGN_OR_RETURN(const std::vector<CorpusParts> all, AllGatherMessages(context_.world, mine));
  std::map<uint64_t, const PreparedPart*> encoded;
  for (const CorpusParts& parts : all) {
    for (const PreparedPart& part : parts.parts()) encoded[part.key()] = &part;
  }
  for (Block& it : blocks_) {
    if (!it.part.files().empty()) continue;
    const auto found = encoded.find(it.part.key());
    if (found == encoded.end()) {
      return absl::DataLossError(absl::StrCat(context_.parts.Path(NameOf(it.part)),
                                              ": a rank has claimed it, and none has encoded it"));
    }
    it.part = *found->second;
  }
  return absl::OkStatus();
}

absl::Status EncodedBlocks::EncodeOne(const EncodeSpec& encode, const std::vector<uint64_t>& bits,
                                      Block* it) {
  const LanguagePairTexts& texts = TextsOf(*it);
  PreparedPart& part = it->part;
  const std::string name = NameOf(part) + ".pairs";
  const std::string path = absl::StrCat(context_.OwnFolder(), "/", name);
  ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(path, vocabulary_.size()));
  ASSIGN_OR_RETURN(const EncodedTotals totals,
                   EncodeBlock(texts, *it->block, encode, bits, shard.get()));
  RETURN_IF_ERROR(shard->Finish());
  ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
  CorpusFile& file = *part.add_files();
  file.set_name(name);
  ASSIGN_OR_RETURN(const int64_t bytes, MakePosixFileSystem()->Size(path));
  file.set_bytes(bytes);
  file.set_hash(hash);
  *part.add_blocks() = *it->block;
  *part.mutable_counts() = MakePairReport(texts, "train", totals);
  RETURN_IF_ERROR(context_.Keep(NameOf(part), part));
  context_.Say(absl::StrCat("encoded ", texts.Name(), " from line ", it->block->line() + 1, ": ",
                            part.counts().kept(), " pairs of ", part.counts().lines(), " lines"));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> EncodedBlocks::ReadBits(const PreparedPart& scan) const {
  const std::string path = context_.parts.Path(scan.files(0).name());
  const auto file_system = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const int64_t bytes, file_system->Size(path));
  std::vector<uint64_t> bits(static_cast<size_t>(bytes) / sizeof(uint64_t));
  const std::span<char> into(reinterpret_cast<char*>(bits.data()), bits.size() * sizeof(uint64_t));
  ASSIGN_OR_RETURN(const int64_t read, file_system->ReadAt(path, 0, into));
  if (read == bytes) return bits;
  return absl::DataLossError(absl::StrCat(path, ": damaged"));
}

// The pairs of a block are in a file of its own, or in the shard of an earlier corpus.
EncodedBlocks::Pairs EncodedBlocks::PairsOf(const PreparedPart& part) const {
  const std::string& name = part.files(0).name();
  const int64_t count = part.counts().kept();
  if (name == NameOf(part) + ".pairs") return {context_.parts.Path(name), 0, count};
  return {absl::StrCat(context_.output, "/", name), earlier_.at(part.key()).first_pair, count};
}

absl::StatusOr<CorpusFile> EncodedBlocks::WriteShard(const LanguagePairTexts& texts,
                                                     const std::vector<Pairs>& sources) const {
  CorpusFile file;
  file.set_name(ShardFileName(texts.Name()));
  const std::string path = absl::StrCat(context_.temporary, "/", file.name());
  RETURN_IF_ERROR(LinkOrCopy(sources, path));
  ASSIGN_OR_RETURN(const Shard shard, Shard::Open(path));
  ASSIGN_OR_RETURN(const int64_t bytes, MakePosixFileSystem()->Size(path));
  file.set_bytes(bytes);
  file.set_hash(shard.content_hash());
  return file;
}

absl::Status EncodedBlocks::LinkOrCopy(const std::vector<Pairs>& sources,
                                       const std::string& path) const {
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
      RETURN_IF_ERROR(writer->Add(shard->First(pair).ToIds(), shard->Second(pair).ToIds()));
    }
    RETURN_IF_ERROR(shard->Intact());
  }
  return writer->Finish();
}

absl::StatusOr<std::vector<PreparedPart>> EncodedBlocks::WriteShards() {
  std::vector<PreparedPart> all(context_.trained.size());
  std::vector<std::vector<Pairs>> sources(all.size());
  std::vector<int64_t> costs(all.size(), 0);
  for (const Block& it : blocks_) {
    sources[it.pair].push_back(PairsOf(it.part));
    AddCounts(it.part.counts(), all[it.pair].mutable_counts());
    costs[it.pair] += it.part.counts().kept();
  }
  if (context_.IsFirst()) WarnOfDrops();
  const std::vector<int> owners = Deal(costs, context_.world.size());
  CorpusParts mine;
  for (size_t i = 0; i < all.size(); ++i) {
    const LanguagePairTexts& texts = *context_.trained[i];
    LanguagePairReport& counts = *all[i].mutable_counts();
    counts.set_first_language(texts.first);
    counts.set_second_language(texts.second);
    counts.set_tag(texts.tag);
    counts.set_split("train");
    SetLengths(counts.first_tokens(), counts.second_tokens(), counts.longest(), &counts);
    if (owners[i] != context_.world.rank()) continue;
    ASSIGN_OR_RETURN(*mine.add_parts()->add_files(), WriteShard(texts, sources[i]));
  }
  ASSIGN_OR_RETURN(const std::vector<PreparedPart> shards, context_.AllGatherParts(mine, owners));
  for (size_t i = 0; i < all.size(); ++i) *all[i].mutable_files() = shards[i].files();
  return all;
}

void EncodedBlocks::WarnOfDrops() const {
  std::map<std::pair<size_t, int>, LanguagePairReport> texts;  // by language pair and place in it
  for (const Block& it : blocks_) {
    const auto [text, is_new] = texts.try_emplace({it.pair, it.block->text()}, it.part.counts());
    if (!is_new) AddCounts(it.part.counts(), &text->second);
    text->second.set_tag(TextsOf(it).tag);
  }
  for (const auto& [place, counts] : texts) context_.Warn(DropWarning(counts));
}

std::string EncodedBlocks::PartsText() const {
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
}  // namespace deepnet
