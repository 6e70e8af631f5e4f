#include "trainer/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "parallel/base/exit_code.h"
#include "tests/support/seal_blocks.h"
#include "tests/support/thread_limit.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/prepare/parts.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using testing::PrepareIn;
using testing::TempFolder;
using testing::WriteOpus;

// The first test prepares the corpus; each has files of its own to damage.
class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest() {
    if (prepared_.empty()) {
      WriteOpus(folder_);
      const auto report = PrepareIn(folder_, "opus100_folder: 'opus'");
      EXPECT_TRUE(report.ok()) << report.status();
      for (const std::string& name : folder_.FilesBelow("out")) {
        prepared_[name] = folder_.Read("out/" + name);
      }
    }
    for (const auto& [name, bytes] : prepared_) folder_.Write("out/" + name, bytes);
  }

  Corpus Open() {
    absl::StatusOr<Corpus> corpus = Corpus::Open(folder_.Path("out"));
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    return *std::move(corpus);
  }
  std::string OpenMessage() {
    return std::string(Corpus::Open(folder_.Path("out")).status().message());
  }

  static DataSpec Spec(const Corpus& corpus, TagStyle tags = TARGET_TAG_ON_SOURCE) {
    DataSpec spec;
    spec.set_tags(tags);
    spec.mutable_microbatch()->set_max_target_tokens(600);
    spec.set_global_microbatches(2);
    EXPECT_TRUE(ResolveDataSpec(corpus, &spec).ok());
    return spec;
  }
  static std::unique_ptr<CorpusBatchSource> Source(const Corpus& corpus,
                                                   TagStyle tags = TARGET_TAG_ON_SOURCE) {
    auto source = CorpusBatchSource::Make(Spec(corpus, tags), 7, &corpus);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }

  TempFolder folder_;
  static inline std::map<std::string, std::string> prepared_;  // bytes of its files by name
};

TEST_F(CorpusTest, KnowsTheMomentsOfItsLengths) {
  const Corpus corpus = Open();
  for (int direction = 0; direction < 6; ++direction) {
    for (int32_t max_tokens = 0; max_tokens <= 250; ++max_tokens) {
      double n = 0, source = 0, squares = 0;
      for (int64_t pair = 0; pair < corpus.directions()[direction].num_pairs; ++pair) {
        const PairLengths lengths = corpus.Lengths(direction, pair);
        if (std::max(lengths.source, lengths.target) > max_tokens) continue;
        n += 1;
        source += lengths.source;
        squares += static_cast<double>(lengths.source) * lengths.source;
      }
      const LengthMoments moments = corpus.Moments(direction, max_tokens);
      ASSERT_EQ(static_cast<double>(moments.num_pairs), n) << max_tokens;
      n = std::max(n, 1.0);
      EXPECT_NEAR(moments.source.mean, source / n, 1e-9);
      EXPECT_NEAR(moments.source.variance, squares / n - source * source / n / n, 1e-6);
    }
  }
}

TEST_F(CorpusTest, JoinsDevAndTestOverEnglishWhereTheyHaveNoTextTogether) {
  const Corpus corpus = Open();
  EXPECT_EQ(corpus.TextDirections("test").size(), 6u);
  const auto direct = corpus.Sentences("test", "ru", "en");
  ASSERT_TRUE(direct.ok());
  EXPECT_EQ(direct->source.size(), 10u);
  const auto joined = corpus.Sentences("test", "ru", "fr");
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->source.size(), joined->target.size());
  EXPECT_GE(joined->source.size(), 8u);
  EXPECT_THAT(std::string(corpus.Sentences("test", "ru", "zz").status().message()),
              HasSubstr("no test sentences of ru-zz"));
}

