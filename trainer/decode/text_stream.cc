#include "trainer/decode/text_stream.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/utf8.h"

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

absl::StatusOr<std::vector<std::string>> LineChunkReader::ReadChunk(int max_lines) {
  std::vector<std::string> lines;
  size_t num_bytes = 0;
  while (static_cast<int>(lines.size()) < max_lines && num_bytes < kMaxChunkBytes) {
    std::string line;
    ASSIGN_OR_RETURN(const bool found, ReadLine(line));
    if (!found) break;
    num_bytes += line.size();
    lines.push_back(std::move(line));
  }
  return lines;
}

// Byte by byte from the buffer: std::getline would take a line of any length into memory.
absl::StatusOr<bool> LineChunkReader::ReadLine(std::string& line) {
  using Traits = std::streambuf::traits_type;
  std::streambuf& buffer = *in_.rdbuf();
  Traits::int_type next = buffer.sbumpc();
  if (Traits::eq_int_type(next, Traits::eof())) return false;
  ++num_lines_;
  const auto fail = [&](const std::string& what) {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(name_, ", line ", num_lines_, ": ", what)),
        ExitCode::kData);
  };
  for (; !Traits::eq_int_type(next, Traits::eof()); next = buffer.sbumpc()) {
    const char c = Traits::to_char_type(next);
    if (c == '\n') break;
    if (line.size() == kMaxLineBytes) {
      return fail(absl::StrCat("longer than ", kMaxLineBytes, " bytes"));
    }
    line.push_back(c);
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (num_lines_ == 1 && HasUtf16Mark(line)) {
    return fail("UTF-16, convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  if (!IsUtf8(line)) return fail("not UTF-8");
  return true;
}

absl::StatusOr<TranslateStreamReport> TranslateStream(LineChunkReader& in, Translator& translator,
                                                      const TranslateStreamOptions& options,
                                                      std::ostream& out) {
  const bool numbered = translator.options().search.nbest > 1;
  TranslateStreamReport report;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<std::string> lines, in.ReadChunk(options.chunk_lines));
    if (lines.empty()) return report;
    ASSIGN_OR_RETURN(const std::vector<Translation> translations,
                     translator.Translate(lines, report.num_lines));
    for (const Translation& translation : translations) {
      ++report.num_lines;
      report.num_tokens += translation.best.front().num_tokens;
      report.num_cut_sources += translation.source_cut ? 1 : 0;
      for (const TranslatedText& text : translation.best) {
        if (numbered) out << report.num_lines << '\t';
        if (options.scores) out << absl::StrFormat("%.6f\t", text.score);
        out << text.text << '\n';
      }
    }
    out.flush();
    if (!out) return absl::UnavailableError("cannot write translations: output is closed or full");
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
