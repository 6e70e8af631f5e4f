// `translate`, `score` and `evaluate` as ranks under mpirun, with the stored model of tests/golden:
// the output of one process, to the byte.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <regex>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/child_process.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::RunChild;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr char kModel[] = " --root tests/golden/run-v1 --checkpoint run ";

class DecodeRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_decode_ranks_", getpid());
    fs::create_directories(root_);
    std::ifstream table("tests/trainer/data/testdata/udhr.tsv");
    std::ofstream text(root_ / "text"), pairs(root_ / "pairs"), prefixes(root_ / "prefixes");
    std::string line;
    for (int i = 0; i < 60 && std::getline(table, line); ++i) {  // language, English, German
      const size_t english = line.find('\t') + 1, german = line.find('\t', english) + 1;
      text << line.substr(english, german - english - 1) << "\n";
      pairs << line.substr(english) << "\n";
      prefixes << (i % 3 == 0 ? "" : "Jeder hat") << "\n";
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Read(const char* file) const {
    std::ostringstream text;
    text << std::ifstream(root_ / file).rdbuf();
    return text.str();
  }

  // The program's exit code, as one process or as ranks; its outputs are in files.
  int Start(int ranks, const std::string& arguments) const {
    const std::string launcher =
        absl::StrCat("MPIEXEC_TIMEOUT=120 tests/mpi/mpirun.sh ", ranks, " ");
    return RunChild({"bash", "-c",
                     absl::StrCat(ranks > 1 ? launcher : "", DEEPNET_PROGRAM, " ", arguments, " > ",
                                  (root_ / "out").string(), " 2> ", (root_ / "err").string())})
        .code;
  }

  // Returns what rank 0 printed.
  std::string Run(int ranks, const std::string& arguments) const {
    EXPECT_EQ(Start(ranks, arguments), 0) << arguments << "\n" << Read("err");
    return Read("out");
  }

  void ExpectSameOnRanks(const std::string& arguments, std::initializer_list<int> numbers) const {
    const std::string one = Run(1, arguments);
    EXPECT_NE(one, "");
    for (const int ranks : numbers) EXPECT_EQ(Run(ranks, arguments), one) << ranks;
  }

  fs::path root_;
};

TEST_F(DecodeRanksTest, TranslationsAreThoseOfOneProcess) {
  const std::string translate =
      absl::StrCat("translate", kModel, "--from en --to de --chunk-lines 7 --batch-tokens 100 ",
                   "--scores --nbest 2 < ", (root_ / "text").string());
  ExpectSameOnRanks(translate + " --beam-size 3", {2, 4});
  ExpectSameOnRanks(translate + " --sample 1 --seed 3 --top-k 20 --top-p 0.9", {4});
  ExpectSameOnRanks(
      absl::StrCat(translate, " --beam-size 2 --prefixes ", (root_ / "prefixes").string()), {2});
}

TEST_F(DecodeRanksTest, ScoresAreThoseOfOneProcess) {
  ExpectSameOnRanks(
      absl::StrCat("score", kModel, "--from en --to de < ", (root_ / "pairs").string()), {4});
}

TEST_F(DecodeRanksTest, AnEnsembleOfOneModelTwiceIsThatModel) {
  const std::string text = absl::StrCat("--from en --to de < ", (root_ / "text").string());
  const std::string pairs = absl::StrCat("--from en --to de < ", (root_ / "pairs").string());
  const std::string translate = absl::StrCat("translate", kModel),
                    score = "score" + translate.substr(9);
  const std::string twice = "--checkpoint run/best-nll ",
                    search = "--scores --beam-size 3 --nbest 3 ";
  const std::string one = Run(1, translate + search + text);
  EXPECT_EQ(Run(1, translate + twice + search + text), one);
  EXPECT_EQ(Run(2, translate + twice + search + text), one);
  EXPECT_EQ(Run(1, score + twice + pairs), Run(1, score + pairs));
}

TEST_F(DecodeRanksTest, AnEnsembleTakesWhatItsShortestModelTakes) {
  const std::string folder = root_.string();
  Run(1, absl::StrCat("checkpoint export tests/golden/run-v1/run --max-shard-size 20kB --output ",
                      folder, "/export"));
  EXPECT_TRUE(fs::exists(root_ / "export/model.safetensors.index.json"));
  ASSERT_EQ(RunChild({"sed", "-Ei", "s/(\"max_positions\": ?)[0-9]+/\\116/",
                      folder + "/export/config.json"})
                .code,
            0);
  Run(1, absl::StrCat("checkpoint import ", folder, "/export --output ", folder, "/short"));
  Run(1, absl::StrCat("translate", kModel, "--checkpoint ", folder, "/short --beam-size 1 ",
                      "--from en --to de < ", folder, "/text"));
  EXPECT_THAT(Read("err"), HasSubstr("lines were cut to model.max_positions (16 tokens)"));
}