// Over English first, then over the first language by name; of equal sentences the first counts.
TEST(CorpusSentences, AreJoinedWhereTheyCoincide) {
  const TempFolder folder;
  std::string spec;
  const auto add = [&](const std::string& first, const std::string& second,
                       const std::string& split, const testing::TextPairs& pairs) {
    const std::string stem = split + "." + first + second;
    testing::WritePairs(folder, stem, first, second, pairs);
    spec += "text { source_language: '" + first + "' target_language: '" + second +
            "' source_file: '" + stem + "." + first + "' target_file: '" + stem + "." + second +
            "' split: '" + split + "' } ";
  };
  add("de", "en", "train", {{"eins zwei", "one two"}, {"drei vier", "three four"}});
  add("en", "mk", "train", {{"the same", "the same"}});
  add("de", "en", "test", {{"a1", "A"}, {"b1", "B"}, {"a2", "A"}, {"c1", "C"}});
  add("en", "fr", "test", {{"C", "c"}, {"A", "f1"}, {"D", "d"}, {"A", "f2"}});
  add("bg", "de", "test", {{"X", "xd"}});
  add("bg", "fr", "test", {{"X", "xf"}});
  add("en", "ru", "test", {{"Z", "zr"}});
  add("bg", "ru", "test", {{"X", "xr"}, {"Y", "yr"}});
  add("en", "mk", "test", {{"none", ""}});
  add("de", "en", "dev", {{"nur dev", "only dev"}});
  ASSERT_TRUE(PrepareIn(folder, spec).ok());
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto directions = [](const std::vector<Direction>& all) {
    std::string text;
    for (const Direction& it : all) text += it.Name() + " " + std::to_string(it.num_pairs) + ", ";
    return text;
  };
  EXPECT_EQ(directions(corpus->directions()), "de-en 2, en-de 2, ");
  EXPECT_EQ(directions(corpus->TextDirections("test")),
            "bg-de 1, bg-fr 1, bg-ru 2, de-bg 1, de-en 4, en-de 4, en-fr 4, en-ru 1, fr-bg 1, "
            "fr-en 4, ru-bg 2, ru-en 1, ");
  EXPECT_EQ(directions(corpus->TextDirections("dev")), "de-en 1, en-de 1, ");
  const auto joined = [&](const char* source, const char* target) {
    const auto both = corpus->Sentences("test", source, target);
    if (!both.ok()) return std::string(both.status().message());
    return absl::StrCat(absl::StrJoin(both->source, " "), " | ", absl::StrJoin(both->target, " "));
  };
  EXPECT_EQ(joined("de", "en"), "a1 b1 a2 c1 | A B A C");
  EXPECT_EQ(joined("en", "de"), "A B A C | a1 b1 a2 c1");
  EXPECT_EQ(joined("de", "fr"), "a1 c1 | f1 c");
  EXPECT_EQ(joined("fr", "de"), "c f1 | c1 a1");
  EXPECT_EQ(joined("de", "ru"), "xd | xr");
  EXPECT_EQ(joined("en", "mk"), "no test sentences of en-mk");
  EXPECT_EQ(joined("bg", "mk"), "no test sentences of bg-mk");
}

TEST_F(CorpusTest, NamesAFileThatWasChangedCutOrTakenAway) {
  const std::string shard = folder_.Read("out/train.de-en.pairs");
  folder_.Write("out/train.de-en.pairs", std::string_view(shard).substr(0, shard.size() - 8));
  EXPECT_THAT(OpenMessage(), HasSubstr("train.de-en.pairs"));
  folder_.Write("out/train.de-en.pairs", shard);
  EXPECT_TRUE(Open().CheckContent().ok());

  const std::string shard_path = folder_.Path("out/train.de-en.pairs");
  folder_.Write("out/train.de-en.pairs", shard + "x");
  EXPECT_EQ(OpenMessage(), absl::StrCat(shard_path, ": ", shard.size() + 1,
                                        " bytes, the manifest says ", shard.size()));
  std::filesystem::remove(shard_path);
  EXPECT_EQ(OpenMessage(), shard_path + ": No such file or directory");
  folder_.Write("out/train.de-en.pairs", shard);

  // Manifests that do not go with the files, though their digests are right.
  const std::string good = folder_.Read("out/manifest.textproto");
  const auto with = [&](auto change, bool hash_again = true) {
    folder_.Write("out/manifest.textproto", good);
    CorpusManifest forged = *ReadManifest(folder_.Path("out"));
    change(forged);
    if (hash_again) forged.mutable_report()->set_content_hash(ContentHash(forged));
    folder_.Write("out/manifest.textproto", ManifestText(forged));
    return OpenMessage();
  };
  const auto shard_of = [](CorpusManifest& it) {
    return std::ranges::find(*it.mutable_files(), "train.de-en.pairs", &CorpusFile::name);
  };
  const std::string not_listed = shard_path + ": not the file that the manifest lists";
  EXPECT_EQ(with([](CorpusManifest&) {}), "");
  EXPECT_EQ(with([&](CorpusManifest& it) { it.mutable_files()->erase(shard_of(it)); }), not_listed);
  EXPECT_EQ(with([&](CorpusManifest& it) { shard_of(it)->set_hash(1); }), not_listed);
  EXPECT_EQ(with([](CorpusManifest& it) { it.mutable_report()->mutable_pairs(0)->set_kept(1); }),
            not_listed);
  EXPECT_EQ(
      with([&](CorpusManifest& it) { shard_of(it)->set_hash(1); }, false),
      folder_.Path("out/manifest.textproto") + ": the content hash does not fit the list of files");
  const std::string hash = ReadManifest(folder_.Path("out"))->report().tokenizer_hash();
  EXPECT_EQ(with([](CorpusManifest& it) { it.mutable_report()->set_tokenizer_hash("other"); }),
            folder_.Path("out/tokenizer.model") + ": hash " + hash + ", the manifest says other");
  folder_.Write("out/manifest.textproto", good);

  std::string manifest = folder_.Read("out/manifest.textproto");
  folder_.Write("out/manifest.textproto",
                "format_version: 2\n" + manifest.substr(manifest.find('\n')));
  EXPECT_THAT(OpenMessage(), HasSubstr("format version 2"));
  EXPECT_THAT(std::string(Corpus::Open(folder_.path()).status().message()),
              HasSubstr("is no prepared corpus"));
}

