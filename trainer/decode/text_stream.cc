#include "trainer/decode/text_stream.h"

#include <algorithm>
#include <functional>
#include <map>
#include <streambuf>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/line_reader.h"

namespace deepnet {
namespace {

// A round stays far below what a message may hold.
constexpr size_t kMaxRoundBytes = size_t{1} << 30;

// The parts of a stream's work. Only rank 0 reads and counts.
struct Rounds {
  std::function<absl::StatusOr<TextBatch>()> read;  // no sources at the end
  // Adds what comes of this rank's share.
  std::function<absl::Status(const TextRound& round, LineResults& mine)> work;
  std::function<void(const LineResult&)> count;  // called in the order of the lines
};

// Writes the results of all ranks.
absl::Status Write(const std::vector<std::string>& parts, const Rounds& rounds, std::ostream& out) {
  std::map<int64_t, LineResult> by_line;
  for (const std::string& part : parts) {
    LineResults results;
    RETURN_IF_ERROR(ParseSent(part, results));
    for (LineResult& result : *results.mutable_results()) {
      by_line[result.line()] = std::move(result);
    }
  }
  for (const auto& [line, result] : by_line) {
    out << result.output();
    rounds.count(result);
  }
  out.flush();
  return WithPrefix("standard output", StreamError(out));
}

absl::Status RunRounds(Communicator& world, const Rounds& rounds, std::ostream& out) {
  while (true) {
    TextRound round;
    absl::Status read, written;
    while (world.rank() == 0 && round.batches_size() < world.size() &&
           round.ByteSizeLong() < kMaxRoundBytes) {
      absl::StatusOr<TextBatch> batch = rounds.read();
      read = batch.status();
      if (!read.ok() || batch->sources().empty()) break;
      *round.add_batches() = *std::move(batch);
    }
    ASSIGN_OR_RETURN(const std::string sent, BroadcastText(world, ToBytes(round), 0));
    RETURN_IF_ERROR(AgreeOnStatus(world, ParseSent(sent, round)));
    if (!round.batches().empty()) {
      LineResults mine;
      RETURN_IF_ERROR(AgreeOnStatus(world, rounds.work(round, mine)));
      ASSIGN_OR_RETURN(const std::vector<std::string> parts, GatherText(world, ToBytes(mine)));
      if (world.rank() == 0) written = Write(parts, rounds, out);
    }
    written.Update(read);  // what was read before an error is still written
    RETURN_IF_ERROR(AgreeOnStatus(world, written));
    if (round.batches().empty()) return absl::OkStatus();
  }
}

// Returns the output lines for one input line, `number` from 1.
std::string OutputOf(const Translation& translation, int64_t number, bool numbered, bool scores) {
  std::string lines;
  for (const TranslatedText& text : translation.best) {
    if (numbered) absl::StrAppend(&lines, number, "\t");
    if (scores) absl::StrAppendFormat(&lines, "%.6f\t", text.score);
    absl::StrAppend(&lines, text.text, "\n");
  }
  return lines;
}

std::vector<std::string> TextsOf(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  return {texts.begin(), texts.end()};
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
  if (Traits::eq_int_type(next, Traits::eof())) {
    RETURN_IF_ERROR(WithPrefix(absl::StrCat(name_, ", after line ", num_lines_), StreamError(in_)));
    return false;
  }
  ++num_lines_;
  const auto fail = [&](const std::string& what) {
    return DataError(name_, ", line ", num_lines_, ": ", what);
  };
  for (;; next = buffer.sbumpc()) {
    if (Traits::eq_int_type(next, Traits::eof())) {
      RETURN_IF_ERROR(WithPrefix(absl::StrCat(name_, ", line ", num_lines_), StreamError(in_)));
      break;
    }
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
  if (!IsUtf8(line)) {
    const std::string format(num_lines_ == 1 ? ForeignFormat(line) : "");
    return fail(format.empty() ? "not UTF-8" : absl::StrCat(format, ", unpack it first"));
  }
  if (num_lines_ == 1) line = WithoutMark(line);
  return true;
}

absl::StatusOr<TranslateStreamReport> TranslateStream(LineChunkReader& in, Translator& translator,
                                                      const TranslateStreamOptions& options,
                                                      std::ostream& out) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  DEEPNET_CHECK_EQ(translator.options().share.num_parts, world.size());
  const bool numbered = translator.options().search.nbest > 1;
  const auto read = [&]() -> absl::StatusOr<TextBatch> {
    if (options.prefixes != nullptr)
      return ReadTextPairs(in, options.prefixes, options.chunk_lines);
    ASSIGN_OR_RETURN(const std::vector<std::string> lines, in.ReadChunk(options.chunk_lines));
    TextBatch batch;
    batch.mutable_sources()->Assign(lines.begin(), lines.end());
    return batch;
  };
  int64_t num_lines = 0;  // before the next one
  const auto work = [&](const TextRound& round, LineResults& mine) -> absl::Status {
    for (const TextBatch& batch : round.batches()) {
      ASSIGN_OR_RETURN(
          const std::vector<Translation> translations,
          translator.Translate(TextsOf(batch.sources()), num_lines, TextsOf(batch.targets())));
      for (const Translation& translation : translations) {
        ++num_lines;
        if (translation.best.empty()) continue;  // another rank's
        LineResult& result = *mine.add_results();
        result.set_line(num_lines);
        result.set_output(OutputOf(translation, num_lines, numbered, options.scores));
        result.set_num_tokens(translation.best.front().num_tokens);
        result.set_too_long(translation.source_cut);
      }
    }
    return absl::OkStatus();
  };
  TranslateStreamReport report;
  const auto count = [&](const LineResult& result) {
    ++report.num_lines;
    report.num_tokens += result.num_tokens();
    report.num_cut_sources += result.too_long() ? 1 : 0;
  };
  RETURN_IF_ERROR(RunRounds(world, {.read = read, .work = work, .count = count}, out));
  return report;
}

namespace {

// Further columns, for example a score of the corpus, are left alone.
absl::StatusOr<TextBatch> ReadTsv(LineChunkReader& in, int max_pairs) {
  const int64_t first_line = in.num_lines() + 1;
  ASSIGN_OR_RETURN(std::vector<std::string> lines, in.ReadChunk(max_pairs));
  TextBatch batch;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t tab = lines[i].find('\t');
    if (tab == std::string::npos) {
      return DataError(in.name(), ", line ", first_line + i, ": no tab between source and target");
    }
    batch.add_sources(lines[i].substr(0, tab));
    const std::string rest = lines[i].substr(tab + 1);
    batch.add_targets(rest.substr(0, rest.find('\t')));
  }
  return batch;
}

}  // namespace

// The sources decide how many lines a chunk has: it may end early where they hold many bytes.
absl::StatusOr<TextBatch> ReadTextPairs(LineChunkReader& sources, LineChunkReader* targets,
                                        int max_pairs) {
  if (targets == nullptr) return ReadTsv(sources, max_pairs);
  const auto ends_first = [](const LineChunkReader& ended, const LineChunkReader& other) {
    return DataError(ended.name(), ": ends after line ", ended.num_lines(), ", before ",
                     other.name());
  };
  ASSIGN_OR_RETURN(std::vector<std::string> lines, sources.ReadChunk(max_pairs));
  TextBatch batch;
  for (std::string& source : lines) {
    ASSIGN_OR_RETURN(std::vector<std::string> target, targets->ReadChunk(1));
    if (target.empty()) return ends_first(*targets, sources);
    batch.add_sources(std::move(source));
    batch.add_targets(std::move(target.front()));
  }
  if (lines.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> rest, targets->ReadChunk(1));
    if (!rest.empty()) return ends_first(sources, *targets);
  }
  return batch;
}

