#include "trainer/data/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/utf8.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/pair_index.h"
#include "trainer/data/sentence_pieces.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::StartsWith;

std::vector<std::string> FixtureSentences() {
  std::ifstream file("tests/trainer/data/testdata/udhr.tsv");
  std::vector<std::string> sentences;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    const size_t tab2 = line.find('\t', tab + 1);
    sentences.push_back(line.substr(tab + 1, tab2 - tab - 1));
    sentences.push_back(line.substr(tab2 + 1));
  }
  return sentences;
}

std::string Train(int pieces) {
  PieceTraining training;
  training.pieces = pieces;
  std::string model;
  EXPECT_EQ(TrainSentencePieces(training, FixtureSentences(), &model), "");
  return model;
}

// Returns a length below 2^21 as a varint of three bytes.
std::string Length(size_t bytes) {
  return {static_cast<char>(bytes | 0x80), static_cast<char>(bytes >> 7 | 0x80),
          static_cast<char>(bytes >> 14)};
}

// A model written by hand in protobuf's wire format: fields 1 piece {1 text, 2 score, 3 type}.
// Types: 1 normal, 2 unknown, 3 control.
std::string HandMadeModel(const std::vector<std::pair<std::string, int>>& pieces) {
  std::string model;
  float score = 0.0f;
  for (const auto& [text, type] : pieces) {
    std::string piece = "\x0a" + Length(text.size()) + text;
    const auto bits = std::bit_cast<uint32_t>(score);
    piece += '\x15';
    for (int i = 0; i < 4; ++i) piece += static_cast<char>(bits >> (8 * i));
    piece += "\x18" + std::string(1, static_cast<char>(type));
    model += "\x0a" + Length(piece.size()) + piece;
    score -= 1.0f;
  }
  return model;
}

TEST(Vocabulary, FilesAreBoundedBeforeTheyAreRead) {
  const testing::TempFolder folder;
  const absl::Status model = Vocabulary::Open(folder.WriteHuge("huge.model"), {}).status();
  EXPECT_THAT(std::string(model.message()), AllOf(HasSubstr("huge.model"), HasSubstr("at most")));
  const auto fs = MakePosixFileSystem();
  const absl::Status list = ReadLanguages(*fs, folder.WriteHuge("huge.txt")).status();
  EXPECT_THAT(std::string(list.message()), AllOf(HasSubstr("huge.txt"), HasSubstr("at most")));
  EXPECT_TRUE(absl::IsNotFound(ReadLanguages(*fs, folder.Path("none.txt")).status()));
}

TEST(Vocabulary, LanguagesThatNoPathMayHoldAreRefused) {
  const testing::TempFolder folder;
  const auto fs = MakePosixFileSystem();
  EXPECT_THAT(*ReadLanguages(*fs, folder.Write("good.txt", "de\nzh_Hans\n")),
              ElementsAre("de", "zh_Hans"));
  for (const char* name : {"../../EVIL", "de-en", "a b", "d.e", "\x1b]0;x"}) {
    const absl::Status list =
        ReadLanguages(*fs, folder.Write("bad.txt", std::string("de\n") + name)).status();
    EXPECT_THAT(std::string(list.message()), AllOf(HasSubstr("bad.txt"), HasSubstr("language \"")));
    EXPECT_FALSE(Vocabulary::FromBytes(Train(300), {"de", name}).ok()) << name;
  }
  std::string many;
  for (int i = 0; i <= kMaxLanguages; ++i) many += "l" + std::to_string(i) + "\n";
  EXPECT_THAT(std::string(ReadLanguages(*fs, folder.Write("many.txt", many)).status().message()),
              HasSubstr("4097 languages; at most 4096"));
}

