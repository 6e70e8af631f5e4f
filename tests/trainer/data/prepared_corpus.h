// A small corpus in OPUS-100's layout, made of the UDHR fixture, and what it takes to prepare it.
// Header-only.
#pragma once

#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "proto/data.pb.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/prepare/prepare.h"

namespace deepnet::testing {

inline constexpr char kUdhr[] = "tests/trainer/data/testdata/udhr.tsv";

using TextPairs = std::vector<std::pair<std::string, std::string>>;  // English, other

// The fixture's pairs by language.
inline std::map<std::string, TextPairs> UdhrPairs() {
  std::ifstream file(kUdhr);
  std::map<std::string, TextPairs> pairs;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    const size_t tab2 = line.find('\t', tab + 1);
    pairs[line.substr(0, tab)].emplace_back(line.substr(tab + 1, tab2 - tab - 1),
                                            line.substr(tab2 + 1));
  }
  return pairs;
}

inline void WritePairs(const TempFolder& folder, const std::string& stem, const std::string& first,
                       const std::string& second, const TextPairs& pairs) {
  std::string first_text, second_text;
  for (const auto& [a, b] : pairs) {
    first_text += a + "\n";
    second_text += b + "\n";
  }
  folder.Write(stem + "." + first, first_text);
  folder.Write(stem + "." + second, second_text);
}

// opus/<xx-yy>/opus.<xx-yy>-{train,dev,test}.{xx,yy} with de-en, en-fr and en-ru: the last ten
// pairs of the fixture are test, the ten before dev.
inline void WriteOpus(const TempFolder& folder) {
  for (const auto& [language, pairs] : UdhrPairs()) {
    const bool english_first = "en" < language;
    TextPairs oriented;
    for (const auto& [english, other] : pairs) {
      oriented.emplace_back(english_first ? english : other, english_first ? other : english);
    }
    const std::string first = english_first ? "en" : language;
    const std::string second = english_first ? language : "en";
    const std::string name = first + "-" + second;
    const auto end = oriented.end();
    for (const auto& [split, part] : {std::pair("test", TextPairs(end - 10, end)),
                                      std::pair("dev", TextPairs(end - 20, end - 10)),
                                      std::pair("train", TextPairs(oriented.begin(), end - 20))}) {
      WritePairs(folder, "opus/" + name + "/opus." + name + "-" + split, first, second, part);
    }
  }
}

inline PrepareSpec PrepareSpecOf(const std::string& text) {
  PrepareSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

// Prepares the PrepareSpec `text` under the folder, into its folder `output`. Lines about the
// progress go to *progress, if given.
inline absl::StatusOr<CorpusReport> PrepareIn(const TempFolder& folder, const std::string& text,
                                              std::string* progress = nullptr,
                                              const std::string& output = "out") {
  PrepareSpec spec = PrepareSpecOf(text);
  if (spec.tokenizer().vocab_size() == 0) spec.mutable_tokenizer()->set_vocab_size(300);
  return Prepare(spec, output, folder.path(), [progress](std::string_view line) {
    if (progress != nullptr) progress->append(line).append("\n");
  });
}

}  // namespace deepnet::testing
