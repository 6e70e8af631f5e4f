// Every example of corpus/: those that once crashed a reader, and a few from which libFuzzer
// starts.
#include "tests/fuzz/inputs.h"

#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "parallel/base/clock.h"
#include "tests/trainer/data/temp_folder.h"

namespace deepnet::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kCorpus[] = "tests/fuzz/corpus";

TEST(FuzzedInputs, ExamplesOfEveryTargetAreReadWithoutACrash) {
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    folders.insert(entry.path().filename());
  }
  for (const FuzzTarget& target : FuzzTargets()) {
    EXPECT_EQ(folders.erase(std::string(target.name)), 1u) << target.name << ": no examples";
    int examples = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(kCorpus) / target.name)) {
      SCOPED_TRACE(entry.path());
      target.run(ReadFile(entry.path()));
      ++examples;
    }
    EXPECT_GT(examples, 0) << target.name;
  }
  EXPECT_TRUE(folders.empty()) << *folders.begin() << ": no such target";
}

TEST(FuzzedInputs, OfAMegabyteOfAnythingAreReadByEveryTargetInSeconds) {
  for (const FuzzTarget& target : FuzzTargets()) {
    for (const std::string& input : LargeInputs()) {
      SCOPED_TRACE(absl::StrCat(std::string(target.name), " of \"",
                                absl::CHexEscape(input.substr(0, 20)), "\""));
      const double start = SecondsNow();
      target.run(input);
      EXPECT_LT(SecondsNow() - start, 10.0);
    }
  }
}

}  // namespace
}  // namespace deepnet::testing