TEST_F(CorpusTest, NoByteOfAnyFileChangesUnseen) {
  const std::vector<std::string> names = folder_.FilesBelow("out");
  EXPECT_THAT(names, IsSupersetOf({"manifest.textproto", "report.json", "parts.textproto",
                                   "tokenizer.model", "train.de-en.pairs", "dev.de-en.de"}));
  for (const std::string& name : names) {
    const std::string good = folder_.Read("out/" + name);
    for (const size_t at : {good.size() / 3, good.size() / 2, good.size() - 2}) {
      std::string bad = good;
      bad[at] ^= 1;
      folder_.Write("out/" + name, bad);
      const auto corpus = Corpus::Open(folder_.Path("out"));
      const absl::Status status = corpus.ok() ? corpus->CheckContent() : corpus.status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << name << " at " << at << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(folder_.Path("out/" + name)));
      int found = 0;
      for (int part = 0; corpus.ok() && part < 3; ++part) {
        found += corpus->CheckContent(part, 3).ok() ? 0 : 1;
      }
      EXPECT_EQ(found, corpus.ok() ? 1 : 0) << name;
    }
    folder_.Write("out/" + name, good);
  }
  EXPECT_TRUE(Open().CheckContent().ok());
}

TEST_F(CorpusTest, TextThatWasDamagedIsNotRead) {
  std::string text = folder_.Read("out/test.de-en.en");
  text[0] ^= 1;
  folder_.Write("out/test.de-en.en", text);
  const Corpus corpus = Open();
  for (const char* other : {"en", "fr"}) {  // itself, and joined over it
    const absl::Status status = corpus.Sentences("test", "de", other).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("out/test.de-en.en: damaged: its bytes do not match the hash"));
  }
  EXPECT_TRUE(absl::IsDataLoss(corpus.CheckTexts("test")));
  EXPECT_TRUE(corpus.CheckTexts("dev").ok());

  // Damaged before its hash was taken: line n translates line n no more.
  text[0] ^= 1;
  text.resize(text.rfind('\n', text.size() - 2) + 1);
  folder_.Write("out/test.de-en.en", text);
  CorpusManifest manifest = *ReadManifest(folder_.Path("out"));
  CorpusFile& file =
      *std::ranges::find(*manifest.mutable_files(), "test.de-en.en", &CorpusFile::name);
  file.set_bytes(std::ssize(text));
  file.set_hash(*HashFile(folder_.Path("out/test.de-en.en")));
  manifest.mutable_report()->set_content_hash(ContentHash(manifest));
  folder_.Write("out/manifest.textproto", ManifestText(manifest));
  EXPECT_THAT(std::string(Open().CheckTexts("test").message()),
              HasSubstr("test.de-en.de has 10 lines, test.de-en.en 9"));
}

