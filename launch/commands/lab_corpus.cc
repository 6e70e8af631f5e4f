// `deepnet lab corpus`: the size of a corpus and what word frequencies alone give there.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"

#include "launch/commands/command.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxPairs = 200000;  // of a direction

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
      const int64_t pairs = std::min(kMaxPairs, direction.num_pairs);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const PairTokens tokens = corpus.Tokens(static_cast<int>(i), pair);
        for (const int32_t id : tokens.target) ++counts_[static_cast<size_t>(id)];
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
  absl::StatusOr<double> Of(std::string_view split, int64_t sentences) const {
    double sum = 0.0;
    int directions = 0;
    for (const Direction& direction : corpus_.TextDirections(split)) {
      if (!IsRead(direction.Name())) continue;
      const auto text = corpus_.Sentences(split, direction.source, direction.target);
      RETURN_IF_ERROR(WithExitCode(text.status(), ExitCode::kData));
      if (text->target.empty()) continue;
      const size_t all = text->target.size();
      const size_t count = sentences > 0 ? std::min(all, static_cast<size_t>(sentences)) : all;
      sum += OfSentences(std::span(text->target).first(count));
      ++directions;
    }
    return directions > 0 ? sum / directions : 0.0;
  }

 private:
  bool IsRead(const std::string& direction) const {
    return directions_.empty() || absl::c_linear_search(directions_, direction);
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

absl::Status RunLabCorpus(const CommandLine& line) {
  RETURN_IF_ERROR(line.flags.CheckRequired());
  const auto corpus = Corpus::Open(ResolvePath(line, line.flags.Text("data")));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  const std::vector<std::string>& directions = line.flags.List("direction");
  const WordFrequencies frequencies(*corpus, directions);
  RETURN_IF_ERROR(WithExitCode(corpus->Intact(), ExitCode::kData));
  ASSIGN_OR_RETURN(const double dev, frequencies.Of("dev", line.flags.Integer("dev-sentences")));
  ASSIGN_OR_RETURN(const double test, frequencies.Of("test", line.flags.Integer("test-sentences")));
  const JsonObject json = JsonObject()
                              .Add("pairs", corpus->manifest().report().kept())
                              .Add("vocabulary_size", corpus->vocabulary().size())
                              .Add("languages", corpus->vocabulary().languages())
                              .Add("word_frequency_nll", frequencies.OfTraining())
                              .Add("word_frequency_dev_nll", dev)
                              .Add("word_frequency_test_nll", test)
                              .Add("content_hash", corpus->content_hash());
  line.out << JsonOf(json) << "\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeLabCorpusCommand() {
  return {
      .name = "corpus",
      .summary = "Print the size of a prepared corpus and what word frequencies alone give.",
      .description =
          "Prints JSON: pairs, vocabulary, languages and the nats a target token of a model "
          "that knows only how often each piece occurs, on the training text and on the dev "
          "and test sentences, mean over directions. Frequencies are those of the target "
          "sides, </s> included, of at most 200,000 training pairs of each direction; a piece "
          "that does not occur there counts as if it had once.",
      .flags = {Required(TextFlag("data", "FOLDER", "The prepared corpus; required.")),
                ListFlag("direction", "XX-YY", "Only this one; may be given often. Default: all."),
                IntegerFlag("dev-sentences", "The first ones of each direction; 0: all.", "0",
                            {.least = 0}),
                IntegerFlag("test-sentences", "The first ones of each direction; 0: all.", "0",
                            {.least = 0})},
      .run = RunLabCorpus};
}

}  // namespace deepnet
