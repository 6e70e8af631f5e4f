#include "trainer/interop/safetensors_reader.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "proto/interop.pb.h"
#include "trainer/checkpoint/format.h"
#include "trainer/interop/json_file.h"

namespace deepnet {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxElements = int64_t{1} << 40;  // of one tensor; keeps products in range
constexpr size_t kPieceBytes = size_t{1} << 20;

absl::Status Damaged(const std::string& file, const std::string& what) {
  return WithExitCode(absl::DataLossError(absl::StrCat("'", file, "': ", what)),
                      ExitCode::kCheckpoint);
}

// Elements of `shape`; -1 where it makes no sense.
int64_t CountElements(const google::protobuf::RepeatedField<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 1 || size > kMaxElements / elements) return -1;
    elements *= size;
  }
  return elements;
}

// `data_begin`, `data_end`: where elements are in the file.
absl::StatusOr<IncomingTensor> CheckEntry(const std::string& path, const std::string& name,
                                          const SafetensorsEntry& entry, int64_t data_begin,
                                          int64_t data_end) {
  const std::optional<FloatType> type = FloatTypeOfSafetensors(entry.dtype());
  if (!type) {
    return Damaged(path, absl::StrCat("tensor '", name, "' is ", entry.dtype(),
                                      "; read are F32, BF16 and F16"));
  }
  const int64_t elements = CountElements(entry.shape());
  const int64_t size = data_end - data_begin;
  const bool ordered = entry.data_offsets_size() == 2 && entry.data_offsets(0) >= 0 &&
                       entry.data_offsets(0) <= entry.data_offsets(1) &&
                       entry.data_offsets(1) <= size;
  if (!ordered || elements < 0 ||
      entry.data_offsets(1) - entry.data_offsets(0) != elements * BytesOf(*type)) {
    return Damaged(
        path, absl::StrCat("tensor '", name, "': shape, type and place in the file do not agree"));
  }
  return IncomingTensor{.shape = {entry.shape().begin(), entry.shape().end()},
                        .type = *type,
                        .file = {},
                        .offset = data_begin + entry.data_offsets(0)};
}

}  // namespace

int64_t IncomingTensor::NumElements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

absl::StatusOr<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::Open(
    FileSystem& fs, const std::string& folder, const ToolOptions& options) {
  std::unique_ptr<SafetensorsFolder> opened(new SafetensorsFolder(fs, folder));
  const auto open = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const bool single, fs.Exists(JoinPath(folder, kSingleFile)));
    if (single) return opened->ReadHeader(kSingleFile, options);
    ASSIGN_OR_RETURN(const bool index, fs.Exists(JoinPath(folder, kIndexFile)));
    if (index) return opened->ReadIndex(options);
    ASSIGN_OR_RETURN(const bool pickled, fs.Exists(JoinPath(folder, "pytorch_model.bin")));
    return absl::NotFoundError(
        absl::StrCat("'", folder, "' holds neither ", kSingleFile, " nor ", kIndexFile,
                     pickled ? "; pytorch_model.bin is not read: load it with transformers and "
                               "write it with save_pretrained, which makes safetensors"
                             : ""));
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
    if (file.empty() || absl::StrContains(file, '/')) {
      return Damaged(path, absl::StrCat("'", file, "' is no name of a file in this folder"));
    }
    files.insert(file);
  }
  for (const std::string& file : files) RETURN_IF_ERROR(ReadHeader(file, options));
  for (const auto& [name, file] : index.weight_map()) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || found->second.file != file) {
      return Damaged(path, absl::StrCat("tensor '", name, "' is not in '", file, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFolder::ReadHeader(const std::string& file, const ToolOptions& options) {
  const std::string path = JoinPath(folder_, file);
  ASSIGN_OR_RETURN(const int64_t size, fs_.Size(path));
  unsigned char length[kLengthBytes] = {};
  ASSIGN_OR_RETURN(
      const int64_t read,
      fs_.ReadAt(path, 0, {reinterpret_cast<char*>(length), static_cast<size_t>(kLengthBytes)}));
  uint64_t bytes = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) bytes = bytes << 8 | length[i];
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
      return Damaged(path, absl::StrCat("tensor '", name, "' is in another file too"));
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFolder::Read(const IncomingTensor& tensor, int64_t first_element,
                                     std::span<float> into) {
  DEEPNET_CHECK(first_element + static_cast<int64_t>(into.size()) <= tensor.NumElements());
  const std::string path = JoinPath(folder_, tensor.file);
  const size_t width = static_cast<size_t>(BytesOf(tensor.type));
  int64_t offset = tensor.offset + first_element * static_cast<int64_t>(width);
  std::string bytes;
  while (!into.empty()) {
    const size_t count = std::min(into.size(), kPieceBytes / width);
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