// Whose header and manifest are the same.
TEST_F(CorpusTest, CopiesWithOtherDataHaveOtherChecksums) {
  const std::string before = Open().ChecksumsHash();
  std::string shard = folder_.Read("out/train.de-en.pairs");
  shard[kShardDataOffset] ^= 1;
  testing::SealBlocks(shard);
  folder_.Write("out/train.de-en.pairs", shard);
  const Corpus other = Open();
  EXPECT_NE(other.ChecksumsHash(), before);
  EXPECT_THAT(std::string(other.CheckContent().message()), HasSubstr("the content hash"));
}

// Earlier programs wrote no digest.
std::string WithoutDigest(const std::string& manifest) {
  const size_t end = manifest.rfind("digest: ");
  EXPECT_NE(end, manifest.npos);
  return manifest.substr(0, end);
}

TEST_F(CorpusTest, AManifestWithoutDigestAndNotesIsRead) {
  const std::string manifest = folder_.Read("out/manifest.textproto");
  folder_.Write("out/manifest.textproto", manifest.substr(0, manifest.find("notes {")));
  EXPECT_TRUE(Open().CheckContent().ok());
  EXPECT_FALSE(ReadEarlierParts(folder_.Path("out")).empty());
}

TEST_F(CorpusTest, AManifestOfAMillionLevelsIsDamaged) {
  std::string text = folder_.Read("out/manifest.textproto");
  for (int i = 0; i < 1'000'000; ++i) text += "a{";
  folder_.Write("out/manifest.textproto", text);
  EXPECT_THAT(OpenMessage(), HasSubstr("manifest.textproto: damaged"));
}

// Each of these would become a part of a path, some of them of one outside of the folder.
TEST_F(CorpusTest, NamesOfAManifestThatNoPathMayHoldAreRefused) {
  const std::string manifest = folder_.Read("out/manifest.textproto");
  const auto with = [&](std::string_view known, std::string_view forged) {
    std::string text = manifest;
    const size_t at = text.find(known);
    EXPECT_NE(at, text.npos) << known;
    folder_.Write("out/manifest.textproto", text.replace(at, known.size(), forged));
    const absl::Status refused = Corpus::Open(folder_.Path("out")).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("manifest.textproto: "));
    return std::string(refused.message());
  };
  EXPECT_THAT(with("languages: \"fr\"", "languages: \"../../EVIL\""),
              HasSubstr("language \"../../EVIL\""));
  EXPECT_THAT(with("second_language: \"fr\"", "second_language: \"../../EVIL\""),
              HasSubstr("language \"../../EVIL\""));
  EXPECT_THAT(with("first_language: \"de\"", "first_language: \"\""), HasSubstr("language \"\""));
  EXPECT_THAT(with("split: \"dev\"", "split: \"../dev\""), HasSubstr("split \"../dev\""));
  EXPECT_THAT(with("split: \"dev\"", "tag: \"a/b\" split: \"dev\""), HasSubstr("tag \"a/b\""));
  EXPECT_THAT(with("name: \"tokenizer.model\"", "name: \"../tokenizer.model\""),
              HasSubstr("file \"../tokenizer.model\""));
  EXPECT_THAT(with("name: \"tokenizer.model\"", "name: \"..\""), HasSubstr("file \"..\""));
}

TEST_F(CorpusTest, PairsOfALanguageThatTheVocabularyLacksAreRefused) {
  std::string text = folder_.Read("out/manifest.textproto");
  for (const auto& [known, forged] : {std::pair("first_language: \"de\"", "first_language: \"xx\""),
                                      std::pair("train.de-en.pairs", "train.xx-en.pairs")}) {
    for (size_t at = text.find(known); at != text.npos; at = text.find(known)) {
      text.replace(at, std::string(known).size(), forged);
    }
  }
  std::filesystem::rename(folder_.Path("out/train.de-en.pairs"),
                          folder_.Path("out/train.xx-en.pairs"));
  text = WithoutDigest(text);
  folder_.Write("out/manifest.textproto", text);
  const std::string hash = ContentHash(*ReadManifest(folder_.Path("out")));
  const size_t at = text.find("content_hash: \"") + 15;
  folder_.Write("out/manifest.textproto", text.replace(at, hash.size(), hash));
  EXPECT_THAT(OpenMessage(), HasSubstr("pairs of xx, which is not among its languages"));
}

