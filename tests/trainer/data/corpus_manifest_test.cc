#include "trainer/data/corpus_manifest.h"

#include <string>

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

CorpusReport Report() {
  CorpusReport report;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "folder: '/c' lines: 1234567 kept: 1000000 vocabulary_size: 32000 tokenizer_hash: 'ab' "
      "content_hash: 'cd' seconds: 12.3456 tokenizer_seconds: 5.0614 "
      "peak_resident_bytes: 104857600 "
      "pairs { split: 'train' first_language: 'de' second_language: 'en' lines: 1234000 "
      "kept: 900000 first_tokens: 9100000 second_tokens: 18200000 first_mean_length: 10.11 "
      "second_mean_length: 20.22 longest: 77 "
      "dropped { reason: 'duplicate' lines: 333960 example: 'a:2' } "
      "dropped { reason: 'too long' lines: 40 example: 'a:\"9' } } "
      "pairs { split: 'train' first_language: 'en' second_language: 'de' tag: 'bt' lines: 9 "
      "kept: 4 first_tokens: 8 second_tokens: 12 first_mean_length: 2 second_mean_length: 3 "
      "longest: 3 dropped { reason: 'duplicate' lines: 5 example: 'b:1' } } "
      "pairs { split: 'dev' first_language: 'de' second_language: 'en' "
      "dropped { reason: 'malformed' lines: 7 example: 'd:1' } }",
      &report));
  return report;
}

// What dev and test drop is no part of the sums.
TEST(ReportTable, HasALineOfEachTextAndTheSumOfEachReason) {
  EXPECT_EQ(ReportTable(Report()),
            "split  pair                    lines           kept       %          tokens         "
            " tokens   pieces pieces\n"
            "train  de-en               1,234,000        900,000   72.93       9,100,000      "
            "18,200,000     10.1   20.2\n"
            "train  en-de.bt                    9              4   44.44               8         "
            "     12      2.0    3.0\n"
            "dev    de-en                       0              0    0.00               0         "
            "      0      0.0    0.0\n"
            "train: 1,234,567 lines, 1,000,000 pairs kept (each serves both directions)\n"
            "  dropped: duplicate              333,965   first: a:2\n"
            R"(  dropped: too long                    40   first: a:"9)"
            "\n"
            "vocabulary 32000 (tokenizer ab), corpus cd\n"
            "/c in 12.3 s, tokenizer 5.1 s of them, peak memory 100 MiB\n");
}

TEST(ReportJson, HasAllOfTheReport) {
  EXPECT_EQ(
      ReportJson(Report()),
      R"({"folder": "/c", "lines": 1234567, "kept": 1000000, "vocabulary_size": 32000, )"
      R"("tokenizer_hash": "ab", "content_hash": "cd", "seconds": 12.346, )"
      R"("tokenizer_seconds": 5.061, "peak_resident_bytes": 104857600, "pairs": [)"
      "\n"
      R"(  {"split": "train", "first_language": "de", "second_language": "en", "directions": )"
      R"(["de-en", "en-de"], "lines": 1234000, "kept": 900000, "first_tokens": 9100000, )"
      R"("second_tokens": 18200000, "first_mean_length": 10.1100, "second_mean_length": )"
      R"(20.2200, "longest": 77, "dropped": [)"
      "\n"
      R"(  {"reason": "duplicate", "lines": 333960, "example": "a:2"},)"
      "\n"
      R"(  {"reason": "too long", "lines": 40, "example": "a:\"9"}]},)"
      "\n"
      R"(  {"split": "train", "first_language": "en", "second_language": "de", "directions": )"
      R"(["en-de.bt"], "lines": 9, "kept": 4, "first_tokens": 8, "second_tokens": 12, )"
      R"("first_mean_length": 2.0000, "second_mean_length": 3.0000, "longest": 3, "dropped": [)"
      "\n"
      R"(  {"reason": "duplicate", "lines": 5, "example": "b:1"}]},)"
      "\n"
      R"(  {"split": "dev", "first_language": "de", "second_language": "en", "directions": )"
      R"(["de-en", "en-de"], "lines": 0, "kept": 0, "first_tokens": 0, "second_tokens": 0, )"
      R"("first_mean_length": 0.0000, "second_mean_length": 0.0000, "longest": 0, "dropped": [)"
      "\n"
      R"(  {"reason": "malformed", "lines": 7, "example": "d:1"}]}]})"
      "\n");
}

}  // namespace
}  // namespace deepnet
