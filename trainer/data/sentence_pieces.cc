#include "trainer/data/sentence_pieces.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <unordered_map>
#include <utility>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>

#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

// Memory of one kept sentence beside its characters.
constexpr int64_t kItemBytes = 48;

// A piece with its score and type has at most so many: the library's trie recurses once for each.
constexpr uint32_t kMaxPieceBytes = 16384;

class LoadedPieces : public SentencePieces {
 public:
  sentencepiece::SentencePieceProcessor& processor() { return processor_; }

  int size() const override { return processor_.GetPieceSize(); }
  std::string Piece(int id) const override { return processor_.IdToPiece(id); }
  bool IsUnknown(int id) const override { return processor_.IsUnknown(id); }
  bool IsControl(int id) const override { return processor_.IsControl(id); }
  std::vector<int> Encode(std::string_view text) const override {
    return processor_.EncodeAsIds(text);
  }
  std::vector<Segmentation> NBest(std::string_view text, int count) const override {
    const auto all = processor_.NBestEncodeAsImmutableProto(text, count);
    std::vector<Segmentation> segmentations;
    segmentations.reserve(all.nbests_size());
    for (const auto& one : all.nbests()) {
      Segmentation& segmentation = segmentations.emplace_back();
      segmentation.score = one.score();
      segmentation.ids.reserve(one.pieces_size());
      for (const auto& piece : one.pieces()) {
        segmentation.ids.push_back(static_cast<int>(piece.id()));
      }
    }
    return segmentations;
  }
  std::vector<std::string> EncodeAsPieces(std::string_view text) const override {
    return processor_.EncodeAsPieces(text);
  }
  std::string Decode(const std::vector<int>& ids) const override {
    return processor_.DecodeIds(ids);
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

// Hands a vector to the trainer, which copies what it needs.
class VectorIterator : public sentencepiece::SentenceIterator {
 public:
  explicit VectorIterator(const std::vector<std::string>& sentences) : sentences_(sentences) {}
  bool done() const override { return next_ >= sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  size_t next_ = 0;
};

// Returns the library's words without their place in its source, "Internal: x.cc(67) [a <= b]
// words"; "damaged" where it has none but a condition.
std::string Readable(const std::string& status) {
  const size_t end = status.rfind("] ");
  if (status.find(" [") >= end || end == std::string::npos) return status;
  return end + 2 < status.size() ? status.substr(end + 2) : "damaged";
}

// Returns the bytes of field `number` of a message of protobuf; empty: it has none.
std::string FieldOf(const std::string& message, int number) {
  google::protobuf::UnknownFieldSet fields;
  fields.ParseFromString(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == number) return field.length_delimited();
  }
  return "";
}

// Returns true if `model`, a ModelProto, has a piece of more than kMaxPieceBytes.
bool HasLongPiece(std::string_view model) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint32_t kPieces =
      WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(model.data()),
                                                static_cast<int>(model.size()));
  uint32_t tag = 0, bytes = 0;
  while ((tag = stream.ReadTag()) != 0) {
    if (tag == kPieces && stream.ReadVarint32(&bytes) && bytes <= model.size()) {
      if (bytes > kMaxPieceBytes) return true;
      stream.Skip(static_cast<int>(bytes));
    } else if (tag == kPieces || !WireFormatLite::SkipField(&stream, tag)) {
      return false;  // no model: the library says so
    }
  }
  return false;
}

// Removes the rule of `character` from `rules`, SentencePiece's compiled ones: the size of a double
// array of 32-bit units, the array (of darts-clone), and the texts that its values point at. Cuts
// the edge that the last byte of `character` takes, which belongs to no other rule.
void RemoveRule(std::string_view character, std::string* rules) {
  const auto place_of = [](size_t unit) { return sizeof(uint32_t) * (unit + 1); };
  size_t unit = 0;
  uint32_t bits = 0;
  for (size_t i = 0; i <= character.size(); ++i) {
    if (place_of(unit) + sizeof(bits) > rules->size()) return;
    std::memcpy(&bits, rules->data() + place_of(unit), sizeof(bits));
    if (i > 0 && (bits & 0x800000FF) != static_cast<unsigned char>(character[i - 1])) return;
    const size_t offset = static_cast<size_t>(bits >> 10) << ((bits & 0x200) >> 6);
    if (i < character.size()) unit ^= offset ^ static_cast<unsigned char>(character[i]);
  }
  std::memset(rules->data() + place_of(unit), 0, sizeof(bits));
}

// Returns the rules of nmt_nfkc but for U+200C, as SentencePiece compiles them: those of a model
// that it learns from a letter.
std::string DefaultRules() {
  const std::vector<std::string> text = {"a"};
  VectorIterator iterator(text);
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"model_type", "char"},
                                                  {"vocab_size", "5"},
                                                  {"hard_vocab_limit", "false"},
                                                  {"normalization_rule_name", "nmt_nfkc"},
                                                  {"minloglevel", "2"}},
                                                 &iterator, &model);
  if (!status.ok()) return "";
  constexpr int kNormalizerSpec = 3, kPrecompiledCharsmap = 2;
  std::string rules = FieldOf(FieldOf(model, kNormalizerSpec), kPrecompiledCharsmap);
  RemoveRule("\u200c", &rules);
  return rules;
}

}  // namespace

