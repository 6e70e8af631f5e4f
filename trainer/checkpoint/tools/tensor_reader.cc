#include "trainer/checkpoint/tools/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/block_reader.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

int64_t LongestBlock(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const ShardFile& file : manifest.files()) bytes = std::max(bytes, file.bytes());
  return std::min(bytes, manifest.block_bytes());
}

}  // namespace

std::vector<StoredTensor> IndexTensors(const Manifest& manifest) {
  std::vector<StoredTensor> tensors;
  std::map<std::string_view, size_t> index;
  for (int f = 0; f < manifest.files_size(); ++f) {
    for (const TensorExtent& extent : manifest.files(f).extents()) {
      const auto [found, is_new] = index.emplace(extent.name(), tensors.size());
      if (is_new) {
        tensors.push_back(
            {.name = extent.name(), .shape = {extent.shape().begin(), extent.shape().end()}});
      }
      StoredTensor& tensor = tensors[found->second];
      tensor.num_elements += extent.num_elements();  // the parts make a whole
      tensor.parts.push_back({f, extent.first_element(), extent.num_elements(), extent.offset()});
    }
  }
  for (StoredTensor& tensor : tensors) {
    std::sort(
        tensor.parts.begin(), tensor.parts.end(),
        [](const StoredPart& a, const StoredPart& b) { return a.first_element < b.first_element; });
  }
  return tensors;
}

absl::StatusOr<std::unique_ptr<TensorReader>> TensorReader::Open(
    FileSystem& fs, const std::string& checkpoint_folder, const ToolOptions& options) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifestWithin(fs, checkpoint_folder, options));
  ASSIGN_OR_RETURN(const int64_t manifest_bytes,
                   fs.Size(JoinPath(checkpoint_folder, kManifestFile)));
  std::unique_ptr<TensorReader> reader(
      new TensorReader(fs, checkpoint_folder, std::move(manifest), manifest_bytes));
  RETURN_IF_ERROR(CheckpointError(reader->CheckSizes(),
                                  absl::StrCat("reading checkpoint '", checkpoint_folder, "'")));
  return reader;
}

TensorReader::TensorReader(FileSystem& fs, std::string folder, Manifest manifest,
                           int64_t manifest_bytes)
    : fs_(fs),
      folder_(std::move(folder)),
      manifest_(std::move(manifest)),
      manifest_bytes_(manifest_bytes),
      tensors_(IndexTensors(manifest_)),
      block_bytes_(LongestBlock(manifest_)),
      blocks_(fs, folder_, manifest_) {
  for (const StoredTensor& tensor : tensors_) {
    by_name_.emplace(tensor.name, &tensor);
    most_parts_ = std::max(most_parts_, static_cast<int64_t>(tensor.parts.size()));
  }
}

absl::Status TensorReader::CheckSizes() {
  for (const ShardFile& file : manifest_.files()) {
    BlockReader reader(fs_, JoinPath(folder_, file.file()), file, manifest_.block_bytes());
    RETURN_IF_ERROR(reader.CheckSize());
  }
  return absl::OkStatus();
}

const StoredTensor* TensorReader::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

absl::Status TensorReader::Visit(const StoredTensor& tensor, int64_t first_element,
                                 int64_t num_elements,
                                 const std::function<absl::Status(std::string_view bytes)>& use) {
  const int64_t end_element = first_element + num_elements;
  DEEPNET_CHECK(first_element >= 0 && num_elements >= 0 && end_element <= tensor.num_elements)
      << tensor.name;
  auto part = std::upper_bound(
      tensor.parts.begin(), tensor.parts.end(), first_element,
      [](int64_t element, const StoredPart& p) { return element < p.first_element; });
  for (--part; part != tensor.parts.end() && part->first_element < end_element; ++part) {
    const int64_t from = std::max(first_element, part->first_element);
    const int64_t to = std::min(end_element, part->first_element + part->num_elements);
    int64_t at = part->offset + (from - part->first_element) * kElementBytes;
    const int64_t end = part->offset + (to - part->first_element) * kElementBytes;
    while (at < end) {
      const int64_t block = at / manifest_.block_bytes();
      ASSIGN_OR_RETURN(const std::string_view bytes, blocks_.Get(part->file, block));
      const int64_t inside = at - block * manifest_.block_bytes();
      const int64_t taken = std::min(end - at, static_cast<int64_t>(bytes.size()) - inside);
      RETURN_IF_ERROR(use(bytes.substr(static_cast<size_t>(inside), static_cast<size_t>(taken))));
      at += taken;
    }
  }
  return absl::OkStatus();
}

absl::Status TensorReader::Read(const StoredTensor& tensor, int64_t first_element,
                                std::span<float> into) {
  char* destination = reinterpret_cast<char*>(into.data());
  return Visit(tensor, first_element, static_cast<int64_t>(into.size()),
               [&destination](std::string_view bytes) {
                 std::memcpy(destination, bytes.data(), bytes.size());
                 destination += bytes.size();
                 return absl::OkStatus();
               });
}

absl::Status ShareMemory(std::span<TensorReader* const> readers, int64_t manifest_factor,
                         int64_t other_bytes, const ToolOptions& options, const std::string& what) {
  int64_t fixed = kToolFixedBytes + other_bytes;
  int64_t one_block_each = 0;
  for (const TensorReader* reader : readers) {
    fixed += manifest_factor * reader->manifest_bytes();
    one_block_each += reader->block_bytes();
  }
  RETURN_IF_ERROR(
      CheckMemory(fixed + one_block_each, options,
                  absl::StrCat(what, ", a block of ", ByteText(one_block_each),
                               readers.size() == 1 ? "" : " in all from each", " at a time,")));
  const int64_t affordable = (options.memory_bytes - fixed) / std::max<int64_t>(one_block_each, 1);
  for (TensorReader* reader : readers) {
    const int64_t useful = 2 * reader->most_parts();
    reader->HoldBlocks(std::min(useful, affordable), /*ahead=*/affordable >= useful);
  }
  return absl::OkStatus();
}

}  // namespace deepnet
