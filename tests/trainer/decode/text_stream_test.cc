#include "trainer/decode/text_stream.h"

#include <unistd.h>

#include <functional>
#include <optional>
#include <sstream>

#include "absl/strings/str_format.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/comm/agreement.h"
#include "tests/support/run_ranks.h"
#include "tests/support/stepped_pair_scorer.h"
#include "tests/support/table_scorer.h"
#include "trainer/decode/search.h"
#include "trainer/decode/text_stream.h"

namespace deepnet {
namespace {

using ::deepnet::testing::SteppedPairScorer;
using ::deepnet::testing::TableScorer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> ReadAll(const std::string& text, int max_lines) {
  std::istringstream in(text);
  LineChunkReader reader(in, "standard input");
  auto lines = reader.ReadChunk(max_lines);
  EXPECT_TRUE(lines.ok()) << lines.status();
  return lines.ok() ? *lines : std::vector<std::string>();
}

std::string ErrorOf(const std::string& text) {
  std::istringstream in(text);
  LineChunkReader reader(in, "standard input");
  const auto lines = reader.ReadChunk(100);
  EXPECT_EQ(GetExitCode(lines.status()), ExitCode::kData);
  return std::string(lines.status().message());
}

TEST(LineChunkReader, CutsAtLineEndsOfEitherKindAndKeepsALastLineWithoutOne) {
  EXPECT_THAT(ReadAll("a b\r\n\nc", 10), ElementsAre("a b", "", "c"));
  EXPECT_THAT(ReadAll("a\n", 10), ElementsAre("a"));
  EXPECT_THAT(ReadAll("\ufeffa\n\ufeffb\u2028c\n", 10), ElementsAre("a", "\ufeffb\u2028c"));
  EXPECT_THAT(ReadAll("", 10), IsEmpty());
}

TEST(LineChunkReader, GoesOnWhereTheLastChunkEnded) {
  std::istringstream in("a\nb\nc\n");
  LineChunkReader reader(in, "standard input");
  EXPECT_THAT(*reader.ReadChunk(2), ElementsAre("a", "b"));
  EXPECT_THAT(*reader.ReadChunk(2), ElementsAre("c"));
  EXPECT_THAT(*reader.ReadChunk(2), IsEmpty());
  EXPECT_EQ(reader.num_lines(), 3);
}

TEST(LineChunkReader, EndsAChunkThatHoldsEnoughBytes) {
  const std::string line(LineChunkReader::kMaxLineBytes, 'x');
  std::string text;
  for (int i = 0; i < 10; ++i) text += line + "\n";
  EXPECT_EQ(ReadAll(text, 100).size(),
            LineChunkReader::kMaxChunkBytes / LineChunkReader::kMaxLineBytes);
}

// The peer is gone with a byte unread, which resets the connection behind what it has sent.
TEST(LineChunkReader, AnErrorWithinALineIsNotItsEnd) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  FdStream in(ends[0]);
  ASSERT_EQ(write(ends[0], "x", 1), 1);
  ASSERT_EQ(write(ends[1], "whole\nhalf", 10), 10);
  close(ends[1]);
  LineChunkReader reader(in, "standard input");
  EXPECT_THAT(*reader.ReadChunk(1), ElementsAre("whole"));
  const auto lines = reader.ReadChunk(1);
  EXPECT_EQ(GetExitCode(lines.status()), ExitCode::kData);
  EXPECT_THAT(std::string(lines.status().message()),
              HasSubstr("standard input, line 2: cannot be"));
  close(ends[0]);
}

TEST(LineChunkReader, RefusesALineThatIsTooLong) {
  const std::string line(LineChunkReader::kMaxLineBytes + 1, 'x');
  EXPECT_THAT(ErrorOf("short\n" + line), HasSubstr("standard input, line 2: longer than"));
}

TEST(LineChunkReader, RefusesWhatIsNoUtf8AndNamesTheLine) {
  EXPECT_EQ(ErrorOf("gut\nschlecht \xFC\n"), "standard input, line 2: not UTF-8");
  EXPECT_EQ(ErrorOf("\x1f\x8b\x08 \n"), "standard input, line 1: gzip, unpack it first");
}

constexpr int32_t kTag = 30;

// Every byte of a text is the id 4.
TextCodec ByteCodec() {
  return {.encode = [](std::string_view text) { return std::vector<int32_t>(text.size(), 4); },
          .decode = [](std::span<const int32_t> ids) { return std::string(ids.size(), 'a'); }};
}

TableScorer MakeScorer() { return TableScorer({.vocabulary_size = 31, .seed = 2}); }

double DirectLogProbability(const TableScorer& scorer, const EncodedPair& pair) {
  std::vector<int32_t> history = {kEos};
  double sum = 0.0;
  for (const int32_t token : pair.labels) {
    sum += scorer.LogProbs(pair.source, history)[static_cast<size_t>(token)];
    history.push_back(token);
  }
  return sum;
}

TEST(SteppedPairScorer, SumsTheTargetsLogProbabilitiesWhateverTheBatch) {
  TableScorer scorer = MakeScorer();
  std::vector<EncodedPair> pairs;
  for (int i = 0; i < 23; ++i) {
    EncodedPair& pair = pairs.emplace_back(EncodedPair{.source = {kTag, 4 + i % 20}, .labels = {}});
    for (int t = 0; t < i * 5 % 9; ++t) pair.labels.push_back(4 + (i + t) % 20);
    pair.labels.push_back(kEos);
  }
  for (const int max_rows : {1, 4, 64}) {
    const std::vector<double> found = SteppedPairScorer(scorer, max_rows).LogProbabilities(pairs);
    ASSERT_EQ(found.size(), pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(found[i], DirectLogProbability(scorer, pairs[i])) << i;
    }
  }
}

TEST(SteppedPairScorer, GivesATranslationTheLogProbabilityThatTheSearchReported) {
  TableScorer scorer = MakeScorer();
  const std::vector<int32_t> source = {kTag, 7, 8, kEos};
  const SearchOptions options{.max_tokens = 10, .nbest = 5, .forbidden = {kTag}};
  const auto hypotheses = Search(scorer, {.sources = {source}}, options).front();
  for (const Hypothesis& hypothesis : hypotheses) {
    EncodedPair pair{.source = source, .labels = hypothesis.tokens};
    pair.labels.push_back(kEos);
    EXPECT_DOUBLE_EQ(SteppedPairScorer(scorer).LogProbabilities({&pair, 1}).front(),
                     hypothesis.log_prob);
  }
}

TEST(LineChunkReader, RefusesUtf16ByName) {
  EXPECT_THAT(ErrorOf(std::string("\xff\xfeh\0i\0\n\0", 8)),
              HasSubstr("standard input, line 1: UTF-16, convert it to UTF-8"));
}

// Pairs of `max_pairs` at a time; the error's text instead if there is one.
std::string Pairs(const std::string& sources, const std::string* targets, int max_pairs) {
  std::istringstream source_stream(sources), target_stream(targets ? *targets : "");
  LineChunkReader source_reader(source_stream, "a.de"), target_reader(target_stream, "a.en");
  std::string text;
  while (true) {
    const auto pairs = ReadTextPairs(source_reader, targets ? &target_reader : nullptr, max_pairs);
    if (!pairs.ok()) {
      EXPECT_EQ(GetExitCode(pairs.status()), ExitCode::kData);
      return std::string(pairs.status().message());
    }
    if (pairs->sources().empty()) return text;
    EXPECT_EQ(pairs->sources_size(), pairs->targets_size());
    for (int i = 0; i < pairs->sources_size(); ++i) {
      text += pairs->sources(i) + "=" + pairs->targets(i) + ";";
    }
  }
}

TEST(ReadTextPairs, TakesTheFirstTwoColumns) {
  EXPECT_EQ(Pairs("a\tb\nc\td\t0.5\n\t\n", nullptr, 2), "a=b;c=d;=;");
}

TEST(ReadTextPairs, NamesALineWithoutTab) {
  EXPECT_EQ(Pairs("a\tb\nc\n", nullptr, 1), "a.de, line 2: no tab between source and target");
}

TEST(ReadTextPairs, PairsTheLinesOfTwoFiles) {
  const std::string targets = "x\ny\nz";
  EXPECT_EQ(Pairs("a\nb\nc\n", &targets, 2), "a=x;b=y;c=z;");
}

TEST(ReadTextPairs, SaysWhichFileEndsFirst) {
  const std::string targets = "x\ny\n";
  EXPECT_EQ(Pairs("a\nb\nc\n", &targets, 2), "a.en: ends after line 2, before a.de");
  EXPECT_EQ(Pairs("a\n", &targets, 2), "a.de: ends after line 1, before a.en");
}

TEST(ScoreStream, WritesLogProbabilityAndTokensOfEachPairInOrder) {
  TableScorer scorer = MakeScorer();
  SteppedPairScorer pair_scorer(scorer);
  std::istringstream in("ab\tabc\nab\t\n");
  LineChunkReader lines(in, "standard input");
  std::ostringstream out;
  const auto report =
      ScoreStream(lines, pair_scorer, ByteCodec(),
                  {.tags = {.source = {kTag}, .target = {}}, .chunk_pairs = 1}, out);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<int32_t> source = {kTag, 4, 4, kEos};
  const double first = DirectLogProbability(scorer, {.source = source, .labels = {4, 4, 4, kEos}});
  const double second = DirectLogProbability(scorer, {.source = source, .labels = {kEos}});
  EXPECT_EQ(out.str(), absl::StrFormat("%.6f\t4\n%.6f\t1\n", first, second));
  EXPECT_EQ(report->num_pairs, 2);
  EXPECT_EQ(report->num_tokens, 5);
  EXPECT_DOUBLE_EQ(report->log_prob, first + second);
}

TEST(ScoreStream, PrintsNanForAPairThatIsTooLongForTheModel) {
  TableScorer scorer = MakeScorer();
  SteppedPairScorer pair_scorer(scorer);
  std::istringstream in("ab\tabcdefg\nabcdefg\ta\na\tb\n");
  LineChunkReader lines(in, "standard input");
  std::ostringstream out;
  const auto report =
      ScoreStream(lines, pair_scorer, ByteCodec(),
                  {.tags = {.source = {kTag}, .target = {}}, .max_positions = 5}, out);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(out.str(), HasSubstr("nan\t8\nnan\t2\n-"));
  EXPECT_EQ(report->num_pairs, 3);
  EXPECT_EQ(report->num_scored, 1);
}

// The results of a stream on several ranks.
struct RanksOutcome {
  std::string output;                  // of rank 0
  std::vector<absl::Status> statuses;  // by rank
};

// Lines of many lengths, blank ones among them.
std::string ManyLines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += std::string(static_cast<size_t>(i * 7 % 12), 'x') + "\n";
  return text;
}