TEST_F(DecodeRanksTest, AModelOrACorpusThatOneRankAloneHasEndsAllWithThree) {
  const std::string folder = root_.string();
  Run(1, absl::StrCat("checkpoint average tests/golden/run-v1/run --last 1 --output ", folder,
                      "/other"));
  Run(1, absl::StrCat("prepare --tsv ", folder, "/pairs --from en --to de --set data.folder=",
                      folder, "/corpus --set prepare.tokenizer.vocab_size=150"));
  const auto expect = [&](const std::string& command, const std::string& of_rank_1,
                          const std::string& what) {
    const std::string text = absl::StrCat(" < ", folder, "/text");
    EXPECT_EQ(Start(2, absl::StrCat(command, kModel, " : -n 1 ", DEEPNET_PROGRAM, " ", command,
                                    of_rank_1, text)),
              3)
        << Read("err");
    EXPECT_THAT(Read("err"), HasSubstr(what + " is not the same on all ranks: rank 2 "));
  };
  expect("translate --from en --to de",
         absl::StrCat(" --root tests/golden/run-v1 --checkpoint ", folder, "/other"),
         "--checkpoint");
  expect("evaluate", absl::StrCat(kModel, "--data ", folder, "/corpus"), "the corpus");
}

TEST_F(DecodeRanksTest, AnEvaluationIsThatOfOneProcess) {
  const auto evaluate = [&](int ranks) {
    // Beside the scores there is only how long it took.
    return std::regex_replace(
        Run(ranks, absl::StrCat("evaluate", kModel, "--json --beam-size 2 --output ",
                                (root_ / absl::StrCat(ranks)).string())),
        std::regex("\"seconds\":[^,}]*"), "");
  };
  const std::string one = evaluate(1);
  EXPECT_THAT(one, HasSubstr("\"bleu\""));
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(evaluate(ranks), one);
    for (const auto& entry : fs::directory_iterator(root_ / "1")) {
      const std::string name = entry.path().filename();
      EXPECT_EQ(Read(absl::StrCat(ranks, "/", name).c_str()), Read(("1/" + name).c_str()));
    }
  }
}

TEST_F(DecodeRanksTest, AnEvaluationTakesWhatItsFlagsName) {
  const std::string evaluate = absl::StrCat("evaluate", kModel, "--beam-size 1 ");
  EXPECT_THAT(Run(1, evaluate + "--direction en-fr --direction de-en --split dev --sentences 2 "
                                "--spm corpus/tokenizer.model"),
              ContainsRegex("^direction +BLEU +chrF +spBLEU +nll +sentences\n"
                            "de-en .* 4\\.665 +2\n"
                            "en-fr .* 4\\.661 +2\n"
                            "X->en \\(1\\) .* 2\nen->X \\(1\\) .* 2\nall \\(2\\) .* 4\n"
                            "BLEU\\|.*tok:13a.*; .*tok:spm.*\n"));
  fs::copy("tests/golden/run-v1/corpus", root_ / "copy");
  const std::string json =
      Run(1, absl::StrCat(evaluate, "--any-to-any --sentences 1 --json --data ",
                          (root_ / "copy").string()));
  EXPECT_THAT(json, HasSubstr("{\"kind\":\"evaluate\",\"step\":30,"));
  EXPECT_THAT(json, HasSubstr("\"direction\":\"fr-de\",\"sentences\":1,"));
  EXPECT_THAT(json, HasSubstr("\"checkpoint\":\"tests/golden/run-v1/run/step-00000030\""));
}

TEST_F(DecodeRanksTest, AnErrorEndsAllWithItsCodeAndIsSaidOnce) {
  std::ofstream(root_ / "text", std::ios::app) << "schlecht \xFC\n";
  const std::string text = absl::StrCat(" < ", (root_ / "text").string());
  const auto expect = [&](int code, const std::string& arguments, const std::string& error) {
    EXPECT_EQ(Start(2, arguments + text), code) << Read("err");
    const std::string said = Read("err");
    const size_t at = said.find(error);
    EXPECT_NE(at, said.npos) << said;
    EXPECT_EQ(said.find("error: ", said.find("error: ") + 1), said.npos) << said;
  };
  const std::string languages = " --from en --to de";
  expect(4, absl::StrCat("translate", kModel, languages), "standard input, line 61: not UTF-8");
  expect(4, absl::StrCat("score", kModel, languages, " none.en none.de"),
         "none.en: cannot be read");
  expect(2, absl::StrCat("translate", kModel, " --from en --to xx"), "--to: xx: the model knows");
  expect(4, absl::StrCat("evaluate", kModel, "--direction xx-yy"), "xx-yy");
  expect(4, absl::StrCat("evaluate", kModel, "--spm none"), "--spm: cannot look at ");
  expect(4, absl::StrCat("evaluate", kModel, "--data none"), "none is no prepared corpus");
}

}  // namespace
}  // namespace deepnet
