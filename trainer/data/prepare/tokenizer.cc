#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/sample_log.h"
#include "trainer/data/prepare/stages.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

// Part of what decides the tokenizer's bytes, so not a setting.
constexpr int kTokenizerThreads = 2;

// The left side of a rule has at most so many: SentencePiece recurses once for each character.
constexpr size_t kMaxRuleBytes = 4096;

// Returns the path of the tokenizer of the corpus that is extended; empty: there is none.
std::string KeptTokenizer(const PrepareContext& context) {
  const std::string path = absl::StrCat(context.output, "/", kTokenizerFile);
  std::error_code ignored;
  return context.options.extend && context.spec.tokenizer().model_file().empty() &&
                 fs::exists(path, ignored)
             ? path
             : "";
}

// Returns what one process would have sampled that reads all pairs in their order.
absl::StatusOr<std::vector<std::string>> Sample(PrepareContext& context) {
  SentenceSample sample(SampleSpecOf(context.spec));
  for (size_t i = 0; i < context.trained.size(); ++i) {
    const LanguagePairTexts& texts = *context.trained[i];
    if (!texts.tag.empty()) continue;
    ASSIGN_OR_RETURN(const SampleReplay replay,
                     ReplaySample(context.parts.Path(context.scans[i].files(1).name()),
                                  {texts.first, texts.second}, &sample));
    if (replay.complete) continue;
    context.Say(absl::StrCat("reading ", texts.Name(), " again for the tokenizer"));
    int64_t num_known = replay.num_added;
    const auto add = [&](DropReason reason, const RawPair& pair, const PairReader& /*reader*/) {
      if (reason != DropReason::kNone) return absl::OkStatus();
      if (--num_known < 0) sample.Add(texts.first, pair.first);
      if (--num_known < 0) sample.Add(texts.second, pair.second);
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(context.JudgeTexts(texts, "train", add));
  }
  return sample.Take();
}

// Returns true if `text` is code points in hexadecimal with blanks between them.
bool IsCodePoints(absl::string_view text) {
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    uint32_t code_point = 0;
    if (!absl::SimpleHexAtoi(word, &code_point) || code_point == 0 || code_point > 0x10FFFF) {
      return false;
    }
    if (code_point >= 0xD800 && code_point <= 0xDFFF) return false;  // a surrogate
  }
  return true;
}

// Checks the rules in the file `path`, which SentencePiece takes for good, and notes their hash.
absl::Status CheckRules(const std::string& path, PrepareContext& context) {
  ASSIGN_OR_RETURN(const std::string rules,
                   ReadWholeFile(*context.files, path, kMaxTokenizerBytes));
  if (rules.empty()) return InvalidArgument(path, ": it has no rules");
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(rules, '\n')) {
    ++number;
    if (line.empty() && line.data() == rules.data() + rules.size()) break;
    const std::vector<absl::string_view> columns = absl::StrSplit(line, '\t');
    if (columns[0].size() > kMaxRuleBytes) {
      return InvalidArgument(path, ":", number, ": more than ", kMaxRuleBytes, " bytes");
    }
    if (absl::StripAsciiWhitespace(columns[0]).empty() || columns.size() > 3 ||
        !IsCodePoints(columns[0]) || (columns.size() > 1 && !IsCodePoints(columns[1]))) {
      return InvalidArgument(path, ":", number,
                             ": not code points <TAB> code points, in hexadecimal");
    }
  }
  context.inputs[path].set_hash(HashContent(rules));
  return absl::OkStatus();
}

// Says why the sample has no sentence: what became of all training pairs, or that it is too small.
absl::Status NothingLeft(PrepareContext& context) {
  DropCounts counts;
  const auto count = [&](DropReason reason, const RawPair& pair, const PairReader& reader) {
    counts.Add(reason, reader, pair.line);
    return absl::OkStatus();
  };
  for (const LanguagePairTexts* texts : context.trained) {
    RETURN_IF_ERROR(context.JudgeTexts(*texts, "train", count));
  }
  if (counts.lines[static_cast<size_t>(DropReason::kNone)] > 0) {
    return ConfigError(
        "prepare.tokenizer.input_sentence_size: ", context.spec.tokenizer().input_sentence_size(),
        ": is too small for a sentence of each language");
  }
  std::vector<std::string> reasons;
  for (size_t reason = 0; reason < kNumDropReasons; ++reason) {
    if (counts.lines[reason] == 0) continue;
    reasons.push_back(absl::StrCat(counts.lines[reason], " ",
                                   std::string(Name(static_cast<DropReason>(reason))), ", first ",
                                   counts.examples[reason]));
  }
  return InvalidArgument("prepare: there is no text to learn a tokenizer from: all ",
                         counts.Total(),
                         " training pairs were dropped: ", absl::StrJoin(reasons, "; "));
}