// Every rank calls `stream` with its communicator; only rank 0 is given the input.
RanksOutcome OnRanks(int ranks, const std::string& input,
                     const std::function<absl::Status(Communicator& world, LineChunkReader& lines,
                                                      std::ostream& out)>& stream) {
  RanksOutcome outcome{.output = "", .statuses = std::vector<absl::Status>(ranks)};
  const auto ended = RunRanks(ranks, [&](Communicator& world) {
    std::istringstream in(world.rank() == 0 ? input : "of another rank\xFC\n");
    LineChunkReader lines(in, "standard input");
    std::ostringstream out;
    outcome.statuses[world.rank()] = stream(world, lines, out);
    if (world.rank() == 0) outcome.output = out.str();
    EXPECT_TRUE(world.rank() == 0 || out.str().empty()) << out.str();
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(ended).ok());
  return outcome;
}

RanksOutcome TranslateOnRanks(int ranks, const std::string& input, const SearchOptions& search,
                              const std::optional<std::string>& prefixes = std::nullopt) {
  return OnRanks(ranks, input, [&](Communicator& world, LineChunkReader& lines, std::ostream& out) {
    TableScorer scorer = MakeScorer();
    Translator translator(scorer, ByteCodec(), {.source = {kTag}, .target = {}},
                          {.search = search,
                           .limits = {.batch_tokens = 20},
                           .share = {.part = world.rank(), .num_parts = world.size()}});
    std::istringstream prefix_text(world.rank() == 0 ? prefixes.value_or("") : "");
    LineChunkReader prefix_lines(prefix_text, "the prefixes");
    return TranslateStream(lines, translator,
                           {.chunk_lines = 5,
                            .scores = true,
                            .prefixes = prefixes.has_value() ? &prefix_lines : nullptr,
                            .world = &world},
                           out)
        .status();
  });
}

RanksOutcome ScoreOnRanks(int ranks, const std::string& input) {
  return OnRanks(ranks, input, [&](Communicator& world, LineChunkReader& lines, std::ostream& out) {
    TableScorer scorer = MakeScorer();
    SteppedPairScorer pair_scorer(scorer);
    return ScoreStream(lines, pair_scorer, ByteCodec(),
                       {.tags = {.source = {kTag}, .target = {}},
                        .chunk_pairs = 3,
                        .max_positions = 9,
                        .world = &world},
                       out)
        .status();
  });
}

TEST(StreamsOnRanks, WriteTheTranslationsOfOneProcess) {
  const SearchOptions beam{.beam_size = 3, .max_tokens = 6, .nbest = 2, .forbidden = {kTag}};
  SearchOptions sampling = beam;
  sampling.sampling_temperature = 1.0;
  for (const SearchOptions& search : {beam, sampling}) {
    for (const int lines : {0, 1, 4, 23, 40}) {
      const std::string one = TranslateOnRanks(1, ManyLines(lines), search).output;
      for (const int ranks : {2, 3, 4}) {
        const RanksOutcome several = TranslateOnRanks(ranks, ManyLines(lines), search);
        EXPECT_TRUE(FirstError(several.statuses).ok()) << FirstError(several.statuses);
        EXPECT_EQ(several.output, one) << ranks << " ranks, " << lines << " lines";
      }
    }
  }
}

TEST(StreamsOnRanks, ForceThePrefixesOfOneProcess) {
  const SearchOptions search{.beam_size = 3, .max_tokens = 6, .nbest = 2, .forbidden = {kTag}};
  std::string prefixes;
  for (int i = 0; i < 23; ++i) prefixes += std::string(static_cast<size_t>(i % 4), 'b') + "\n";
  const std::string one = TranslateOnRanks(1, ManyLines(23), search, prefixes).output;
  EXPECT_NE(one, TranslateOnRanks(1, ManyLines(23), search).output);
  EXPECT_EQ(TranslateOnRanks(1, ManyLines(23), search, std::string(23, '\n')).output,
            TranslateOnRanks(1, ManyLines(23), search).output);
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(TranslateOnRanks(ranks, ManyLines(23), search, prefixes).output, one) << ranks;
  }
  const RanksOutcome short_of_one = TranslateOnRanks(2, ManyLines(24), search, prefixes);
  for (const absl::Status& status : short_of_one.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kData);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the prefixes: ends after line 23, before standard input"));
  }
}

