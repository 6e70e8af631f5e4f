#include "trainer/checkpoint/tools/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {

absl::Status CheckMemory(int64_t needed_bytes, const ToolOptions& options,
                         const std::string& what) {
  if (needed_bytes <= options.memory_bytes) return absl::OkStatus();
  return DoesNotFitError(what, " takes ", ByteText(needed_bytes), " of memory; allowed are ",
                         ByteText(options.memory_bytes));
}

absl::StatusOr<Manifest> ReadManifestWithin(FileSystem& fs, const std::string& checkpoint_folder,
                                            const ToolOptions& options) {
  const absl::StatusOr<int64_t> bytes = fs.Size(JoinPath(checkpoint_folder, kManifestFile));
  // Without a manifest there is a better error below.
  const int64_t needed = kReadManifestFactor * std::min(bytes.value_or(0), kMaxManifestBytes);
  RETURN_IF_ERROR(CheckMemory(kToolFixedBytes + needed, options,
                              absl::StrCat("the manifest of '", checkpoint_folder, "'")));
  return ReadManifest(fs, checkpoint_folder);
}

int64_t TensorBytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const ShardFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

void BlockCache::Hold(int64_t num_blocks, bool ahead) {
  DEEPNET_CHECK(num_blocks >= 1 && held_.empty());
  most_ = static_cast<size_t>(num_blocks);
  ahead_ = ahead && num_blocks >= 2;
}

absl::StatusOr<std::string_view> BlockCache::Get(int file, int64_t block) {
  Held* held = Find(file, block);
  if (held != nullptr && held == coming_) {
    RETURN_IF_ERROR(FinishComing());
  } else if (held == nullptr) {
    held = &MakeRoom(file, block, nullptr);
    RETURN_IF_ERROR(Read(file, block, *held));
    held->file = file;
    held->block = block;
  }
  held->last_use = ++uses_;
  if (ahead_) ReadAhead(*held);
  return std::string_view(held->bytes.data(), held->bytes.size());
}

BlockCache::Held* BlockCache::Find(int file, int64_t block) {
  const auto found = std::ranges::find_if(
      held_, [&](const auto& held) { return held->file == file && held->block == block; });
  return found == held_.end() ? nullptr : found->get();
}

// Files are read from beginning to end: blocks before the one asked for are evicted first, then the
// least recently used.
BlockCache::Held& BlockCache::MakeRoom(int file, int64_t block, const Held* in_use) {
  if (held_.size() < most_) return *held_.emplace_back(std::make_unique<Held>());
  const auto is_used = [&](const Held* held) { return held == in_use || held == coming_; };
  const auto rank = [&](const std::unique_ptr<Held>& held) {
    const bool is_behind = held->file == -1 || (held->file == file && held->block < block);
    return std::make_tuple(is_used(held.get()), !is_behind, held->last_use);
  };
  Held& oldest = **std::ranges::min_element(held_, {}, rank);
  DEEPNET_CHECK(!is_used(&oldest));
  oldest.file = -1;
  return oldest;
}

// Leaves `held` without file and block: while another thread reads it, nobody may use it.
absl::Status BlockCache::Read(int file, int64_t block, Held& held) {
  const ShardFile& description = manifest_.files(file);
  BlockReader reader(fs_, folder_, description, manifest_.block_bytes());
  held.bytes.resize(static_cast<size_t>(reader.End(block) - reader.Begin(block)));
  return CheckpointError(reader.Read(block, held.bytes),
                         absl::StrCat("reading checkpoint '", folder_, "'"));
}

absl::Status BlockCache::FinishComing() {
  absl::Status status = task_.Wait();
  if (!status.ok()) coming_->file = -1;
  coming_ = nullptr;
  return status;
}

// Begins to read the block after the one in use, or the first of the next file. An error matters
// only when that block is asked for.
void BlockCache::ReadAhead(const Held& in_use) {
  if (coming_ != nullptr) {
    if (!task_.Done()) return;
    FinishComing().IgnoreError();
  }
  int file = in_use.file;
  int64_t block = in_use.block + 1;
  if (block == manifest_.files(file).block_crc32c_size()) {
    ++file;
    block = 0;
  }
  if (file == manifest_.files_size() || Find(file, block) != nullptr) return;
  if (manifest_.files(file).block_crc32c().empty()) return;
  Held& next = MakeRoom(file, block, &in_use);
  next.file = file;
  next.block = block;
  next.last_use = uses_;
  coming_ = &next;
  task_.Start([this, file, block, &next] { return Read(file, block, next); });
}

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
      tensor.num_elements += extent.num_elements();  // the parts cover the tensor once
      tensor.parts.push_back({f, extent.first_element(), extent.num_elements(), extent.offset()});
    }
  }
  for (StoredTensor& tensor : tensors) {
    std::ranges::sort(tensor.parts, {}, &StoredPart::first_element);
  }
  return tensors;
}

absl::StatusOr<std::unique_ptr<TensorReader>> TensorReader::Open(
    FileSystem& fs, const std::string& checkpoint_folder, const ToolOptions& options) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifestWithin(fs, checkpoint_folder, options));
  ASSIGN_OR_RETURN(const int64_t manifest_bytes,
                   fs.Size(JoinPath(checkpoint_folder, kManifestFile)));
  for (const ShardFile& file : manifest.files()) {
    BlockReader reader(fs, checkpoint_folder, file, manifest.block_bytes());
    RETURN_IF_ERROR(CheckpointError(reader.CheckSize(),
                                    absl::StrCat("reading checkpoint '", checkpoint_folder, "'")));
  }
  return std::unique_ptr<TensorReader>(
      new TensorReader(fs, checkpoint_folder, std::move(manifest), manifest_bytes));
}

TensorReader::TensorReader(FileSystem& fs, std::string folder, Manifest manifest,
                           int64_t manifest_bytes)
    : folder_(std::move(folder)),
      manifest_(std::move(manifest)),
      manifest_bytes_(manifest_bytes),
      tensors_(IndexTensors(manifest_)),
      blocks_(fs, folder_, manifest_) {
  for (const ShardFile& file : manifest_.files()) {
    block_bytes_ = std::max(block_bytes_, std::min(file.bytes(), manifest_.block_bytes()));
  }
  for (const StoredTensor& tensor : tensors_) {
    by_name_.emplace(tensor.name, &tensor);
    most_parts_ = std::max(most_parts_, static_cast<int64_t>(tensor.parts.size()));
  }
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
  auto part = std::ranges::upper_bound(tensor.parts, first_element, {}, &StoredPart::first_element);
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