// Returns SentencePiece's error with our names and bounds, where it is one that settings cause.
absl::Status TrainingError(const TokenizerSpec& tokenizer, const std::string& error) {
  const size_t versus = error.find(" vs ");
  int64_t needed = 0;
  if (absl::StrContains(error, "smaller than required_chars") && versus != error.npos &&
      absl::SimpleAtoi(error.substr(versus + 4, error.find('.', versus) - versus - 4), &needed)) {
    return ConfigError(
        "prepare.tokenizer.vocab_size: ", tokenizer.vocab_size(), ": must be at least ", needed,
        ", the text's characters and 4 special ids; or lower prepare.tokenizer.character_coverage");
  }
  return InvalidArgument("prepare.tokenizer: SentencePiece: ", error);
}

absl::StatusOr<std::string> LearnTokenizer(PrepareContext& context) {
  const TokenizerSpec& tokenizer = context.spec.tokenizer();
  const std::string rules = NormalizationFile(context);
  std::vector<std::string> facts = {
      "tokenizer 2", ToBytes(tokenizer), absl::StrCat(context.spec.seed()),
      rules.empty() ? "" : absl::StrCat(context.inputs[rules].hash())};
  for (const PreparedPart& scan : context.scans) facts.push_back(absl::StrCat(scan.key()));
  PreparedPart part;
  part.set_key(KeyOf(facts));
  if (const auto found = context.parts.Find("tokenizer", part.key())) {
    context.Say("learned the tokenizer before");
    return ReadWholeFile(*context.files, context.parts.Path(found->files(0).name()),
                         kMaxTokenizerBytes);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> sentences, Sample(context));
  if (sentences.empty()) return NothingLeft(context);
  PieceTraining training;
  if (tokenizer.vocab_size() > 0) training.pieces = tokenizer.vocab_size();
  if (tokenizer.character_coverage() > 0) {
    training.character_coverage = tokenizer.character_coverage();
  }
  if (!tokenizer.type().empty()) training.type = tokenizer.type();
  training.normalization = rules.empty() ? tokenizer.normalization() : rules;
  training.threads = kTokenizerThreads;
  context.Say(
      absl::StrCat("learning ", training.pieces, " pieces from ", sentences.size(), " sentences"));
  RETURN_IF_ERROR(WithPrefix("prepare.tokenizer", TryThreads(1 + kTokenizerThreads)));
  std::string bytes;
  const BorrowedCores cores(context.host_cores);  // their ranks wait
  const std::string error = TrainSentencePieces(training, sentences, &bytes);
  if (!error.empty()) return TrainingError(tokenizer, error);
  ASSIGN_OR_RETURN(*part.add_files(),
                   FileWriter::Write(context.OwnFolder(), kTokenizerFile, bytes));
  RETURN_IF_ERROR(context.Keep("tokenizer", part));
  return bytes;
}

absl::StatusOr<std::string> ReadTokenizer(PrepareContext& context) {
  const std::string kept = KeptTokenizer(context);
  const std::string path =
      kept.empty() ? Rooted(context.root, context.spec.tokenizer().model_file()) : kept;
  absl::StatusOr<std::string> bytes = ReadWholeFile(*context.files, path, kMaxTokenizerBytes);
  if (!bytes.ok()) return WithPrefix("prepare.tokenizer.model_file", bytes.status());
  const uint64_t hash = HashContent(*bytes);
  if (kept.empty()) {
    context.inputs[path].set_hash(hash);
    return bytes;
  }
  ASSIGN_OR_RETURN(const CorpusManifest manifest, ReadManifest(context.output));
  const auto file = std::ranges::find(manifest.files(), kTokenizerFile, &CorpusFile::name);
  if (file != manifest.files().end() && file->hash() == hash) return bytes;
  return DataLoss(path, ": damaged: its bytes do not match the hash in the manifest");
}

}  // namespace

bool LearnsTokenizer(const PrepareContext& context) {
  return context.spec.tokenizer().model_file().empty() && KeptTokenizer(context).empty();
}

std::string NormalizationFile(const PrepareContext& context) {
  const std::string& normalization = context.spec.tokenizer().normalization();
  const bool is_read =
      context.spec.tokenizer().model_file().empty() && !IsNormalizationName(normalization);
  return is_read ? Rooted(context.root, normalization) : "";
}

SentenceSampleSpec SampleSpecOf(const PrepareSpec& spec) {
  const TokenizerSpec& tokenizer = spec.tokenizer();
  SentenceSampleSpec sample;
  if (tokenizer.input_sentence_size() > 0) {
    sample.max_sentences = tokenizer.input_sentence_size();
  }
  if (tokenizer.sample_temperature() > 0) sample.temperature = tokenizer.sample_temperature();
  sample.seed = spec.seed();
  return sample;
}

absl::StatusOr<std::string> MakeTokenizer(PrepareContext& context) {
  const auto make = [&]() -> absl::StatusOr<std::string> {
    if (!context.IsFirst()) return "";
    const std::string rules = NormalizationFile(context);
    if (!rules.empty()) {
      RETURN_IF_ERROR(WithPrefix("prepare.tokenizer.normalization", CheckRules(rules, context)));
    }
    return LearnsTokenizer(context) ? LearnTokenizer(context) : ReadTokenizer(context);
  };
  const absl::StatusOr<std::string> bytes = make();
  RETURN_IF_ERROR(context.Agree(bytes.status()));
  return BroadcastText(context.world, *bytes, 0);
}

}  // namespace deepnet