TEST_F(CorpusTest, AListOfEarlierPartsWithNamesThatNoPathMayHoldIsNone) {
  const std::string manifest = folder_.Read("out/manifest.textproto");
  std::string parts = folder_.Read("out/parts.textproto");
  parts[parts.find("kept: ") + 6] ^= 1;
  folder_.Write("out/parts.textproto", parts);
  EXPECT_TRUE(ReadEarlierParts(folder_.Path("out")).empty());
  folder_.Write("out/manifest.textproto", manifest.substr(0, manifest.find("notes {")));
  ASSERT_FALSE(ReadEarlierParts(folder_.Path("out")).empty());
  for (const char* text : {"parts { key: 1 }", "parts { key: 1 files { name: '../x' } }"}) {
    folder_.Write("out/parts.textproto", text);
    EXPECT_TRUE(ReadEarlierParts(folder_.Path("out")).empty()) << text;
  }
}

TEST_F(CorpusTest, SmallFilesAreBoundedBeforeTheyAreRead) {
  const std::string tokenizer = folder_.Read("out/tokenizer.model");
  folder_.WriteHuge("out/tokenizer.model");
  EXPECT_THAT(OpenMessage(), HasSubstr("tokenizer.model"));
  folder_.Write("out/tokenizer.model", tokenizer);

  folder_.WriteHuge("out/manifest.textproto");
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("manifest.textproto"), HasSubstr("at most")));
  std::filesystem::remove(folder_.Path("out/manifest.textproto"));
  ASSERT_EQ(mkfifo(folder_.Path("out/manifest.textproto").c_str(), 0600), 0);
  EXPECT_THAT(OpenMessage(), AllOf(HasSubstr("manifest.textproto"), HasSubstr("a pipe")));

  folder_.WriteHuge("out/parts.textproto");
  EXPECT_TRUE(ReadEarlierParts(folder_.Path("out")).empty());
}

// A step of it is no step of pairs without words.
TEST_F(CorpusTest, AStepOfACorpusThatBecameShorterIsAnErrorWithItsName) {
  SurviveLostPages();
  for (const Architecture architecture : {ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY}) {
    const std::string name =
        architecture == DECODER_ONLY ? "train.en-ru.pairs" : "train.de-en.pairs";
    const std::string shard = folder_.Read("out/" + name);
    for (const double alpha : {0.0, 0.1}) {
      const Corpus corpus = Open();
      DataSpec spec;
      spec.mutable_microbatch()->set_max_target_tokens(600);
      spec.set_subword_alpha(alpha);
      spec.set_subword_nbest(alpha > 0 ? 4 : 0);
      spec.set_mlm_probability(architecture == ENCODER_ONLY ? 0.15 : 0.0);
      ASSERT_TRUE(ResolveDataSpec(corpus, &spec, architecture).ok());
      auto source = CorpusBatchSource::Make(spec, 7, &corpus, architecture);
      ASSERT_TRUE(source.ok() && (*source)->ForStep(0).ok()) << source.status();
      std::filesystem::resize_file(folder_.Path("out/" + name), 0);
      const int64_t next = (*source)->order().steps_per_window();
      for (const absl::Status& lost :
           {(*source)->ForStep(next).status(), (*source)->ForStep(next).status(),
            CorpusBatchSource::Make(spec, 7, &corpus, architecture).status()}) {
        EXPECT_EQ(GetExitCode(lost), ExitCode::kData) << lost;
        EXPECT_THAT(std::string(lost.message()), HasSubstr(name + ": it became shorter"));
      }
      folder_.Write("out/" + name, shard);
    }
  }
}

