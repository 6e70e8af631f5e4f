#include "trainer/interop/safetensors_writer.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;
constexpr size_t kHeaderAlignment = 8;  // of the elements in the file

using Shard = std::span<const OutgoingTensor>;

int64_t ElementBytes(Shard shard, FloatType type) {
  int64_t elements = 0;
  for (const OutgoingTensor& tensor : shard) elements += tensor.NumElements();
  return elements * BytesOf(type);
}

// In order, a new one where the next tensor would be too much.
std::vector<Shard> CutIntoShards(Shard tensors, const SafetensorsLayout& layout) {
  std::vector<Shard> shards;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t added = tensors[i].NumElements() * BytesOf(layout.type);
    if (i > begin && bytes + added > layout.max_shard_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += added;
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

std::string FileName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

// The length in eight bytes, then the JSON, padded with blanks.
std::string Header(Shard shard, FloatType type) {
  // transformers asks for this key.
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  int64_t offset = 0;
  for (const OutgoingTensor& tensor : shard) {
    const int64_t end = offset + tensor.NumElements() * BytesOf(type);
    absl::StrAppend(&json, ",", JsonQuoted(tensor.name), ":{\"dtype\":\"",
                    std::string(SafetensorsName(type)), "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", offset, ",", end,
                    "]}");
    offset = end;
  }
  json += '}';
  json.append((kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  std::string header;
  for (size_t i = 0; i < 8; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return header + json;
}

std::string Index(const std::vector<Shard>& shards, FloatType type) {
  int64_t total = 0;
  std::vector<std::string> rows;
  for (size_t i = 0; i < shards.size(); ++i) {
    total += ElementBytes(shards[i], type);
    for (const OutgoingTensor& tensor : shards[i]) {
      rows.push_back(absl::StrCat("    ", JsonQuoted(tensor.name), ": ",
                                  JsonQuoted(FileName(i, shards.size()))));
    }
  }
  return absl::StrCat("{\n  \"metadata\": {\"total_size\": ", total, "},\n  \"weight_map\": {\n",
                      absl::StrJoin(rows, ",\n"), "\n  }\n}\n");
}

// Bytes dealt with, over all files.
struct Counter {
  const ToolProgress& progress;
  const int64_t total;
  int64_t done = 0;

  void Add(int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  }
};

absl::Status WriteTensor(const OutgoingTensor& tensor, FloatType type, AppendFile& file,
                         Counter& counter) {
  const int64_t elements = tensor.NumElements();
  std::vector<float> piece;
  std::string bytes;
  for (int64_t at = 0; at < elements; at += kPieceElements) {
    piece.resize(static_cast<size_t>(std::min(kPieceElements, elements - at)));
    RETURN_IF_ERROR(tensor.read(at, piece));
    bytes.clear();
    AppendFloats(type, piece, &bytes);
    RETURN_IF_ERROR(file.Append(bytes));
    counter.Add(static_cast<int64_t>(bytes.size()));
  }
  return absl::OkStatus();
}

absl::Status WriteShardFile(FileSystem& fs, const std::string& path, Shard shard, FloatType type,
                            Counter& counter) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, fs.CreateNew(path));
  RETURN_IF_ERROR(file->Append(Header(shard, type)));
  for (const OutgoingTensor& tensor : shard) {
    RETURN_IF_ERROR(WriteTensor(tensor, type, *file, counter));
  }
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

int64_t OutgoingTensor::NumElements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

absl::Status WriteSafetensors(FileSystem& fs, const std::string& folder,
                              std::span<const OutgoingTensor> tensors,
                              const SafetensorsLayout& layout, const ToolProgress& progress) {
  const std::vector<Shard> shards = CutIntoShards(tensors, layout);
  Counter counter{progress, ElementBytes(tensors, layout.type)};
  for (size_t i = 0; i < shards.size(); ++i) {
    RETURN_IF_ERROR(WriteShardFile(fs, JoinPath(folder, FileName(i, shards.size())), shards[i],
                                   layout.type, counter));
  }
  if (shards.size() == 1) return absl::OkStatus();
  return ReplaceFile(fs, JoinPath(folder, "model.safetensors.index.json"),
                     Index(shards, layout.type));
}

}  // namespace deepnet
