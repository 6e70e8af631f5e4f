#include "trainer/data/prepare/scan.h"

#include <algorithm>
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
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/corpus_passes.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/sample_log.h"
#include "trainer/data/prepare/tokenizer.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

constexpr double kTextBytesPerCompressedByte = 3.0;

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
  const TextFilter filter(context.spec.cleaning(), context.languages, &context.held_out);
  std::unique_ptr<SampleLog> sample;
  if (LearnsTokenizer(context) && texts.tag.empty()) {
    ASSIGN_OR_RETURN(
        sample, SampleLog::Create(context.OwnFolder(), name + ".sample", SampleSpecOf(context.spec),
                                  {texts.first, texts.second}));
  }
  const ScanSpec scan = {context.OwnFolder(), !context.spec.cleaning().keep_duplicates(),
                         sample.get(), context.options.block_lines};
  ASSIGN_OR_RETURN(const ScanResult result,
                   ScanTraining(texts, filter, scan, [&](const LineReader& reader) {
                     context.NoteInput()(reader);
                     InputFile& input = *part.add_inputs();
                     input.set_name(reader.path());
                     input.set_hash(reader.file_hash());
                   }));
  *part.mutable_blocks() = {result.blocks.begin(), result.blocks.end()};
  ASSIGN_OR_RETURN(*part.add_files(),
                   FileWriter::Write(context.OwnFolder(), name + ".bits",
                                     {reinterpret_cast<const char*>(result.duplicate_bits.data()),
                                      result.duplicate_bits.size() * sizeof(uint64_t)}));
  if (sample != nullptr) {
    ASSIGN_OR_RETURN(*part.add_files(), sample->Finish());
  }
  RETURN_IF_ERROR(context.Keep(name, part));
  context.Say(absl::StrCat("scanned ", texts.Name(), ": ", result.num_lines, " lines"));
  return part;
}

// Returns the bytes of a file; 0 of one that is gone, which whoever reads it says.
double SizeOf(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  return error ? 0.0 : static_cast<double>(bytes);
}

// Returns about how many pairs a text has: counted where they are few, else by the first ones.
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

}  // namespace

double TrainingPairs(const std::vector<LanguagePairTexts>& texts) {
  double pairs = 0.0;
  for (const LanguagePairTexts& pair : texts) {
    for (const ParallelFiles& text : pair.train) pairs += EstimatePairs(text);
  }
  return pairs;
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
