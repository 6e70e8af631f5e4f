#include "trainer/data/sentence_sample.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

// What one kept sentence costs beside its characters.
constexpr int64_t kItemBytes = 48;

}  // namespace

SentenceSample::SentenceSample(const SentenceSampleSpec& spec) : spec_(spec) {}

void SentenceSample::Add(std::string_view language, std::string_view sentence) {
  auto found = languages_.find(language);
  if (found == languages_.end()) {
    found = languages_.emplace(std::string(language), Language()).first;
    found->second.hash = HashBytes(language, spec_.seed);
  }
  Language& entry = found->second;
  ++entry.num_lines;
  const uint64_t priority = HashBytes(sentence, entry.hash);
  if (priority >= entry.threshold) return;
  entry.items.push_back({priority, std::string(sentence)});
  ++num_items_;
  num_bytes_ += static_cast<int64_t>(sentence.size()) + kItemBytes;
  // A quarter of slack, so that shrinking is rare.
  if (num_items_ > spec_.max_sentences + spec_.max_sentences / 4 || num_bytes_ > spec_.max_bytes) {
    Shrink(spec_.max_sentences, spec_.max_bytes / 4 * 3);
  }
}

void SentenceSample::CutTo(int64_t max_sentences) {
  double total = 0.0;
  const auto weight = [this](const Language& language) {
    return std::pow(static_cast<double>(language.num_lines), 1.0 / spec_.temperature);
  };
  for (const auto& [name, language] : languages_) total += weight(language);
  num_items_ = 0;
  num_bytes_ = 0;
  for (auto& [name, language] : languages_) {
    std::vector<Item>& items = language.items;
    const auto quota =
        static_cast<size_t>(static_cast<double>(max_sentences) * weight(language) / total);
    if (items.size() > quota) {
      language.threshold = items[quota].priority;
      items.resize(quota);
    }
    num_items_ += static_cast<int64_t>(items.size());
    for (const Item& item : items)
      num_bytes_ += static_cast<int64_t>(item.text.size()) + kItemBytes;
  }
}

void SentenceSample::Shrink(int64_t max_sentences, int64_t max_bytes) {
  num_items_ = 0;
  num_bytes_ = 0;
  for (auto& [name, language] : languages_) {
    std::vector<Item>& items = language.items;
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::tie(a.priority, a.text) < std::tie(b.priority, b.text);
    });
    items.erase(std::unique(items.begin(), items.end(),
                            [](const Item& a, const Item& b) {
                              return a.priority == b.priority && a.text == b.text;
                            }),
                items.end());
    num_items_ += static_cast<int64_t>(items.size());
    for (const Item& item : items)
      num_bytes_ += static_cast<int64_t>(item.text.size()) + kItemBytes;
  }
  if (num_items_ > max_sentences) CutTo(max_sentences);
  while (num_bytes_ > max_bytes && num_items_ > 1) {
    CutTo(num_items_ / 8 * 7);
  }
}

std::vector<std::string> SentenceSample::Take() {
  Shrink(spec_.max_sentences, spec_.max_bytes);
  std::vector<std::string> sentences;
  sentences.reserve(static_cast<size_t>(num_items_));
  for (auto& [name, language] : languages_) {
    for (Item& item : language.items) sentences.push_back(std::move(item.text));
  }
  languages_.clear();
  num_items_ = 0;
  num_bytes_ = 0;
  return sentences;
}

}  // namespace deepnet