TEST(StreamsOnRanks, WriteTheScoresOfOneProcess) {
  std::string pairs;
  for (int i = 0; i < 25; ++i) {  // some too long
    pairs += std::string(static_cast<size_t>(i * 5 % 11), 'a') + "\t" +
             std::string(static_cast<size_t>(i * 3 % 7), 'b') + "\n";
  }
  const std::string one = ScoreOnRanks(1, pairs).output;
  EXPECT_THAT(one, HasSubstr("nan"));
  for (const int ranks : {2, 4}) {
    const RanksOutcome several = ScoreOnRanks(ranks, pairs);
    EXPECT_TRUE(FirstError(several.statuses).ok()) << FirstError(several.statuses);
    EXPECT_EQ(several.output, one) << ranks;
  }
}

TEST(StreamsOnRanks, WriteWhatWasReadBeforeABadLineAndAgreeOnIt) {
  const SearchOptions search{.beam_size = 2, .max_tokens = 6, .forbidden = {kTag}};
  const std::string input = ManyLines(16) + "schlecht \xFC\n";
  const std::string good = TranslateOnRanks(1, ManyLines(15), search).output;
  for (const int ranks : {1, 2, 4}) {
    const RanksOutcome outcome = TranslateOnRanks(ranks, input, search);
    EXPECT_EQ(outcome.output, good) << ranks;
    for (const absl::Status& status : outcome.statuses) {
      EXPECT_TRUE(IsAgreed(status)) << status;
      EXPECT_EQ(GetExitCode(status), ExitCode::kData);
      EXPECT_THAT(std::string(status.message()), HasSubstr("standard input, line 17: not UTF-8"));
    }
  }
}

TEST(StreamsOnRanks, AgreeOnTheErrorOfARankThatCannotTranslate) {
  const SearchOptions search{.beam_size = 2, .max_tokens = 6, .forbidden = {kTag}};
  const auto stream = [&](Communicator& world, LineChunkReader& lines, std::ostream& out) {
    TableScorer scorer = MakeScorer();
    SearchOptions own = search;
    if (world.rank() == 1) {  // nothing can be emitted
      for (int32_t id = 0; id < kTag; ++id) {
        if (id != kEos) own.forbidden.push_back(id);
      }
    }
    Translator translator(scorer, ByteCodec(), {.source = {kTag}, .target = {}},
                          {.search = own,
                           .limits = {.batch_tokens = 20},
                           .share = {.part = world.rank(), .num_parts = world.size()}});
    return TranslateStream(lines, translator, {.chunk_lines = 5, .world = &world}, out).status();
  };
  for (const absl::Status& status : OnRanks(3, ManyLines(30), stream).statuses) {
    EXPECT_TRUE(IsAgreed(status)) << status;
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: sentence "));
  }
}

}  // namespace
}  // namespace deepnet
