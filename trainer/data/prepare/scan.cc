#include "trainer/data/prepare/scan.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/sample_log.h"
#include "trainer/data/prepare/stages.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

constexpr double kTextBytesPerCompressedByte = 3.0;

// Bytes of training text that one core gets done in a second of CPU time, measured on 131 MB of
// English with Spanish, French, Italian and Dutch: docs/benchmarks/prepare_2026-11-24.md.
constexpr double kScanRate = 44e6;
constexpr double kEncodeRate = 7.0e6;
constexpr double kAssembleRate = 160e6;

constexpr double kShardBytesPerTextByte = 0.58;  // vocabularies up to 65,536

// Returns the identity of the file of a text: the table behind it, if it is of one.
std::string Identity(const PrepareContext& context, const ParallelFiles& text) {
  std::string identity;
  for (const std::string& path :
       {text.first_file, text.second_file, text.tsv_file, text.score_file, text.origin}) {
    const auto found = context.inputs.find(path);
    if (found == context.inputs.end()) continue;
    absl::StrAppend(&identity, path, " ", found->second.bytes(), " ", found->second.modified_ns(),
                    "\n");
  }
  absl::StrAppend(&identity, text.tsv_swapped, " ", text.score_threshold.value_or(-1.0), " ",
                  text.score_threshold.has_value());
  return identity;
}

uint64_t ScanKey(const PrepareContext& context, const LanguagePairTexts& texts) {
  std::vector<std::string> facts = {
      "scan 2",
      texts.Name(),
      ToBytes(context.spec.cleaning()),
      absl::StrJoin(context.languages, " "),
      absl::StrCat(context.held_out.Digest(), " ", context.options.block_lines),
      LearnsTokenizer(context) ? ToBytes(context.spec.tokenizer()) : "",
      absl::StrCat(context.spec.seed())};
  for (const LanguageTable& table : context.spec.table()) facts.push_back(ToBytes(table));
  for (const ParallelFiles& text : texts.train) facts.push_back(Identity(context, text));
  return KeyOf(facts);
}

// 64 MiB while duplicates are looked for.
constexpr int64_t kDuplicateRecords = int64_t{1} << 22;

// A text has about so many blocks, for ranks to share; a larger one has larger blocks, up to
// kMaxBlockFactor smallest ones (PrepareOptions.block_lines). A compressed text, which is read from
// its beginning for each block, has few.
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

// Reads the training texts of one language pair and adds their files and blocks to `part`, their
// sentences to `sample` if there is one. Returns a bit for each line that is a duplicate:
// TextBlock.bit + i for line i of a block. Those of each text begin with a word, so that blocks
// have words of their own.
absl::StatusOr<std::vector<uint64_t>> ReadTraining(PrepareContext& context,
                                                   const LanguagePairTexts& texts,
                                                   SampleLog* sample, PreparedPart* part) {
  const TextFilter filter = context.Filter();
  DuplicateFinder finder(context.OwnFolder(), kDuplicateRecords);
  int64_t bit = 0;
  for (size_t i = 0; i < texts.train.size(); ++i) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(texts.train[i]));
    const auto languages = TextFilter::LanguagePair::Of(texts, texts.train[i]);
    BlockCutter blocks(static_cast<int>(i), context.options.block_lines);
    RawPair pair;
    for (int64_t line = 0;; ++line, ++bit) {
      blocks.Before(*reader, line, bit);
      ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
      if (!more) break;
      const DropReason reason = filter.Judge(languages, &pair);
      const bool kept = reason == DropReason::kNone;
      const uint64_t hash = kept ? HashBytes(pair.second, HashBytes(pair.first)) : 0;
      blocks.After(reason, hash);
      if (!kept) continue;
      if (!context.spec.cleaning().keep_duplicates()) RETURN_IF_ERROR(finder.Add(bit, hash));
      if (sample != nullptr) {
        sample->Add(0, pair.first);
        sample->Add(1, pair.second);
      }
    }
    for (const auto& file : reader->files()) {
      context.NoteInput(*file);
      InputFile& input = *part->add_inputs();
      input.set_name(file->path());
      input.set_hash(file->file_hash());
    }
    for (TextBlock& block : blocks.Blocks(reader->compressed())) {
      *part->add_blocks() = std::move(block);
    }
    bit = (bit + 63) / 64 * 64;
  }
  ASSIGN_OR_RETURN(std::vector<uint64_t> bits, finder.Finish());
  bits.resize(static_cast<size_t>(bit / 64));
  for (TextBlock& block : *part->mutable_blocks()) {
    const std::span<const uint64_t> words(&bits[static_cast<size_t>(block.bit() / 64)],
                                          static_cast<size_t>((block.lines() + 63) / 64));
    block.set_judged(HashBytes({reinterpret_cast<const char*>(words.data()), words.size_bytes()},
                               block.judged()));
  }
  return bits;
}

