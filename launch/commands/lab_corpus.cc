#include "launch/commands/lab_corpus.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"

namespace deepnet {
namespace {

constexpr int64_t kMostPairs = 200000;  // of a direction

// How often each piece occurs, and what a model that knows no more pays for text.
class WordFrequencies {
 public:
  WordFrequencies(const Corpus& corpus, const std::vector<std::string>& directions)
      : corpus_(corpus),
        directions_(directions),
        counts_(static_cast<size_t>(corpus.vocabulary().size()), 1) {
    for (size_t i = 0; i < corpus.directions().size(); ++i) {
      const Direction& direction = corpus.directions()[i];
      if (!IsRead(direction.Name())) continue;
      const int64_t pairs = std::min(kMostPairs, direction.num_pairs);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const TokenSpan target = corpus.Tokens(static_cast<int>(i), pair).target;
        for (size_t j = 0; j < target.size(); ++j) ++counts_[static_cast<size_t>(target[j])];
        ++counts_[kEos];
      }
    }
    for (const int64_t count : counts_) all_ += static_cast<double>(count);
  }

  // On the training text itself: the entropy.
  double OfTraining() const {
    double sum = 0.0;
    for (const int64_t count : counts_) sum += static_cast<double>(count) / all_ * Price(count);
    return sum;
  }

  // On the first `sentences` of each direction of `split`, mean over directions; 0 if it has none.
  double Of(std::string_view split, int sentences) const {
    double sum = 0.0;
    int directions = 0;
    for (const Direction& direction : corpus_.TextDirections(split)) {
      if (!IsRead(direction.Name())) continue;
      const auto text = corpus_.Sentences(split, direction.source, direction.target);
      if (!text.ok() || text->target.empty()) continue;
      const size_t all = text->target.size();
      const size_t count = sentences > 0 ? std::min(all, static_cast<size_t>(sentences)) : all;
      sum += OfSentences(std::span(text->target).first(count));
      ++directions;
    }
    return directions > 0 ? sum / directions : 0.0;
  }

 private:
  bool IsRead(const std::string& direction) const {
    return directions_.empty() ||
           std::find(directions_.begin(), directions_.end(), direction) != directions_.end();
  }

  double Price(int64_t count) const { return std::log(all_ / static_cast<double>(count)); }

  double OfSentences(std::span<const std::string> sentences) const {
    double sum = 0.0;
    int64_t tokens = 0;
    for (const std::string& sentence : sentences) {
      std::vector<int32_t> pieces = corpus_.vocabulary().Encode(sentence);
      pieces.push_back(kEos);
      for (const int32_t piece : pieces) sum += Price(counts_[static_cast<size_t>(piece)]);
      tokens += static_cast<int64_t>(pieces.size());
    }
    return sum / static_cast<double>(tokens);
  }

  const Corpus& corpus_;
  const std::vector<std::string>& directions_;
  std::vector<int64_t> counts_;
  double all_ = 0.0;
};

}  // namespace

absl::StatusOr<LabData> DescribeLabData(const std::string& folder, const LabReading& reading) {
  const auto corpus = Corpus::Open(folder);
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  LabData data;
  data.set_folder(folder);
  data.set_pairs(corpus->manifest().report().kept());
  data.set_vocabulary_size(corpus->vocabulary().size());
  for (const std::string& language : corpus->vocabulary().languages()) data.add_languages(language);
  data.set_content_hash(corpus->content_hash());
  const WordFrequencies frequencies(*corpus, reading.directions);
  data.set_word_frequency_nll(frequencies.OfTraining());
  data.set_word_frequency_dev_nll(frequencies.Of("dev", reading.dev_sentences));
  data.set_word_frequency_test_nll(frequencies.Of("test", reading.test_sentences));
  return data;
}

}  // namespace deepnet