absl::StatusOr<ScoreStreamReport> ScoreStream(LineChunkReader& in, PairScorer& scorer,
                                              const TextCodec& codec,
                                              const ScoreStreamOptions& options,
                                              std::ostream& out) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  int64_t num_pairs = 0;  // before the next batch
  const auto score = [&](const TextBatch& batch, LineResults& mine) {
    std::vector<EncodedPair> pairs;  // those that fit
    for (int i = 0; i < batch.sources_size(); ++i) {
      EncodedPair pair{.source = FrameIds(options.tags.source, codec.encode(batch.sources(i))),
                       .labels = FrameIds(options.tags.target, codec.encode(batch.targets(i)))};
      const size_t longer = std::max(pair.source.size(), pair.labels.size());
      LineResult& result = *mine.add_results();
      result.set_line(num_pairs + i);
      result.set_num_tokens(std::ssize(pair.labels));
      result.set_too_long(options.max_positions > 0 &&
                          longer > static_cast<size_t>(options.max_positions));
      if (!result.too_long()) pairs.push_back(std::move(pair));
    }
    const std::vector<double> log_probs = scorer.LogProbabilities(pairs);
    DEEPNET_CHECK_EQ(log_probs.size(), pairs.size());
    auto next = log_probs.begin();
    for (LineResult& result : *mine.mutable_results()) {
      result.set_log_prob(result.too_long() ? std::nan("") : *next++);
      result.set_output(absl::StrFormat("%.6f\t%d\n", result.log_prob(), result.num_tokens()));
    }
  };
  const auto work = [&](const TextRound& round, LineResults& mine) {
    for (int i = 0; i < round.batches_size(); ++i) {
      if (i == world.rank()) score(round.batches(i), mine);
      num_pairs += round.batches(i).sources_size();
    }
    return absl::OkStatus();
  };
  ScoreStreamReport report;
  const auto count = [&](const LineResult& result) {
    ++report.num_pairs;
    if (result.too_long()) return;
    ++report.num_scored;
    report.num_tokens += result.num_tokens();
    report.log_prob += result.log_prob();
  };
  const auto read = [&] { return ReadTextPairs(in, options.targets, options.chunk_pairs); };
  RETURN_IF_ERROR(RunRounds(world, {.read = read, .work = work, .count = count}, out));
  return report;
}

}  // namespace deepnet
