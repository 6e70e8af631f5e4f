#include "trainer/decode/text_stream.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/line_reader.h"

namespace deepnet {
namespace {

absl::Status DataError(const std::string& message) {
  return WithExitCode(absl::InvalidArgumentError(message), ExitCode::kData);
}

absl::Status Flush(std::ostream& out) {
  out.flush();
  return WithPrefix("standard output", StreamError(out));
}

// A number of texts without line breaks.
using Chunk = std::vector<std::string>;

std::string Pack(std::span<const Chunk> chunks) {
  std::string packed;
  for (const Chunk& chunk : chunks) {
    absl::StrAppend(&packed, chunk.size(), "\n");
    for (const std::string& text : chunk) absl::StrAppend(&packed, text, "\n");
  }
  return packed;
}

std::vector<Chunk> Unpack(std::string_view packed) {
  const auto next = [&packed] {
    std::string line(packed.substr(0, packed.find('\n')));
    packed.remove_prefix(line.size() + 1);
    return line;
  };
  std::vector<Chunk> chunks;
  while (!packed.empty()) {
    chunks.emplace_back(std::stoul(next()));
    for (std::string& text : chunks.back()) text = next();
  }
  return chunks;
}

// Adds the bytes of a value; ranks of a job run the same binary.
template <typename T>
void AddBytes(const T& value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T TakeBytes(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

// The parts of a stream's work. Only rank 0 reads and writes.
struct Rounds {
  std::function<absl::StatusOr<Chunk>()> read;  // an empty chunk at the end
  // Returns this rank's share of the results for the chunks, one a rank or fewer.
  std::function<absl::StatusOr<std::string>(const std::vector<Chunk>& chunks)> work;
  std::function<absl::Status(const std::vector<std::string>& parts)> write;  // by rank
};

absl::Status RunRounds(Communicator& world, const Rounds& rounds) {
  while (true) {
    std::vector<Chunk> chunks;
    absl::Status read, written;
    while (world.rank() == 0 && std::ssize(chunks) < world.size()) {
      absl::StatusOr<Chunk> chunk = rounds.read();
      read = chunk.status();
      if (!read.ok() || chunk->empty()) break;
      chunks.push_back(*std::move(chunk));
    }
    ASSIGN_OR_RETURN(const std::string sent, BroadcastText(world, Pack(chunks), 0));
    if (!sent.empty()) {
      const absl::StatusOr<std::string> mine = rounds.work(Unpack(sent));
      RETURN_IF_ERROR(AgreeOnStatus(world, mine.status()));
      ASSIGN_OR_RETURN(const std::vector<std::string> parts, GatherText(world, *mine));
      if (world.rank() == 0) written = rounds.write(parts);
    }
    written.Update(read);  // what was read before an error is still written
    RETURN_IF_ERROR(AgreeOnStatus(world, written));
    if (sent.empty()) return absl::OkStatus();
  }
}

// Translations of one input line as a rank sends them.
struct LineHead {
  int64_t index = 0;  // of the line in this round
  int64_t num_tokens = 0;
  int64_t source_cut = 0;
  int64_t num_bytes = 0;  // of the lines that follow
};

// Appends the output lines for one input line, `number` from 1.
void AddOutput(const Translation& translation, int64_t number, bool numbered, bool scores,
               std::string& lines) {
  for (const TranslatedText& text : translation.best) {
    if (numbered) absl::StrAppend(&lines, number, "\t");
    if (scores) absl::StrAppendFormat(&lines, "%.6f\t", text.score);
    absl::StrAppend(&lines, text.text, "\n");
  }
}

// Sources and targets in turns.
Chunk ToChunk(std::vector<TextPair> pairs) {
  Chunk texts;
  for (TextPair& pair : pairs) {
    texts.push_back(std::move(pair.source));
    texts.push_back(std::move(pair.target));
  }
  return texts;
}

struct Sides {
  Chunk sources, targets;
};

Sides FromChunk(const Chunk& texts) {
  Sides sides;
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    sides.sources.push_back(texts[i]);
    sides.targets.push_back(texts[i + 1]);
  }
  return sides;
}

struct ScoredPair {
  double log_prob = std::numeric_limits<double>::quiet_NaN();
  int64_t num_tokens = 0;
  int64_t fits = 0;  // 0: too long for the model, and not scored
};

// `texts` are sources and targets in turns.
std::vector<ScoredPair> ScoreChunk(const Chunk& texts, PairScorer& scorer, const TextCodec& codec,
                                   const TagFrame& tags, int max_positions) {
  std::vector<ScoredPair> scored;
  std::vector<IdPair> pairs;  // those that fit
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    IdPair pair{.source = FrameIds(tags.source, codec.encode(texts[i]), 0),
                .target = FrameIds(tags.target, codec.encode(texts[i + 1]), 0)};
    const size_t longer = std::max(pair.source.size(), pair.target.size());
    const bool fits = max_positions <= 0 || longer <= static_cast<size_t>(max_positions);
    scored.push_back({.num_tokens = static_cast<int64_t>(pair.target.size()), .fits = fits});
    if (fits) pairs.push_back(std::move(pair));
  }
  const std::vector<double> log_probs = scorer.LogProbabilities(pairs);
  DEEPNET_CHECK_EQ(log_probs.size(), pairs.size());
  auto next = log_probs.begin();
  for (ScoredPair& pair : scored) {
    if (pair.fits != 0) pair.log_prob = *next++;
  }
  return scored;
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
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(name_, ", line ", num_lines_, ": ", what)),
        ExitCode::kData);
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
  TranslateStreamReport report;
  int64_t num_lines = 0, num_written = 0;
  const bool forces = options.prefixes != nullptr;
  TextPairReader pairs(in, options.prefixes);
  const auto read = [&]() -> absl::StatusOr<Chunk> {
    if (!forces) return in.ReadChunk(options.chunk_lines);
    ASSIGN_OR_RETURN(std::vector<TextPair> read_pairs, pairs.ReadChunk(options.chunk_lines));
    return ToChunk(std::move(read_pairs));
  };
  const auto work = [&](const std::vector<Chunk>& chunks) -> absl::StatusOr<std::string> {
    std::string mine, lines;
    const int64_t first = num_lines;
    for (const Chunk& chunk : chunks) {
      const Sides sides = forces ? FromChunk(chunk) : Sides{.sources = chunk, .targets = {}};
      ASSIGN_OR_RETURN(const std::vector<Translation> translations,
                       translator.Translate(sides.sources, num_lines, sides.targets));
      for (const Translation& translation : translations) {
        const int64_t index = num_lines++ - first;
        if (translation.best.empty()) continue;
        lines.clear();
        AddOutput(translation, num_lines, numbered, options.scores, lines);
        AddBytes(LineHead{.index = index,
                          .num_tokens = translation.best.front().num_tokens,
                          .source_cut = translation.source_cut ? 1 : 0,
                          .num_bytes = std::ssize(lines)},
                 mine);
        mine += lines;
      }
    }
    return mine;
  };
  const auto write = [&](const std::vector<std::string>& parts) {
    std::vector<std::string_view> lines(static_cast<size_t>(num_lines - num_written));
    for (std::string_view part : parts) {
      while (!part.empty()) {
        const LineHead head = TakeBytes<LineHead>(part);
        lines[static_cast<size_t>(head.index)] =
            part.substr(0, static_cast<size_t>(head.num_bytes));
        part.remove_prefix(static_cast<size_t>(head.num_bytes));
        report.num_tokens += head.num_tokens;
        report.num_cut_sources += head.source_cut;
      }
    }
    for (const std::string_view line : lines) out << line;
    num_written = report.num_lines = num_lines;
    return Flush(out);
  };
  RETURN_IF_ERROR(RunRounds(world, {.read = read, .work = work, .write = write}));
  return report;
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
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  ScoreStreamReport report;
  const auto read = [&]() -> absl::StatusOr<Chunk> {
    ASSIGN_OR_RETURN(std::vector<TextPair> pairs, in.ReadChunk(options.chunk_pairs));
    return ToChunk(std::move(pairs));
  };
  const auto work = [&](const std::vector<Chunk>& chunks) -> absl::StatusOr<std::string> {
    std::string mine;
    if (world.rank() >= std::ssize(chunks)) return mine;
    const Chunk& own = chunks[static_cast<size_t>(world.rank())];
    for (const ScoredPair& pair : ScoreChunk(own, scorer, codec, tags, options.max_positions)) {
      AddBytes(pair, mine);
    }
    return mine;
  };
  const auto write = [&](const std::vector<std::string>& parts) {
    for (std::string_view part : parts) {
      while (!part.empty()) {
        const ScoredPair pair = TakeBytes<ScoredPair>(part);
        ++report.num_pairs;
        if (pair.fits != 0) {
          ++report.num_scored;
          report.num_tokens += pair.num_tokens;
          report.log_prob += pair.log_prob;
        }
        out << absl::StrFormat("%.6f\t%d\n", pair.log_prob, pair.num_tokens);
      }
    }
    return Flush(out);
  };
  RETURN_IF_ERROR(RunRounds(world, {.read = read, .work = work, .write = write}));
  return report;
}

}  // namespace deepnet
