#include "tests/support/exhaustive_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deepnet::testing {
namespace {

// A hypothesis while it grows: the tokens fed so far, the first </s> included.
struct Path {
  std::vector<int32_t> history{kEos};
  double log_prob = 0.0;

  int num_tokens() const { return static_cast<int>(history.size()) - 1; }
};

bool MayFollow(const Path& path, int32_t token, const SearchOptions& options) {
  if (token == kEos) return path.num_tokens() >= options.min_tokens;
  if (token == kBos || token == kPad) return false;
  if (path.num_tokens() >= options.max_tokens) return false;
  return std::find(options.forbidden.begin(), options.forbidden.end(), token) ==
         options.forbidden.end();
}

// Returns all continuations of `path` by one token, in order of id.
std::vector<Path> Continuations(const TableScorer& scorer, const std::vector<int32_t>& source,
                                const Path& path, const SearchOptions& options) {
  const std::vector<float> log_probs = scorer.LogProbs(source, path.history);
  std::vector<Path> continuations;
  for (int32_t token = 0; token < static_cast<int32_t>(log_probs.size()); ++token) {
    if (!MayFollow(path, token, options)) continue;
    Path& next = continuations.emplace_back(path);
    next.history.push_back(token);
    next.log_prob += log_probs[static_cast<size_t>(token)];
  }
  return continuations;
}

bool Ended(const Path& path) { return path.history.size() > 1 && path.history.back() == kEos; }

Hypothesis ToHypothesis(const Path& ended, const SearchOptions& options) {
  const double length = static_cast<double>(ended.history.size() - 1);
  return {.tokens = {ended.history.begin() + 1, ended.history.end() - 1},
          .log_prob = ended.log_prob,
          .score = ended.log_prob / std::pow(length, options.length_penalty)};
}

void SortByScore(std::vector<Hypothesis>& hypotheses) {
  std::stable_sort(hypotheses.begin(), hypotheses.end(),
                   [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
}

void Enumerate(const TableScorer& scorer, const std::vector<int32_t>& source, const Path& path,
               const SearchOptions& options, std::vector<Hypothesis>& outputs) {
  for (const Path& next : Continuations(scorer, source, path, options)) {
    if (Ended(next)) {
      outputs.push_back(ToHypothesis(next, options));
    } else {
      Enumerate(scorer, source, next, options, outputs);
    }
  }
}

}  // namespace

std::vector<Hypothesis> EnumerateOutputs(const TableScorer& scorer,
                                         const std::vector<int32_t>& source,
                                         const SearchOptions& options) {
  std::vector<Hypothesis> outputs;
  Enumerate(scorer, source, Path(), options, outputs);
  SortByScore(outputs);
  return outputs;
}

std::vector<Hypothesis> ObviousBeamSearch(const TableScorer& scorer,
                                          const std::vector<int32_t>& source,
                                          const SearchOptions& options) {
  const size_t beam_size = static_cast<size_t>(options.beam_size);
  std::vector<Hypothesis> finished;
  std::vector<Path> live(1);
  while (!live.empty() && finished.size() < beam_size) {
    std::vector<Path> candidates;
    for (const Path& path : live) {
      for (Path& next : Continuations(scorer, source, path, options)) {
        candidates.push_back(std::move(next));
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Path& a, const Path& b) { return a.log_prob > b.log_prob; });
    live.clear();
    for (size_t rank = 0; rank < std::min(2 * beam_size, candidates.size()); ++rank) {
      if (!Ended(candidates[rank])) {
        if (live.size() < beam_size) live.push_back(candidates[rank]);
      } else if (rank < beam_size && finished.size() < beam_size) {
        finished.push_back(ToHypothesis(candidates[rank], options));
      }
    }
  }
  SortByScore(finished);
  if (finished.size() > static_cast<size_t>(options.nbest)) {
    finished.resize(static_cast<size_t>(options.nbest));
  }
  return finished;
}

}  // namespace deepnet::testing
