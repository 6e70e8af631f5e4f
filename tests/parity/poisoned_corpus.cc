#include "tests/parity/poisoned_corpus.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "launch/defaults.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "tests/support/seal_blocks.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/data_order.h"
#include "trainer/data/prepare/prepare.h"

namespace deepnet::testing {
namespace {

constexpr int kWords = 24;

// Returns "ab", "cd" ...: words of the two languages that translate each other.
std::string Word(int word, char first) {
  return {static_cast<char>(first + word % 6), static_cast<char>('a' + word % 23),
          static_cast<char>(first + word / 6)};
}

// Overwrites `count` ids from `first_token` on.
void Overwrite(std::fstream& file, const ShardHeader& header, int64_t first_token, uint32_t count,
               uint32_t id) {
  file.seekp(header.tokens_offset + first_token * header.token_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    file.write(reinterpret_cast<const char*>(&id), header.token_bytes);  // little-endian
  }
}

}  // namespace

absl::Status MakeMadeUpCorpus(const std::filesystem::path& root, const std::string& folder,
                              int pairs) {
  std::filesystem::create_directories(root);
  std::ofstream table(root / "made-up.tsv");
  std::mt19937 random(1);
  for (int pair = 0; pair < pairs; ++pair) {
    std::string english, other;
    const int words = 4 + static_cast<int>(random() % 5);
    for (int i = 0; i < words; ++i) {
      const int word = static_cast<int>(random() % kWords);
      absl::StrAppend(&english, i > 0 ? " " : "", Word(word, 'a'));
      absl::StrAppend(&other, i > 0 ? " " : "", Word(word, 'p'));
    }
    table << "xx\t" << english << "\t" << other << "\n";
  }
  table.close();
  RunSpec run;
  run.mutable_prepare()->add_table()->set_file((root / "made-up.tsv").string());
  run.mutable_prepare()->mutable_tokenizer()->set_vocab_size(60);
  return Prepare(WithDefaults(run).prepare(), folder, root.string(), [](std::string_view) {})
      .status();
}

absl::Status PoisonSteps(const std::string& folder, DataSpec data, uint64_t seed, int64_t first,
                         int64_t last) {
  ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Open(folder));
  RETURN_IF_ERROR(ResolveDataSpec(corpus, &data));
  ASSIGN_OR_RETURN(const DataOrder order, DataOrder::Make(data, seed, &corpus));
  std::vector<std::string> sides = absl::StrSplit(data.directions(0), '-');
  std::sort(sides.begin(), sides.end());
  const std::string path =
      absl::StrCat(folder, "/", ShardFileName(absl::StrCat(sides[0], "-", sides[1])));
  ASSIGN_OR_RETURN(const Shard shard, Shard::Open(path));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ShardHeader header = {};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  const auto tag = static_cast<uint32_t>(corpus.vocabulary().first_tag());
  for (int64_t step = first - 1; step < last; ++step) {
    const DataOrder::Window window = order.MakeWindow(step / order.steps_per_window());
    const int64_t begin = step % order.steps_per_window() * order.global_microbatches();
    for (int64_t m = begin; m < begin + order.global_microbatches(); ++m) {
      for (const PairRef& pair : window[m]) {
        const ShardEntry entry = shard.entry(pair.pair);
        Overwrite(file, header, entry.first_token, entry.num_first + entry.num_second, tag);
      }
    }
  }
  file.close();
  if (file.fail()) return absl::DataLossError(path);
  const auto files = MakePosixFileSystem(Durability::kProcessEnd);
  ASSIGN_OR_RETURN(std::string bytes, ReadWholeFile(*files, path, INT64_MAX));
  SealBlocks(bytes);
  return ReplaceFile(*files, path, bytes);
}

}  // namespace deepnet::testing