bool IsNormalizationName(std::string_view normalization) {
  return normalization.empty() || normalization == "nmt_nfkc" || normalization == "nfkc" ||
         normalization == "identity";
}

SentenceSample::Language& SentenceSample::Entry(std::string_view language) {
  const auto [entry, is_new] = languages_.try_emplace(std::string(language));
  if (is_new) entry->second.hash = HashBytes(language, spec_.seed);
  return entry->second;
}

bool SentenceSample::Add(std::string_view language, std::string_view sentence) {
  Language& entry = Entry(language);
  ++entry.num_lines;
  const uint64_t priority = HashBytes(sentence, entry.hash);
  if (priority >= entry.threshold) return false;
  entry.items.push_back({priority, std::string(sentence)});
  ++num_items_;
  num_bytes_ += static_cast<int64_t>(sentence.size()) + kItemBytes;
  // A quarter of slack, so that shrinking is rare.
  if (num_items_ > spec_.max_sentences + spec_.max_sentences / 4 || num_bytes_ > spec_.max_bytes) {
    Shrink(spec_.max_sentences, spec_.max_bytes / 4 * 3);
  }
  return true;
}

void SentenceSample::Skip(std::string_view language, int64_t num_sentences) {
  if (num_sentences > 0) Entry(language).num_lines += num_sentences;
}

uint64_t SentenceSample::Priority(std::string_view language, std::string_view sentence) const {
  return HashBytes(sentence, HashBytes(language, spec_.seed));
}

uint64_t SentenceSample::Threshold(std::string_view language) const {
  const auto found = languages_.find(language);
  return found == languages_.end() ? UINT64_MAX : found->second.threshold;
}

void SentenceSample::CutTo(int64_t max_sentences) {
  double total = 0.0;
  const auto weight = [this](const Language& language) {
    return std::pow(static_cast<double>(language.num_lines), 1.0 / spec_.temperature);
  };
  for (const auto& [name, language] : languages_) total += weight(language);
  for (auto& [name, language] : languages_) {
    std::vector<Item>& items = language.items;
    const auto quota =
        static_cast<size_t>(static_cast<double>(max_sentences) * weight(language) / total);
    if (items.size() > quota) {
      language.threshold = items[quota].priority;
      items.resize(quota);
    }
  }
  Count();
}

void SentenceSample::Count() {
  num_items_ = 0;
  num_bytes_ = 0;
  for (const auto& [name, language] : languages_) {
    num_items_ += static_cast<int64_t>(language.items.size());
    for (const Item& item : language.items) {
      num_bytes_ += static_cast<int64_t>(item.text.size()) + kItemBytes;
    }
  }
}

void SentenceSample::Shrink(int64_t max_sentences, int64_t max_bytes) {
  for (auto& [name, language] : languages_) {
    std::vector<Item>& items = language.items;
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
  }
  Count();
  if (num_items_ > max_sentences) CutTo(max_sentences);
  while (num_bytes_ > max_bytes && num_items_ > 1) CutTo(num_items_ / 8 * 7);
}

std::vector<std::string> SentenceSample::Take() {
  Shrink(spec_.max_sentences, spec_.max_bytes);
  std::vector<std::string> sentences;
  sentences.reserve(static_cast<size_t>(num_items_));
  for (auto& [name, language] : languages_) {
    for (Item& item : language.items) sentences.push_back(std::move(item.text));
  }
  languages_.clear();
  Count();
  return sentences;
}

// The library throws at some models, for instance one with an empty piece.
std::unique_ptr<SentencePieces> SentencePieces::Load(std::string_view model_bytes,
                                                     std::string* error) {
  if (HasLongPiece(model_bytes)) {
    *error = "a piece has more than " + std::to_string(kMaxPieceBytes) + " bytes";
    return nullptr;
  }
  auto pieces = std::make_unique<LoadedPieces>();
  try {
    const auto status = pieces->processor().LoadFromSerializedProto(model_bytes);
    if (status.ok()) return pieces;
    *error = Readable(status.ToString());
  } catch (const std::exception& exception) {
    *error = exception.what();
  }
  return nullptr;
}

std::string TrainSentencePieces(const PieceTraining& training,
                                const std::vector<std::string>& sentences,
                                std::string* model_bytes) {
  std::unordered_map<std::string, std::string> arguments = {
      {"model_type", training.type},
      {"vocab_size", std::to_string(training.pieces)},
      {"character_coverage", std::to_string(training.character_coverage)},
      {"num_threads", std::to_string(training.threads)},
      {"hard_vocab_limit", "false"},
      {"train_extremely_large_corpus", "true"},
      {"bos_id", "0"},
      {"pad_id", "1"},
      {"eos_id", "2"},
      {"unk_id", "3"},
      {"minloglevel", "2"},
  };
  if (training.normalization.empty()) {
    arguments["normalization_rule_name"] = "nmt_nfkc_with_zwnj";
    arguments["precompiled_charsmap"] = DefaultRules();
  } else if (IsNormalizationName(training.normalization)) {
    arguments["normalization_rule_name"] = training.normalization;
  } else {
    arguments["normalization_rule_tsv"] = training.normalization;
  }
  sentencepiece::SetRandomGeneratorSeed(0);
  VectorIterator iterator(sentences);
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, model_bytes);
  return status.ok() ? std::string() : status.ToString();
}

}  // namespace deepnet
