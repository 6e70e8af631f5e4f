// The search of one sentence, one token at a time, given what the model says of each live row. No
// model here: Search (search.h) feeds many of these from one Scorer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/decode/search.h"
#include "trainer/decode/top_k.h"

namespace deepnet {

// What all sentences of a search share.
struct SearchRules {
  SearchOptions options;
  std::vector<uint8_t> forbidden;         // [vocabulary_size] != 0: never emitted
  std::vector<uint8_t> forbidden_or_end;  // the same and </s>: while a hypothesis is too short
};

SearchRules MakeSearchRules(const SearchOptions& options, int64_t vocabulary_size);

// Live hypotheses are rows 0..num_live()-1; before the first Advance there is one, to which </s> is
// fed.
class SentenceSearch {
 public:
  // `rules` must outlive this; `prefix` is forced; `source_size` bounds the length (max_ratio).
  SentenceSearch(const SearchRules& rules, size_t source_size, std::vector<int32_t> prefix,
                 int64_t ordinal);

  // A hypothesis that goes on: what to feed, and which row of before it continues.
  struct Live {
    int parent = 0;  // row before the last Advance
    int32_t token = SpecialId::kEnd;
    int node = -1;  // of `nodes_`; -1: nothing decoded yet
    double log_prob = 0.0;
    int sample = 0;  // number of the sample; 0 in a beam
  };

  // Best first in a beam, by number when sampling; empty: the sentence is done.
  std::span<const Live> live() const { return live_; }

  // log_probs [num_live, vocabulary_size]: of the token after the one fed to each live row.
  void Advance(std::span<const float> log_probs);

  // The nbest, when done.
  std::vector<Hypothesis> TakeResult();

 private:
  struct Node {  // one decided token; hypotheses are paths to the root
    int32_t token;
    int parent;  // -1: the first
  };
  struct Candidate {
    double log_prob;
    int parent;  // live row
    int32_t token;
    int sample;
  };
  struct Finished {
    Hypothesis hypothesis;
    int sample;
  };

  void Force(int32_t token);
  void CollectEnds(std::span<const float> log_probs);
  void CollectBest(std::span<const float> log_probs);
  void CollectSamples(std::span<const float> log_probs);
  void TakeBeam();
  void TakeSamples();
  Live Extend(const Candidate& candidate);
  void Finish(const Candidate& candidate);
  bool CannotImprove() const;

  double Score(double log_prob, int length) const;
  std::span<const uint8_t> forbidden_now() const;

  const SearchRules& rules_;
  const std::vector<int32_t> prefix_;
  const int64_t ordinal_;
  int max_tokens_;
  size_t prefix_used_ = 0;
  int num_tokens_ = 0;  // of each live hypothesis, prefix not counted
  std::vector<Node> nodes_;
  std::vector<Live> live_;
  std::vector<Finished> finished_;
  std::vector<Candidate> candidates_;  // of this Advance; kept for its memory, like the next two
  std::vector<Live> next_;
  std::vector<TokenScore> best_;
};

}  // namespace deepnet