// Damages tokens, the index, and ids beyond the vocabulary.
TEST_F(CorpusTest, AStepOfADamagedCorpusIsAnErrorWithItsName) {
  const std::string shard = folder_.Read("out/train.de-en.pairs");
  ShardHeader header = {};
  std::memcpy(&header, shard.data(), sizeof(header));
  const auto index = static_cast<size_t>(header.index_offset);
  for (const Architecture architecture : {ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY}) {
    for (const double alpha : {0.0, 0.1}) {
      for (const bool sealed : {false, true}) {
        std::string bad = shard;
        for (size_t i = kShardDataOffset; i < index; ++i) bad[i] = '\x7f';
        if (sealed) testing::SealBlocks(bad);
        folder_.Write("out/train.de-en.pairs", bad);
        const absl::StatusOr<Corpus> corpus = Corpus::Open(folder_.Path("out"));
        if (!sealed) {  // so short that sums of lengths lie in the same block
          EXPECT_TRUE(absl::IsDataLoss(corpus.status())) << corpus.status();
          continue;
        }
        ASSERT_TRUE(corpus.ok()) << corpus.status();
        DataSpec spec;
        spec.mutable_microbatch()->set_max_target_tokens(600);
        spec.set_subword_alpha(alpha);
        spec.set_subword_nbest(alpha > 0 ? 4 : 0);
        spec.set_mlm_probability(architecture == ENCODER_ONLY ? 0.15 : 0.0);
        ASSERT_TRUE(ResolveDataSpec(*corpus, &spec, architecture).ok());
        auto source = CorpusBatchSource::Make(spec, 7, &*corpus, architecture);
        ASSERT_TRUE(source.ok()) << source.status();
        absl::Status status;
        const int64_t steps = (*source)->order().steps_per_window();
        for (int64_t step = 0; step < steps && status.ok(); ++step) {
          status = (*source)->ForStep(step).status();
        }
        EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("train.de-en.pairs: damaged: pair "), HasSubstr("token 32639")));
      }
    }
  }
}

// In place, after all of its blocks were read: the pairs in the opposite order.
TEST_F(CorpusTest, AStepOfAShardThatWasWrittenOverIsAnErrorWithItsName) {
  const Corpus corpus = Open();
  const auto source = Source(corpus);
  const int64_t next = source->order().steps_per_window();
  ASSERT_TRUE(source->ForStep(next).ok() && source->ForStep(0).ok());
  std::string shard = folder_.Read("out/train.de-en.pairs");
  ShardHeader header = {};
  std::memcpy(&header, shard.data(), sizeof(header));
  auto* const index = reinterpret_cast<ShardEntry*>(shard.data() + header.index_offset);
  std::reverse(index, index + header.num_pairs);
  std::fstream file(folder_.Path("out/train.de-en.pairs"),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.write(shard.data(), static_cast<std::streamsize>(shard.size())).flush();
  const absl::Status status = source->ForStep(1).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_.Path("out")), HasSubstr("its shard was written over")));
}

TEST_F(CorpusTest, AnyStepIsTheOneOfTheUninterruptedSequence) {
  const Corpus corpus = Open();
  const auto whole = Source(corpus);
  std::vector<StepBatch> steps;
  const int64_t count = whole->order().steps_per_window() + 20;
  for (int64_t step = 0; step < count; ++step) steps.push_back(*whole->ForStep(step));
  for (const int64_t start : {count - 1, int64_t{0}, count / 2, int64_t{3}}) {
    const auto resumed = Source(corpus);
    for (int64_t step = start; step < std::min(count, start + 3); ++step) {
      EXPECT_EQ(*resumed->ForStep(step), steps[step]) << step;
    }
  }
  Prefetcher prefetcher(Source(corpus));
  for (const int64_t step : {0, 1, 2, 9, 10, 3, 4}) {
    EXPECT_EQ(*prefetcher.ForStep(step), steps[step]) << step;
  }
  const testing::ThreadLimit none(0);
  for (const int64_t step : {0, 1, 2}) EXPECT_EQ(*prefetcher.ForStep(step), steps[step]) << step;
}

// Sentences of a batch as text, tags in front apart: "direction's tag, source, target".
std::multiset<std::string> TextOf(const StepBatch& step, const Vocabulary& vocabulary) {
  std::multiset<std::string> text;
  for (const Microbatch& batch : step.microbatches) {
    for (int s = 0; s < batch.num_sentences; ++s) {
      const auto side = [&](const PackedSide& from) {
        const auto first = from.tokens.begin();
        return vocabulary.Decode(
            std::vector<int32_t>(first + from.offsets[s], first + from.offsets[s + 1]));
      };
      text.insert(side(batch.source) + " | " + side(batch.target));
    }
  }
  return text;
}