TEST(Vocabulary, PutsSpecialsFirstThenPiecesThenSortedTags) {
  const auto vocabulary = Vocabulary::FromBytes(Train(400), {"ru", "de", "en", "de"});
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->size(), 400 + 3);
  EXPECT_THAT(vocabulary->languages(), ElementsAre("de", "en", "ru"));
  EXPECT_EQ(vocabulary->TagId("de"), 400);
  EXPECT_EQ(vocabulary->TagId("ru"), 402);
  EXPECT_EQ(vocabulary->TagId("fr"), std::nullopt);
  EXPECT_THAT(vocabulary->TagIds(), ElementsAre(400, 401, 402));
  EXPECT_EQ(vocabulary->Piece(kPad), "<pad>");
  EXPECT_EQ(vocabulary->Piece(401), "__en__");
}

TEST(Vocabulary, DecodesWhatItEncoded) {
  const auto vocabulary = Vocabulary::FromBytes(Train(400), {"de", "en"});
  ASSERT_TRUE(vocabulary.ok());
  for (const std::string& sentence : FixtureSentences()) {
    const std::vector<int32_t> ids = vocabulary->Encode(sentence);
    EXPECT_THAT(ids, Each(Lt(vocabulary->first_tag())));
    EXPECT_EQ(std::count(ids.begin(), ids.end(), kUnk), 0);
    if (sentence.find("  ") == std::string::npos && sentence.find("\u00a0") == std::string::npos &&
        sentence.find("\u2026") == std::string::npos) {
      EXPECT_EQ(vocabulary->Decode(ids), sentence);
    }
  }
}

TEST(Vocabulary, LeavesSpecialsAndTagsOutOfText) {
  const auto vocabulary = Vocabulary::FromBytes(Train(400), {"de", "en"});
  ASSERT_TRUE(vocabulary.ok());
  std::vector<int32_t> ids = vocabulary->Encode("human rights");
  ids.insert(ids.begin(), {kBos, *vocabulary->TagId("de")});
  ids.push_back(kEos);
  ids.push_back(kPad);
  EXPECT_EQ(vocabulary->Decode(ids), "human rights");
}

TEST(Vocabulary, CutsATagInTheTextIntoPieces) {
  const auto vocabulary = Vocabulary::FromBytes(Train(400), {"de", "en"});
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_THAT(vocabulary->Encode("__de__ </s> <pad>"), Each(Lt(vocabulary->first_tag())));
  for (const int32_t id : vocabulary->Encode("</s> <pad> <s>")) EXPECT_GE(id, kUnk);
}

TEST(Vocabulary, MapsTheIdsOfAModelThatNumbersItsSpecialsOtherwise) {
  const std::string model = HandMadeModel(
      {{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}, {"\u2581a", 1}, {"b", 1}, {"<mask>", 3}});
  const auto vocabulary = Vocabulary::FromBytes(model, {"en"});
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->size(), 4 + 3 + 1);
  EXPECT_THAT(vocabulary->Encode("ab"), ElementsAre(4, 5));
  EXPECT_THAT(vocabulary->Encode("az"), ElementsAre(4, kUnk));
  EXPECT_EQ(vocabulary->Piece(6), "<mask>");
  EXPECT_EQ(vocabulary->Decode(std::vector<int32_t>{kEos, 4, 5, kPad}), "ab");
  EXPECT_EQ(vocabulary->Decode(std::vector<int32_t>{4, kUnk, 5}), "a \u2047 b");  // its id is 0
}

