// A bounded sample of the sentences a tokenizer learns from, drawn while all of them pass by.
//
// Every distinct sentence has a priority, a hash of (seed, language, text); a language keeps those
// below its threshold. When memory is full, each language's threshold falls so far that its share
// is lines^(1/T): with T = 5 the language that stands in every pair (English) does not drown the
// rest. A sentence that comes again has the same priority and is taken once. The sample depends on
// the set of sentences and their order by language, not on time or threads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

struct SentenceSampleSpec {
  int64_t max_sentences = 1000000;         // of all languages together
  int64_t max_bytes = int64_t{128} << 20;  // of their text
  double temperature = 5.0;                // T >= 1
  uint64_t seed = 0;
};

class SentenceSample {
 public:
  explicit SentenceSample(const SentenceSampleSpec& spec);

  void Add(std::string_view language, std::string_view sentence);

  // The sample, languages one after the other, in order of priority. The sample is empty
  // afterwards.
  std::vector<std::string> Take();

 private:
  struct Item {
    uint64_t priority;
    std::string text;
  };
  struct Language {
    uint64_t hash = 0;
    int64_t num_lines = 0;            // seen
    uint64_t threshold = UINT64_MAX;  // items below are kept
    std::vector<Item> items;
  };

  // Lowers thresholds until at most `max_sentences` and `max_bytes` are left.
  void Shrink(int64_t max_sentences, int64_t max_bytes);
  void CutTo(int64_t max_sentences);

  const SentenceSampleSpec spec_;
  std::map<std::string, Language, std::less<>> languages_;
  int64_t num_items_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace deepnet