// Random segmentations: the same step whenever it is asked for, real sentences, within capacity
// (MicrobatchBuilder checks it), other pieces in each epoch.
TEST_F(CorpusTest, SegmentationsAreDrawnAnewForEveryDrawAndTheSameForEveryStart) {
  const Corpus corpus = Open();
  const auto make = [&](int nbest, Architecture architecture = ENCODER_DECODER) {
    DataSpec spec;
    spec.set_max_sentence_tokens(60);  // some sentences are reserved no room
    spec.mutable_microbatch()->set_max_target_tokens(200);
    spec.set_subword_alpha(0.1);
    spec.set_subword_nbest(nbest);
    if (architecture == ENCODER_ONLY) spec.set_mlm_probability(0.15);
    EXPECT_TRUE(ResolveDataSpec(corpus, &spec, architecture).ok());
    auto source = CorpusBatchSource::Make(spec, 7, &corpus, architecture);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  };
  const auto whole = make(64), best = make(2);
  std::set<std::string> known;
  for (const Direction& direction : corpus.directions()) {
    const int index = static_cast<int>(&direction - corpus.directions().data());
    for (int64_t pair = 0; pair < direction.num_pairs; ++pair) {
      const PairTokens tokens = corpus.Tokens(index, pair);
      const Vocabulary& words = corpus.vocabulary();
      known.insert(words.Decode(tokens.source) + " | " + words.Decode(tokens.target));
    }
  }
  std::map<std::string, std::vector<std::vector<int32_t>>> cuts;
  std::vector<StepBatch> steps;
  for (int64_t step = 0; step < 60; ++step) {
    steps.push_back(*whole->ForStep(step));
    for (const std::string& text : TextOf(steps.back(), corpus.vocabulary())) {
      EXPECT_TRUE(known.contains(text)) << text;
    }
    const PackedSide& source = steps.back().microbatches[0].source;
    const PackedSide& target = steps.back().microbatches[0].target;
    for (int s = 0; s < steps.back().microbatches[0].num_sentences; ++s) {
      EXPECT_LE(source.offsets[s + 1] - source.offsets[s], 60 + 2);  // with tag and </s>
      EXPECT_LE(target.offsets[s + 1] - target.offsets[s], 60 + 1);
      const auto first = target.tokens.begin();
      const std::vector<int32_t> ids(first + target.offsets[s], first + target.offsets[s + 1]);
      cuts[corpus.vocabulary().Decode(ids)].push_back(ids);
    }
  }
  int again = 0, anew = 0;
  for (const auto& [text, all] : cuts) {
    if (all.size() < 3) continue;
    ++again;
    anew += std::set(all.begin(), all.end()).size() > 1 ? 1 : 0;
  }
  EXPECT_GT(again, 10);
  EXPECT_GT(anew, again * 3 / 4);
  EXPECT_EQ(whole->order().Reserved({60, 59}), SizeOf({60, 60}, TARGET_TAG_ON_SOURCE));
  for (const int64_t start : {59, 0, 30}) {
    EXPECT_EQ(*make(64)->ForStep(start), steps[static_cast<size_t>(start)]) << start;
  }
  EXPECT_NE(*best->ForStep(0), steps[0]);
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    const auto stack = make(64, architecture);
    const StepBatch step = *stack->ForStep(5);
    EXPECT_EQ(*make(64, architecture)->ForStep(5), step);
  }
}

