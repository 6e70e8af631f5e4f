#include "trainer/interop/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/inventory.h"
#include "proto/interop.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/interop/hf_config.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// Names of FloatType in safetensors, in its order.
constexpr const char* kTypeNames[] = {"F32", "BF16", "F16"};

uint16_t ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromFloat16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  float magnitude = 0.0f;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else if (exponent == 0x1f) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else {
    magnitude = std::ldexp(static_cast<float>(0x400 + fraction), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr int64_t kLengthBytes = sizeof(uint64_t);
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kHeaderAlignment = 8;  // of the elements in the file

using Shard = std::span<const OutgoingTensor>;

int64_t ElementBytes(Shard shard, FloatType type) {
  int64_t elements = 0;
  for (const OutgoingTensor& tensor : shard) elements += ElementsOf(tensor.shape);
  return elements * BytesOf(type);
}

// Cuts the list into files, in order: a new one where the next tensor would be too much.
std::vector<Shard> CutIntoShards(Shard tensors, const SafetensorsLayout& layout) {
  std::vector<Shard> shards;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t added = ElementsOf(tensors[i].shape) * BytesOf(layout.type);
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
  if (count == 1) return kSingleFile;
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

// Returns the length in eight bytes, then the JSON, padded with blanks.
std::string Header(Shard shard, FloatType type) {
  // transformers asks for this key.
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  int64_t offset = 0;
  for (const OutgoingTensor& tensor : shard) {
    const int64_t end = offset + ElementsOf(tensor.shape) * BytesOf(type);
    absl::StrAppend(&json, ",", JsonQuoted(tensor.name), ":{\"dtype\":\"",
                    kTypeNames[static_cast<size_t>(type)], "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", offset, ",", end,
                    "]}");
    offset = end;
  }
  json += '}';
  json.append((kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + json;
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

// Writes one file; `written` is called with the bytes of each piece.
absl::Status WriteShardFile(FileSystem& fs, const std::string& path, Shard shard, FloatType type,
                            const std::function<void(int64_t)>& written) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, fs.CreateNew(path));
  RETURN_IF_ERROR(file->Append(Header(shard, type)));
  std::vector<float> piece;
  std::string bytes;
  for (const OutgoingTensor& tensor : shard) {
    const int64_t elements = ElementsOf(tensor.shape);
    for (int64_t at = 0; at < elements; at += kCopyElements) {
      piece.resize(static_cast<size_t>(std::min(kCopyElements, elements - at)));
      RETURN_IF_ERROR(tensor.read(at, piece));
      bytes.clear();
      AppendFloats(type, piece, &bytes);
      RETURN_IF_ERROR(file->Append(bytes));
      written(static_cast<int64_t>(bytes.size()));
    }
  }
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

constexpr size_t kReadBytes = size_t{1} << 20;

template <typename... Parts>
absl::Status Damaged(const std::string& file, const Parts&... what) {
  return WithExitCode(DataLoss("'", file, "': ", what...), ExitCode::kCheckpoint);
}

// Elements lie in [data_begin, data_end) of the file.
absl::StatusOr<IncomingTensor> CheckEntry(const std::string& path, const std::string& name,
                                          const SafetensorsEntry& entry, int64_t data_begin,
                                          int64_t data_end) {
  const auto* const name_of_type = std::ranges::find(kTypeNames, entry.dtype());
  if (name_of_type == std::end(kTypeNames)) {
    return Damaged(path, "tensor '", name, "' is ", entry.dtype(), "; read are F32, BF16 and F16");
  }
  const auto type = static_cast<FloatType>(name_of_type - kTypeNames);
  const int64_t elements = CheckedElements(entry.shape());
  const int64_t size = data_end - data_begin;
  const bool ordered = entry.data_offsets_size() == 2 && entry.data_offsets(0) >= 0 &&
                       entry.data_offsets(0) <= entry.data_offsets(1) &&
                       entry.data_offsets(1) <= size;
  const int64_t bytes = ordered ? entry.data_offsets(1) - entry.data_offsets(0) : -1;
  if (!ordered || elements < 0 || bytes % BytesOf(type) != 0 || bytes / BytesOf(type) != elements) {
    return Damaged(path, "tensor '", name, "': shape, type and place in the file do not agree");
  }
  return IncomingTensor{.shape = {entry.shape().begin(), entry.shape().end()},
                        .type = type,
                        .file = {},
                        .offset = data_begin + entry.data_offsets(0)};
}

}  // namespace

ElementReader ReadRows(ElementReader matrix, std::span<const int64_t> rows, int64_t width) {
  return [matrix = std::move(matrix), rows, width](int64_t first_element,
                                                   std::span<float> into) -> absl::Status {
    while (!into.empty()) {
      const auto row = static_cast<size_t>(first_element / width);
      DEEPNET_CHECK(row < rows.size()) << "elements beyond the last row";
      const int64_t begin = first_element % width, size = static_cast<int64_t>(into.size());
      int64_t end = width;  // of the rows that follow each other in the matrix
      for (size_t next = row + 1; end - begin < size && next < rows.size(); ++next, end += width) {
        if (rows[next] != rows[next - 1] + 1) break;
      }
      const auto taken = static_cast<size_t>(std::min(size, end - begin));
      RETURN_IF_ERROR(matrix(rows[row] * width + begin, into.first(taken)));
      into = into.subspan(taken);
      first_element += static_cast<int64_t>(taken);
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<ElementReader> ReadStoredWeight(TensorReader& reader, const std::string& parameter,
                                               const std::vector<int64_t>& shape) {
  const StoredTensor* const tensor = reader.Find(absl::StrCat(kWeightPrefix, parameter));
  if (tensor == nullptr || tensor->shape != shape) {
    const std::string found =
        tensor == nullptr ? "is missing" : absl::StrCat("is ", absl::StrJoin(tensor->shape, "x"));
    return CheckpointRefused("'", reader.folder(), "': the weight '", parameter, "' ", found,
                             "; its model has ", absl::StrJoin(shape, "x"));
  }
  return ElementReader([&reader, tensor](int64_t first_element, std::span<float> into) {
    return reader.Read(*tensor, first_element, into);
  });
}

absl::StatusOr<std::vector<OutgoingTensor>> StoredWeights(const ModelSpec& model,
                                                          TensorReader& reader) {
  std::vector<OutgoingTensor> tensors;
  for (const Parameter& parameter : Describe(model, {}).parameters) {
    ASSIGN_OR_RETURN(ElementReader read, ReadStoredWeight(reader, parameter.name, parameter.shape));
    tensors.push_back({.name = parameter.name, .shape = parameter.shape, .read = std::move(read)});
  }
  return tensors;
}

int64_t BytesOf(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

void AppendFloats(FloatType type, std::span<const float> values, std::string* bytes) {
  if (type == FloatType::kFloat32) {
    bytes->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return;
  }
  DEEPNET_CHECK(type == FloatType::kBfloat16) << "float16 is only read";
  for (const float value : values) {
    const uint16_t half = ToBfloat16(value);
    bytes->append(reinterpret_cast<const char*>(&half), sizeof(half));
  }
}

void ReadFloats(FloatType type, std::string_view bytes, std::span<float> values) {
  DEEPNET_CHECK(static_cast<int64_t>(bytes.size()) ==
                static_cast<int64_t>(values.size()) * BytesOf(type));
  if (type == FloatType::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
    values[i] = type == FloatType::kBfloat16
                    ? std::bit_cast<float>(static_cast<uint32_t>(half) << 16)
                    : FromFloat16(half);
  }
}

absl::Status WriteSafetensors(FileSystem& fs, const std::string& folder,
                              std::span<const OutgoingTensor> tensors,
                              const SafetensorsLayout& layout, const ToolOptions& options) {
  const std::vector<Shard> shards = CutIntoShards(tensors, layout);
  const size_t rank = options.world == nullptr ? 0 : static_cast<size_t>(options.world->rank());
  const size_t ranks = options.world == nullptr ? 1 : static_cast<size_t>(options.world->size());
  int64_t done = 0, total = 0;
  const auto written = [&](int64_t bytes) { options.progress(done += bytes, total); };
  for (size_t i = rank; i < shards.size(); i += ranks) {
    total += ElementBytes(shards[i], layout.type);
  }
  for (size_t i = rank; i < shards.size(); i += ranks) {
    RETURN_IF_ERROR(WriteShardFile(fs, JoinPath(folder, FileName(i, shards.size())), shards[i],
                                   layout.type, written));
  }
  if (shards.size() == 1 || rank > 0) return absl::OkStatus();
  return ReplaceFile(fs, JoinPath(folder, kIndexFile), Index(shards, layout.type));
}

absl::StatusOr<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::Open(
    FileSystem& fs, const std::string& folder, const ToolOptions& options) {
  std::unique_ptr<SafetensorsFolder> opened(new SafetensorsFolder(fs, folder));
  const auto open = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const bool single, Exists(fs, JoinPath(folder, kSingleFile)));
    if (single) return opened->ReadHeader(kSingleFile, options);
    ASSIGN_OR_RETURN(const bool index, Exists(fs, JoinPath(folder, kIndexFile)));
    if (index) return opened->ReadIndex(options);
    ASSIGN_OR_RETURN(const bool pickled, Exists(fs, JoinPath(folder, "pytorch_model.bin")));
    return NotFound("'", folder, "' holds neither ", kSingleFile, " nor ", kIndexFile,
                    pickled ? "; pytorch_model.bin is not read: load it with transformers and "
                              "write it with save_pretrained, which makes safetensors"
                            : "");
  };
  RETURN_IF_ERROR(WithExitCode(open(), ExitCode::kCheckpoint));
  return opened;
}

absl::Status SafetensorsFolder::ReadIndex(const ToolOptions& options) {
  SafetensorsIndex index;
  const std::string path = JoinPath(folder_, kIndexFile);
  RETURN_IF_ERROR(ReadJsonFile(fs_, path, "", options, &index));
  std::set<std::string> files;
  for (const auto& [name, file] : index.weight_map()) {
    if (!IsFileName(file)) {
      return Damaged(path, "'", file, "' is no name of a file in this folder");
    }
    files.insert(file);
  }
  for (const std::string& file : files) RETURN_IF_ERROR(ReadHeader(file, options));
  for (const auto& [name, file] : index.weight_map()) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || found->second.file != file) {
      return Damaged(path, "tensor '", name, "' is not in '", file, "'");
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFolder::ReadHeader(const std::string& file, const ToolOptions& options) {
  const std::string path = JoinPath(folder_, file);
  ASSIGN_OR_RETURN(const int64_t size, fs_.Size(path));
  uint64_t bytes = 0;
  ASSIGN_OR_RETURN(const int64_t read,
                   fs_.ReadAt(path, 0, {reinterpret_cast<char*>(&bytes), kLengthBytes}));
  if (read < kLengthBytes || bytes > static_cast<uint64_t>(size - kLengthBytes)) {
    return Damaged(path, "no safetensors file: its header does not fit into it");
  }
  RETURN_IF_ERROR(CheckMemory(kToolFixedBytes + kJsonFactor * static_cast<int64_t>(bytes), options,
                              absl::StrCat("the header of '", path, "'")));
  std::string json(bytes, '\0');
  ASSIGN_OR_RETURN(const int64_t got, fs_.ReadAt(path, kLengthBytes, {json.data(), json.size()}));
  if (static_cast<uint64_t>(got) != bytes) return Damaged(path, "ends inside its header");
  SafetensorsHeader header;
  RETURN_IF_ERROR(ParseJson(json, "tensors", path, &header));
  for (const auto& [name, entry] : header.tensors()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(
        IncomingTensor tensor,
        CheckEntry(path, name, entry, kLengthBytes + static_cast<int64_t>(bytes), size));
    tensor.file = file;
    if (!tensors_.emplace(name, std::move(tensor)).second) {
      return Damaged(path, "tensor '", name, "' is in another file too");
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFolder::Read(const IncomingTensor& tensor, int64_t first_element,
                                     std::span<float> into) {
  DEEPNET_CHECK(first_element + static_cast<int64_t>(into.size()) <= ElementsOf(tensor.shape));
  const std::string path = JoinPath(folder_, tensor.file);
  const size_t width = static_cast<size_t>(BytesOf(tensor.type));
  int64_t offset = tensor.offset + first_element * static_cast<int64_t>(width);
  std::string bytes;
  while (!into.empty()) {
    const size_t count = std::min(into.size(), kReadBytes / width);
    bytes.resize(count * width);
    ASSIGN_OR_RETURN(const int64_t got, fs_.ReadAt(path, offset, {bytes.data(), bytes.size()}));
    if (static_cast<size_t>(got) != bytes.size()) return Damaged(path, "became shorter");
    ReadFloats(tensor.type, bytes, into.first(count));
    into = into.subspan(count);
    offset += got;
  }
  return absl::OkStatus();
}

}  // namespace deepnet
