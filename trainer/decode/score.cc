#include "trainer/decode/score.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

absl::Status DataError(const std::string& message) {
  return WithExitCode(absl::InvalidArgumentError(message), ExitCode::kData);
}

// One chunk of ScoreStream: what can be scored, and where its results go.
struct EncodedChunk {
  std::vector<IdPair> pairs;       // those that fit
  std::vector<size_t> num_tokens;  // of every pair's target
  std::vector<int> index;          // in `pairs`; -1: too long
};

EncodedChunk Encode(std::span<const TextPair> texts, const TextCodec& codec, const TagFrame& tags,
                    int max_positions) {
  EncodedChunk chunk;
  for (const TextPair& text : texts) {
    IdPair pair{.source = FrameIds(tags.source, codec.encode(text.source), 0),
                .target = FrameIds(tags.target, codec.encode(text.target), 0)};
    const size_t longer = std::max(pair.source.size(), pair.target.size());
    const bool fits = max_positions <= 0 || longer <= static_cast<size_t>(max_positions);
    chunk.num_tokens.push_back(pair.target.size());
    chunk.index.push_back(fits ? static_cast<int>(chunk.pairs.size()) : -1);
    if (fits) chunk.pairs.push_back(std::move(pair));
  }
  return chunk;
}

}  // namespace

std::vector<double> SteppedPairScorer::LogProbabilities(std::span<const IdPair> pairs) {
  std::vector<double> log_probabilities(pairs.size(), 0.0);
  const size_t max_rows = static_cast<size_t>(max_rows_);
  for (size_t first = 0; first < pairs.size(); first += max_rows) {
    ScoreBatch(pairs.subspan(first, std::min(max_rows, pairs.size() - first)),
               &log_probabilities[first]);
  }
  return log_probabilities;
}

void SteppedPairScorer::ScoreBatch(std::span<const IdPair> pairs, double* log_probabilities) {
  const size_t vocabulary_size = static_cast<size_t>(scorer_.vocabulary_size());
  std::vector<std::vector<int32_t>> sources;
  std::vector<size_t> live;  // pair of each row
  for (size_t i = 0; i < pairs.size(); ++i) {
    DEEPNET_CHECK(!pairs[i].target.empty()) << "pair " << i;
    sources.push_back(pairs[i].source);
    live.push_back(i);
  }
  const std::unique_ptr<DecoderState> state = scorer_.Start(sources);
  std::vector<float> log_probs(pairs.size() * vocabulary_size);
  std::vector<int32_t> tokens(pairs.size(), SpecialId::kEnd);
  for (size_t position = 0; !live.empty(); ++position) {
    scorer_.Step(*state, tokens, log_probs.data());
    std::vector<int32_t> parents;
    std::vector<size_t> still_live;
    tokens.clear();
    for (size_t row = 0; row < live.size(); ++row) {
      const std::vector<int32_t>& target = pairs[live[row]].target;
      const int32_t token = target[position];
      log_probabilities[live[row]] += log_probs[row * vocabulary_size + static_cast<size_t>(token)];
      if (position + 1 == target.size()) continue;
      parents.push_back(static_cast<int32_t>(row));
      tokens.push_back(token);
      still_live.push_back(live[row]);
    }
    if (!still_live.empty() && still_live.size() < live.size()) scorer_.Reorder(*state, parents);
    live = std::move(still_live);
  }
}

absl::StatusOr<std::vector<TextPair>> TextPairReader::ReadChunk(int max_pairs) {
  return targets_ == nullptr ? ReadTsv(max_pairs) : ReadTwo(max_pairs);
}

// Further columns, for example a score of the corpus, are left alone.
absl::StatusOr<std::vector<TextPair>> TextPairReader::ReadTsv(int max_pairs) {
  const int64_t first_line = sources_.num_lines() + 1;
  ASSIGN_OR_RETURN(std::vector<std::string> lines, sources_.ReadChunk(max_pairs));
  std::vector<TextPair> pairs;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t tab = lines[i].find('\t');
    if (tab == std::string::npos) {
      return DataError(absl::StrCat(sources_.name(), ", line ", first_line + i,
                                    ": no tab between source and target"));
    }
    const size_t end = lines[i].find('\t', tab + 1);
    pairs.push_back({.source = lines[i].substr(0, tab),
                     .target = lines[i].substr(
                         tab + 1, end == std::string::npos ? std::string::npos : end - tab - 1)});
  }
  return pairs;
}

// The sources decide how many lines a chunk has: it may end early where they hold many bytes.
absl::StatusOr<std::vector<TextPair>> TextPairReader::ReadTwo(int max_pairs) {
  ASSIGN_OR_RETURN(std::vector<std::string> sources, sources_.ReadChunk(max_pairs));
  std::vector<TextPair> pairs;
  for (std::string& source : sources) {
    ASSIGN_OR_RETURN(std::vector<std::string> target, targets_->ReadChunk(1));
    if (target.empty()) {
      return DataError(absl::StrCat(targets_->name(), ": ends after line ", targets_->num_lines(),
                                    ", before ", sources_.name()));
    }
    pairs.push_back({.source = std::move(source), .target = std::move(target.front())});
  }
  if (pairs.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> rest, targets_->ReadChunk(1));
    if (!rest.empty()) {
      return DataError(absl::StrCat(sources_.name(), ": ends after line ", sources_.num_lines(),
                                    ", before ", targets_->name()));
    }
  }
  return pairs;
}

absl::StatusOr<ScoreStreamReport> ScoreStream(TextPairReader& in, PairScorer& scorer,
                                              const TextCodec& codec, const TagFrame& tags,
                                              const ScoreStreamOptions& options,
                                              std::ostream& out) {
  ScoreStreamReport report;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<TextPair> texts, in.ReadChunk(options.chunk_pairs));
    if (texts.empty()) return report;
    const EncodedChunk chunk = Encode(texts, codec, tags, options.max_positions);
    const std::vector<double> log_probs = scorer.LogProbabilities(chunk.pairs);
    DEEPNET_CHECK_EQ(log_probs.size(), chunk.pairs.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      ++report.num_pairs;
      double log_prob = std::numeric_limits<double>::quiet_NaN();
      if (chunk.index[i] >= 0) {
        log_prob = log_probs[static_cast<size_t>(chunk.index[i])];
        ++report.num_scored;
        report.num_tokens += static_cast<int64_t>(chunk.num_tokens[i]);
        report.log_prob += log_prob;
      }
      out << absl::StrFormat("%.6f\t%d\n", log_prob, chunk.num_tokens[i]);
    }
    out.flush();
    if (!out) return absl::UnavailableError("cannot write scores: output is closed or full");
  }
}

}  // namespace deepnet