// The twin: the pairs of the window one by one.
TEST_F(CorpusTest, AStepHasThePairsOfItsWindowAsItsModelTakesThem) {
  const Corpus corpus = Open();
  const Vocabulary& vocabulary = corpus.vocabulary();
  for (const Architecture architecture : {ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY}) {
    DataSpec spec;
    spec.set_tags(M2M);
    spec.mutable_microbatch()->set_max_target_tokens(600);
    spec.set_global_microbatches(2);
    if (architecture == ENCODER_ONLY) spec.set_mlm_probability(0.15);
    ASSERT_TRUE(ResolveDataSpec(corpus, &spec, architecture).ok());
    const auto order = DataOrder::Make(spec, 7, &corpus, architecture);
    auto source = CorpusBatchSource::Make(spec, 7, &corpus, architecture);
    ASSERT_TRUE(order.ok() && source.ok()) << order.status() << source.status();
    const int64_t step = 3;
    const DataOrder::Window window = order->MakeWindow(0);
    StepBatch expected;
    uint32_t ordinal = 0;
    for (const size_t m : {6, 7}) {
      MicrobatchBuilder builder(order->capacity());
      for (const PairRef& pair : window[m]) {
        const Direction& direction = corpus.directions()[pair.direction];
        const DirectionTags tags = {M2M, *vocabulary.TagId(direction.source),
                                    *vocabulary.TagId(direction.target)};
        const PairTokens tokens = corpus.Tokens(pair.direction, pair.pair);
        EncodedPair encoded = EncodePair(tags, tokens.source, tokens.target);
        if (architecture == DECODER_ONLY) encoded = EncodeTargetSide(tags, tokens.target);
        if (architecture == ENCODER_ONLY) {
          encoded = EncodeSourceSide(tags, tokens.source, {0.15, vocabulary.first_tag()},
                                     {7, direction.Name(), pair.pair, step});
        }
        builder.Add(ordinal++, encoded);
      }
      expected.Add(std::move(builder).Build());
    }
    EXPECT_TRUE(*(*source)->ForStep(step) == expected) << Architecture_Name(architecture);
  }
}

TEST(SpareOf, IsWhatNoPairNeedsOnEitherSide) {
  const std::vector<PairRef> pairs = {{.size = {3, 4}}, {.size = {2, 5}}};
  EXPECT_EQ(SpareOf({.source = 10, .target = 12}, pairs), (PairSize{5, 3}));
  EXPECT_EQ(SpareOf({.source = 10, .target = 12}, {}), (PairSize{10, 12}));
}

TEST_F(CorpusTest, BatchesHoldSentencesOfTheCorpusWithTheirTags) {
  const Corpus corpus = Open();
  const Vocabulary& vocabulary = corpus.vocabulary();
  for (const TagStyle style : {TARGET_TAG_ON_SOURCE, M2M}) {
    const auto source = Source(corpus, style);
    const StepBatch step = *source->ForStep(11);
    ASSERT_EQ(step.microbatches.size(), 2u);
    uint32_t ordinal = 0;
    int64_t num_source = 0;
    for (const Microbatch& batch : step.microbatches) {
      for (int s = 0; s < batch.num_sentences; ++s, ++ordinal) {
        const int32_t source_begin = batch.source.offsets[s];
        const int32_t target_begin = batch.target.offsets[s];
        const int32_t target_end = batch.target.offsets[s + 1];
        EXPECT_EQ(batch.source_pairs[source_begin], ordinal);
        EXPECT_EQ(batch.target_pairs[target_begin], ordinal);
        EXPECT_GE(batch.source.tokens[source_begin], vocabulary.first_tag());
        EXPECT_EQ(batch.source.tokens[batch.source.offsets[s + 1] - 1], kEos);
        EXPECT_EQ(batch.target.tokens[target_begin], kEos);
        EXPECT_EQ(batch.labels[target_end - 1], kEos);
        EXPECT_EQ(batch.labels[target_begin] >= vocabulary.first_tag(), style == M2M);
        for (int32_t i = target_begin; i + 1 < target_end; ++i) {
          EXPECT_EQ(batch.labels[i], batch.target.tokens[i + 1]);
        }
      }
      num_source += batch.num_source_tokens;
    }
    EXPECT_EQ(num_source, step.num_source_tokens);
  }
}

TEST_F(CorpusTest, BatchesAreRealTextForTheMostPart) {
  const Corpus corpus = Open();
  const auto source = Source(corpus);
  double real = 0, all = 0;
  for (int64_t step = 0; step < 50; ++step) {
    const StepBatch made = *source->ForStep(step);
    for (const Microbatch& batch : made.microbatches) {
      real += static_cast<double>(batch.num_source_tokens + batch.num_target_tokens);
      all += static_cast<double>(batch.source.tokens.size() + batch.target.tokens.size());
    }
  }
  EXPECT_GE(real / all, 0.9);  // of 40 pairs a language, drawn again and again
}

TEST_F(CorpusTest, RefusesANegativeStep) {
  const Corpus corpus = Open();
  EXPECT_FALSE(Source(corpus)->ForStep(-1).ok());
}

}  // namespace
}  // namespace deepnet