TEST(Vocabulary, RefusesAModelThatHoldsATagAndBytesThatAreNoModel) {
  const auto tagged =
      Vocabulary::FromBytes(HandMadeModel({{"<unk>", 2}, {"__en__", 1}, {"a", 1}}), {"en"});
  EXPECT_THAT(std::string(tagged.status().message()), HasSubstr("__en__"));
  const auto message = [](const std::string& model) {
    return std::string(Vocabulary::FromBytes(model, {"en"}).status().message());
  };
  EXPECT_EQ(message("no model at all"), "no SentencePiece model: damaged");
  EXPECT_EQ(message("\n"), "no SentencePiece model: damaged");
  EXPECT_EQ(message("\n\xff\xff\x7f and no more"), "no SentencePiece model: damaged");
  const std::string empty_piece = message(HandMadeModel({{"<unk>", 2}, {"", 1}}));
  EXPECT_THAT(empty_piece, StartsWith("no SentencePiece model: "));
  EXPECT_THAT(empty_piece, HasSubstr("empty"));
  const auto long_piece = [](size_t bytes) {
    return HandMadeModel({{"<unk>", 2}, {"a", 1}, {std::string(bytes, 'b'), 5}});
  };
  EXPECT_EQ(message(long_piece(1 << 20)),
            "no SentencePiece model: a piece has more than 16384 bytes");
  EXPECT_TRUE(Vocabulary::FromBytes(long_piece(16000), {"en"}).ok());
  const auto absent = Vocabulary::Open("/nowhere/spm.model", {"en"});
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("/nowhere/spm.model"));
}

TEST(Vocabulary, HashChangesWithModelAndTags) {
  const std::string model = Train(400);
  const auto hash = [](const std::string& bytes, std::vector<std::string> languages) {
    return Vocabulary::FromBytes(bytes, std::move(languages))->hash();
  };
  EXPECT_EQ(hash(model, {"de", "en"}), hash(model, {"en", "de"}));
  EXPECT_NE(hash(model, {"de", "en"}), hash(model, {"de"}));
  EXPECT_NE(hash(model, {"de", "en"}), hash(Train(300), {"de", "en"}));
}

std::unique_ptr<SentencePieces> LearnedWith(const std::string& normalization,
                                            const std::string& text) {
  PieceTraining training;
  training.pieces = 40;
  training.normalization = normalization;
  std::string model, error;
  EXPECT_EQ(TrainSentencePieces(training, {"a b c " + text}, &model), "");
  auto pieces = SentencePieces::Load(model, &error);
  EXPECT_NE(pieces, nullptr) << error;
  return pieces;
}

// `text` as a model has it that learned from it.
std::string RewrittenBy(const std::string& normalization, const std::string& text) {
  const auto pieces = LearnedWith(normalization, text);
  return pieces == nullptr ? "" : pieces->Decode(pieces->Encode(text));
}

TEST(TrainSentencePieces, RewritesTextByTheNormalizationThatIsChosen) {
  const std::string text = "\u0645\u06cc\u200c\u062e\u00a0\ufb01\u200b";  // a joiner, a ligature
  EXPECT_EQ(RewrittenBy("", text), "\u0645\u06cc\u200c\u062e fi");
  EXPECT_EQ(RewrittenBy("nmt_nfkc", text), "\u0645\u06cc \u062e fi");
  EXPECT_EQ(RewrittenBy("nfkc", text), "\u0645\u06cc\u200c\u062e fi\u200b");
  EXPECT_EQ(RewrittenBy("identity", text), text);
  const testing::TempFolder folder;
  EXPECT_EQ(RewrittenBy(folder.Write("rules.tsv", "66 69\tFB01\n78\t\n"), "fix"), "\ufb01");
}

TEST(TrainSentencePieces, TheDefaultIsNmtNfkcButForTheJoiner) {
  const auto ours = LearnedWith("", ""), theirs = LearnedWith("nmt_nfkc", "");
  ASSERT_TRUE(ours != nullptr && theirs != nullptr);
  for (char32_t c = 1; c < 0x3100; ++c) {
    const std::string text = "a" + EncodeUtf8({&c, 1}) + "b";
    EXPECT_EQ(ours->EncodeAsPieces(text) == theirs->EncodeAsPieces(text), c != 0x200C) << text;
  }
}

TEST(TrainSentencePieces, GivesTheSameBytesAgain) { EXPECT_EQ(Train(300), Train(300)); }

TEST(TrainSentencePieces, GivesFewerPiecesWhereTheTextHoldsNoMore) {
  const auto vocabulary = Vocabulary::FromBytes(Train(50000), {"en"});
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_LT(vocabulary->size(), 50000);
}

}  // namespace
}  // namespace deepnet
