// `deepnet lab corpus`.
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "tests/launch/commands/run_command.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus.h"

namespace deepnet::testing {
namespace {

// The obvious twin: one long list of pieces, counted by a map.
TEST(LabCorpus, WordFrequenciesAreThoseOfOneLongListOfPieces) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: \"opus\"", nullptr, "data").ok());
  const std::string data = folder.Path("data");
  const Outcome outcome = RunCommand(
      MakeLabCorpusCommand(),
      {"--data", data, "--direction", "de-en", "--test-sentences", "3", "--dev-sentences", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  google::protobuf::Struct said;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &said).ok()) << outcome.out;
  const auto number = [&](const std::string& name) {
    return said.fields().at(name).number_value();
  };
  const auto corpus = Corpus::Open(data);
  ASSERT_TRUE(corpus.ok());
  EXPECT_EQ(number("vocabulary_size"), corpus->vocabulary().size());
  EXPECT_EQ(number("pairs"), corpus->manifest().report().kept());
  EXPECT_EQ(said.fields().at("content_hash").string_value(), corpus->content_hash());
  std::map<int32_t, double> counts;
  double all = 0;
  for (int32_t piece = 0; piece < corpus->vocabulary().size(); ++piece, ++all) counts[piece] = 1;
  for (size_t i = 0; i < corpus->directions().size(); ++i) {
    const Direction& direction = corpus->directions()[i];
    for (int64_t pair = 0; direction.Name() == "de-en" && pair < direction.num_pairs; ++pair) {
      const PairTokens tokens = corpus->Tokens(static_cast<int>(i), pair);
      for (const int32_t id : tokens.target) ++counts[id], ++all;
      ++counts[kEos], ++all;
    }
  }
  double entropy = 0;
  for (const auto& [piece, count] : counts) entropy -= count / all * std::log(count / all);
  EXPECT_NEAR(number("word_frequency_nll"), entropy, 1e-9);

  for (const auto& [split, sentences] : {std::pair("test", 3), std::pair("dev", 2)}) {
    const auto text = corpus->Sentences(split, "de", "en");
    ASSERT_TRUE(text.ok());
    ASSERT_GT(std::ssize(text->target), sentences);
    std::vector<int32_t> pieces;
    for (int i = 0; i < sentences; ++i) {
      for (const int32_t piece : corpus->vocabulary().Encode(text->target[i]))
        pieces.push_back(piece);
      pieces.push_back(kEos);
    }
    double nll = 0;
    for (const int32_t piece : pieces) nll -= std::log(counts[piece] / all);
    EXPECT_NEAR(number(absl::StrCat("word_frequency_", split, "_nll")),
                nll / static_cast<double>(pieces.size()), 1e-9);
  }
}

TEST(LabCorpus, AFolderWithoutACorpusIsAnErrorOfData) {
  const TempFolder folder;
  EXPECT_EQ(RunCommand(MakeLabCorpusCommand(), {"--data", folder.Path("nowhere")}).code, 4);
  EXPECT_EQ(RunCommand(MakeLabCorpusCommand(), {}).code, 2);
}

}  // namespace
}  // namespace deepnet::testing