absl::StatusOr<PreparedPart> ScanPair(PrepareContext& context, const LanguagePairTexts& texts) {
  PreparedPart part;
  part.set_key(ScanKey(context, texts));
  const std::string name = absl::StrCat("scan.", texts.Name());
  if (auto found = context.parts.Find(name, part.key())) {
    for (const InputFile& input : found->inputs()) {
      const auto place = std::ranges::find_if(context.inputs, [&](const auto& known) {
        return EscapedUtf8(known.first) == input.name();  // as ToBytes() has it
      });
      if (place != context.inputs.end()) place->second.set_hash(input.hash());
    }
    context.Say(absl::StrCat("scanned before: ", texts.Name()));
    return *std::move(found);
  }
  std::unique_ptr<SampleLog> sample;
  if (LearnsTokenizer(context) && texts.tag.empty()) {
    ASSIGN_OR_RETURN(auto file, FileWriter::Create(context.OwnFolder(), name + ".sample"));
    sample = std::make_unique<SampleLog>(std::move(file), SampleSpecOf(context.spec),
                                         std::array{texts.first, texts.second});
  }
  ASSIGN_OR_RETURN(const std::vector<uint64_t> bits,
                   ReadTraining(context, texts, sample.get(), &part));
  ASSIGN_OR_RETURN(*part.add_files(), FileWriter::Write(context.OwnFolder(), name + ".bits",
                                                        {reinterpret_cast<const char*>(bits.data()),
                                                         bits.size() * sizeof(uint64_t)}));
  if (sample != nullptr) {
    ASSIGN_OR_RETURN(*part.add_files(), sample->Finish());
  }
  RETURN_IF_ERROR(context.Keep(name, part));
  int64_t num_lines = 0;
  for (const TextBlock& block : part.blocks()) num_lines += block.lines();
  context.Say(absl::StrCat("scanned ", texts.Name(), ": ", num_lines, " lines"));
  return part;
}

// Returns the bytes of a file; 0 of one that is gone, which whoever reads it says.
double SizeOf(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  return error ? 0.0 : static_cast<double>(bytes);
}

}  // namespace

double EstimatePairs(const ParallelFiles& text) {
  constexpr int kSampledPairs = 1000;
  const bool tsv = !text.tsv_file.empty();
  const absl::StatusOr<std::unique_ptr<PairReader>> reader = PairReader::Open(text);
  if (!reader.ok()) return 0.0;  // whoever scans it says why
  double bytes = 0.0;            // of the first file
  for (int pairs = 0; pairs < kSampledPairs; ++pairs) {
    RawPair pair;
    const absl::StatusOr<bool> more = (*reader)->Next(&pair);
    if (!more.ok() || !*more) return pairs;
    bytes += static_cast<double>(pair.first.size() + (tsv ? pair.second.size() + 1 : 0) + 1);
  }
  const double size = SizeOf(tsv ? text.tsv_file : text.first_file);
  const double unpacked = (*reader)->compressed() ? kTextBytesPerCompressedByte : 1.0;
  return size * unpacked / bytes * kSampledPairs;
}

std::vector<int64_t> TrainingBytes(const std::vector<LanguagePairTexts>& texts) {
  std::vector<int64_t> pair_bytes;
  for (const LanguagePairTexts& pair : texts) {
    double bytes = 0.0;
    for (const ParallelFiles& text : pair.train) {
      for (const std::string& path : {text.first_file, text.second_file, text.tsv_file}) {
        if (path.empty()) continue;
        const bool compressed = absl::EndsWith(path, ".gz") || absl::EndsWith(path, ".zst");
        bytes += SizeOf(path) * (compressed ? kTextBytesPerCompressedByte : 1.0);
      }
    }
    if (!pair.train.empty()) pair_bytes.push_back(static_cast<int64_t>(std::min(bytes, 1e18)));
  }
  return pair_bytes;
}

PreparePlan PlanPreparation(std::span<const int64_t> pair_bytes, int num_ranks,
                            int threads_per_rank) {
  const std::vector<int> owners = Deal(pair_bytes, num_ranks);
  std::vector<double> loads(static_cast<size_t>(num_ranks), 0.0);
  PreparePlan plan;
  for (size_t i = 0; i < pair_bytes.size(); ++i) {
    const auto bytes = static_cast<double>(pair_bytes[i]);
    loads[static_cast<size_t>(owners[i])] += bytes;
    plan.text_bytes += bytes;
  }
  const double most = *std::max_element(loads.begin(), loads.end());
  plan.shard_bytes = plan.text_bytes * kShardBytesPerTextByte;
  plan.scan_seconds = most / kScanRate;
  plan.encode_seconds = plan.text_bytes / (kEncodeRate * num_ranks * threads_per_rank);
  plan.assemble_seconds = most / kAssembleRate;
  return plan;
}

absl::Status ScanTexts(PrepareContext& context) {
  const std::vector<int64_t> costs = TrainingBytes(context.texts);
  const std::vector<int> owners = Deal(costs, context.world.size());
  CorpusParts mine;
  for (size_t i = 0; i < context.trained.size(); ++i) {
    if (owners[i] != context.world.rank()) continue;
    ASSIGN_OR_RETURN(*mine.add_parts(), ScanPair(context, *context.trained[i]));
  }
  ASSIGN_OR_RETURN(context.scans, context.AllGatherParts(mine, owners));
  const bool none = std::all_of(context.scans.begin(), context.scans.end(),
                                [](const PreparedPart& scan) { return scan.blocks().empty(); });
  return context.Agree(none ? absl::InvalidArgumentError("prepare: there is no training text")
                            : absl::OkStatus());
}
}  // namespace deepnet
