#include "tests/fuzz/inputs.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "launch/spec_printer.h"
#include "launch/validate.h"
#include "parallel/base/check.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/utf8.h"
#include "parallel/plan/inventory.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/seal_blocks.h"
#include "trainer/checkpoint/format.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/line_reader.h"
#include "trainer/data/prepare/parallel_text.h"
#include "trainer/data/vocabulary.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/hf_tokenizer.h"
#include "trainer/interop/safetensors.h"

namespace deepnet::testing {
namespace {

namespace fs = std::filesystem;

// A folder of this process, removed at its end.
class Scratch {
 public:
  Scratch() : folder_(fs::temp_directory_path() / absl::StrCat("deepnet_fuzz_", getpid())) {
    fs::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string folder() const { return folder_; }

  std::string Write(const std::string& name, std::string_view bytes) const {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  const fs::path folder_;
};

const Scratch& ScratchFolder() {
  static const Scratch scratch;
  return scratch;
}

std::string ReadGolden(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  DEEPNET_CHECK(file.good()) << path << ": targets are run in the project's folder";
  return {std::istreambuf_iterator<char>(file), {}};
}

void Put(MemoryFileSystem& files, const std::string& path, std::string_view bytes) {
  const auto file = files.CreateNew(path);
  DEEPNET_CHECK(file.ok() && (*file)->Append(bytes).ok() && (*file)->Close().ok()) << path;
}

void ReadConfig(const std::string& name, std::string_view bytes) {
  auto run = ReadRunSpec({.files = {ScratchFolder().Write(name, bytes)}}, RunSpec());
  if (!run.ok()) return;
  const RunSpec complete = WithDefaults(*std::move(run));
  for (const auto validate : {ValidateForPlan, ValidateForTrain, ValidateForPrepare}) {
    validate(complete).IgnoreError();
  }
  const std::string again = ScratchFolder().Write("again.textproto", ToTextproto(complete));
  DEEPNET_CHECK(ReadRunSpec({.files = {again}}, RunSpec()).ok()) << ToTextproto(complete);
}

void Textproto(std::string_view bytes) { ReadConfig("run.textproto", bytes); }
void Json(std::string_view bytes) { ReadConfig("run.json", bytes); }

void Set(std::string_view bytes) {
  const auto run = ReadRunSpec({.sets = {std::string(bytes)}}, RunSpec());
  if (run.ok()) ValidateForTrain(WithDefaults(*run)).IgnoreError();
}

// The bytes without a checksum, which is put behind them.
void CheckpointManifest(std::string_view bytes) {
  Manifest manifest;
  if (!manifest.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto parsed = ParseManifest(SerializeManifest(manifest));
  if (parsed.ok()) DEEPNET_CHECK(ParseManifest(SerializeManifest(*parsed)).ok());
}

void Corpus(std::string_view bytes) {
  ScratchFolder().Write("manifest.textproto", bytes);
  const auto manifest = ReadManifest(ScratchFolder().folder());
  if (manifest.ok()) DEEPNET_CHECK(!ContentHash(*manifest).empty());
}

void Safetensors(std::string_view bytes) {
  MemoryFileSystem files;
  files.MakeFolder("m").IgnoreError();
  Put(files, "m/model.safetensors", bytes);
  const auto folder = SafetensorsFolder::Open(files, "m", ToolOptions());
  if (!folder.ok()) return;
  std::vector<float> some(3);
  for (const auto& [name, tensor] : (*folder)->tensors()) {
    if (ElementsOf(tensor.shape) >= 3) (*folder)->Read(tensor, 0, some).IgnoreError();
  }
}

void SafetensorsIndex(std::string_view bytes) {
  static const std::string& tensors =
      *new std::string(ReadGolden("tests/golden/export-v1/model.safetensors"));
  MemoryFileSystem files;
  files.MakeFolder("m").IgnoreError();
  Put(files, "m/model-00001-of-00001.safetensors", tensors);
  Put(files, "m/model.safetensors.index.json", bytes);
  SafetensorsFolder::Open(files, "m", ToolOptions()).status().IgnoreError();
}

// The checksums and the hash of the contents are made right, so that what lies behind them is
// reached.
void PairShard(std::string_view bytes) {
  std::string fixed(bytes);
  if (fixed.size() >= sizeof(ShardHeader)) {
    ShardHeader header;
    std::memcpy(&header, fixed.data(), sizeof(header));
    const auto end = static_cast<uint64_t>(header.checksums_offset);
    if (end >= kShardDataOffset && end <= fixed.size()) {
      ContentHasher hasher;
      hasher.Update(std::string_view(fixed).substr(kShardDataOffset, end - kShardDataOffset));
      header.content_hash = hasher.Digest();
      testing::SealBlocks(fixed);
    }
    header.header_crc = Crc32c({reinterpret_cast<const char*>(&header), sizeof(header) - 4});
    std::memcpy(fixed.data(), &header, sizeof(header));
  }
  const auto shard = Shard::Open(ScratchFolder().Write("x.pairs", fixed));
  if (!shard.ok() || !shard->CheckContent().ok()) return;
  int64_t sum = static_cast<int64_t>(shard->lengths().size());
  for (int64_t pair = 0; pair < shard->num_pairs(); ++pair) {
    for (const int32_t id : shard->First(pair)) sum += id;
    for (const int32_t id : shard->Second(pair)) sum += id;
  }
  volatile int64_t sink = sum;
  (void)sink;
}

void SentencePieceFile(std::string_view bytes) {
  const auto vocabulary =
      Vocabulary::Open(ScratchFolder().Write("tokenizer.model", bytes), {"de", "en"});
  if (!vocabulary.ok()) return;
  for (const std::string_view text : {"", "Hello World", "\u00fcber 1\u00bd \ufb01 \u4e2d\u6587"}) {
    const std::vector<int32_t> ids = vocabulary->Encode(text);
    vocabulary->Decode(ids);
    for (const int32_t id : ids) DEEPNET_CHECK(id >= 0 && id < vocabulary->size()) << id;
  }
}

void VocabJson(std::string_view bytes) {
  static const std::string& model =
      *new std::string(ReadGolden("tests/golden/export-v1/source.spm"));
  MemoryFileSystem files;
  files.MakeFolder("m").IgnoreError();
  Put(files, "m/sentencepiece.bpe.model", model);
  Put(files, "m/vocab.json", bytes);
  ReadM2mVocabulary(files, "m", 300, ToolOptions()).status().IgnoreError();
}

void HfConfigJson(std::string_view bytes) {
  MemoryFileSystem files;
  files.MakeFolder("m").IgnoreError();
  Put(files, "m/config.json", bytes);
  const auto config = ReadHfConfig(files, "m", ToolOptions());
  if (config.ok()) ModelOfM2m(*config).status().IgnoreError();
}

// No plain text has more lines. A compressed one can have many millions, which would take seconds
// and find nothing new.
constexpr int kMaxLines = kMaxInputBytes;

void Tsv(std::string_view bytes) {
  const std::string file = ScratchFolder().Write("x.tsv", bytes);
  const auto reader = PairReader::Open({.tsv_file = file, .score_threshold = 1.0});
  if (!reader.ok()) return;
  RawPair pair;
  for (int line = 0; line < kMaxLines; ++line) {
    const auto more = (*reader)->Next(&pair);
    if (!more.ok() || !*more) return;
    DEEPNET_CHECK(pair.first.size() <= LineReader::kMaxLineBytes);
    DEEPNET_CHECK(pair.second.size() <= LineReader::kMaxLineBytes);
  }
}

void Lines(std::string_view bytes) {
  const auto reader = LineReader::Open(ScratchFolder().Write("x.txt", bytes));
  if (!reader.ok()) return;
  std::string_view text;
  for (int line = 0; line < kMaxLines; ++line) {
    const auto more = (*reader)->Next(&text);
    if (!more.ok() || !*more) return;
    DEEPNET_CHECK(text.size() <= LineReader::kMaxLineBytes);
    IsUtf8(text);
  }
}

constexpr FuzzTarget kTargets[] = {
    {"checkpoint_manifest", CheckpointManifest},
    {"config_json", Json},
    {"config_textproto", Textproto},
    {"corpus_manifest", Corpus},
    {"hf_config", HfConfigJson},
    {"lines", Lines},
    {"safetensors", Safetensors},
    {"safetensors_index", SafetensorsIndex},
    {"sentencepiece", SentencePieceFile},
    {"set", Set},
    {"shard", PairShard},
    {"tsv", Tsv},
    {"vocab_json", VocabJson},
};

}  // namespace

std::span<const FuzzTarget> FuzzTargets() { return kTargets; }

std::vector<std::string> LargeInputs() {
  using std::string_literals::operator""s;
  std::vector<std::string> inputs;
  for (const std::string& piece : {"a{"s,
                                   "a<"s,
                                   "a:["s,
                                   "a:[{b:"s,
                                   "[a.b]{"s,
                                   "model{"s,
                                   "model{residual:X}\n"s,
                                   "languages:\"a\""s,
                                   "a:1 "s,
                                   "a-"s,
                                   "["s,
                                   "{\"a\":"s,
                                   "{\"model\":"s,
                                   "[{\"a\":"s,
                                   "{"s,
                                   "}"s,
                                   "\""s,
                                   "\\"s,
                                   "#"s,
                                   "\n"s,
                                   " "s,
                                   "a"s,
                                   "-"s,
                                   ","s,
                                   "model="s,
                                   "model.a=["s,
                                   "de\tx\ty\n"s,
                                   "\x0b"s,
                                   "\x0a\x02"s,
                                   "\0"s,
                                   "\xff"s,
                                   "\xe4\xb8\xad"s}) {
    std::string& input = inputs.emplace_back();
    while (input.size() + piece.size() <= kMaxInputBytes) input += piece;
  }
  return inputs;
}

}  // namespace deepnet::testing
