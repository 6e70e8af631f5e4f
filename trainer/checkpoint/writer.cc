// A checkpoint is written under a temporary name, made durable file by file, then renamed: the one
// moment at which it begins to exist. The manifest comes after the tensors, so that even a folder
// copied half-way by other means is recognised.
//
//   .tmp folder -> tensors, fsync -> manifest, fsync -> fsync folder -> rename -> fsync run ->
//   `latest`
#include <bit>
#include <cstddef>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

// Gathers bytes into blocks, and writes each with one call, noting its checksum in `description`.
class BlockWriter {
 public:
  BlockWriter(AppendFile& file, int64_t block_bytes, ShardFile& description)
      : file_(file), block_bytes_(static_cast<size_t>(block_bytes)), description_(description) {}

  absl::Status Append(std::string_view bytes) {
    description_.set_bytes(description_.bytes() + static_cast<int64_t>(bytes.size()));
    while (!bytes.empty()) {
      const size_t taken = std::min(bytes.size(), block_bytes_ - block_.size());
      block_.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      if (block_.size() == block_bytes_) RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  // Writes the last block, which may be shorter.
  absl::Status Finish() { return block_.empty() ? absl::OkStatus() : Flush(); }

 private:
  absl::Status Flush() {
    description_.add_block_crc32c(Crc32c(block_));
    RETURN_IF_ERROR(file_.Append(block_));
    block_.clear();
    return absl::OkStatus();
  }

  AppendFile& file_;
  const size_t block_bytes_;
  ShardFile& description_;
  std::string block_;
};

void CheckTensors(std::span<const NamedTensor> tensors) {
  std::set<std::pair<std::string_view, int64_t>> seen;
  for (const NamedTensor& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    const int64_t end = tensor.first_element + static_cast<int64_t>(tensor.data.size());
    DEEPNET_CHECK(tensor.first_element >= 0 && !tensor.data.empty() && end <= elements)
        << tensor.name << ": elements " << tensor.first_element << " to " << end << " of "
        << elements;
    DEEPNET_CHECK(seen.emplace(tensor.name, tensor.first_element).second)
        << tensor.name << " is given twice";
  }
}

TensorExtent ExtentOf(const NamedTensor& tensor, int64_t offset) {
  TensorExtent extent;
  extent.set_name(tensor.name);
  for (const int64_t size : tensor.shape) extent.add_shape(size);
  extent.set_first_element(tensor.first_element);
  extent.set_num_elements(static_cast<int64_t>(tensor.data.size()));
  extent.set_offset(offset);
  return extent;
}

absl::StatusOr<ShardFile> WriteTensors(FileSystem& fs, const std::string& folder,
                                       const std::string& name, int64_t block_bytes,
                                       std::span<const NamedTensor> tensors) {
  ShardFile description;
  description.set_file(name);
  RETURN_IF_ERROR(fs.MakeFolder(folder));  // each writer: none has to wait for another
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, fs.CreateNew(JoinPath(folder, name)));
  BlockWriter writer(*file, block_bytes, description);
  for (const NamedTensor& tensor : tensors) {
    *description.add_extents() = ExtentOf(tensor, description.bytes());
    RETURN_IF_ERROR(writer.Append(
        {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size() * kElementBytes}));
  }
  RETURN_IF_ERROR(writer.Finish());
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  return description;
}

absl::Status WriteManifest(FileSystem& fs, const std::string& folder, const Manifest& manifest) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file,
                   fs.OpenForAppend(JoinPath(folder, kManifestFile)));
  RETURN_IF_ERROR(file->Append(SerializeManifest(manifest)));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// What saves and deletions that were cut short have left.
absl::Status RemoveTemporaries(FileSystem& fs, const std::string& run_folder) {
  RETURN_IF_ERROR(fs.MakeFolder(run_folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "step-") && absl::EndsWith(name, kTemporarySuffix)) {
      RETURN_IF_ERROR(DeleteTree(fs, JoinPath(run_folder, name)));
    }
  }
  return absl::OkStatus();
}

// Gives the finished folder `temporary` its name. A folder cannot replace a full one in one step,
// so an earlier checkpoint of the same step first steps aside under a name that readers know as
// well.
absl::Status Publish(FileSystem& fs, const std::string& run_folder, const std::string& temporary,
                     const std::string& folder) {
  const std::string replaced = absl::StrCat(folder, kReplacedSuffix);
  ASSIGN_OR_RETURN(const bool exists, fs.Exists(folder));
  ASSIGN_OR_RETURN(bool aside, fs.Exists(replaced));
  if (exists) {
    if (aside) RETURN_IF_ERROR(DeleteTree(fs, replaced));
    RETURN_IF_ERROR(fs.SyncFolder(run_folder));
    RETURN_IF_ERROR(fs.Rename(folder, replaced));
    RETURN_IF_ERROR(fs.SyncFolder(run_folder));
    aside = true;
  }
  RETURN_IF_ERROR(fs.Rename(temporary, folder));
  RETURN_IF_ERROR(fs.SyncFolder(run_folder));
  return aside ? DeleteTree(fs, replaced) : absl::OkStatus();
}

std::string TemporaryFolder(const std::string& run_folder, int64_t step) {
  return absl::StrCat(JoinPath(run_folder, CheckpointName(step)), kTemporarySuffix);
}

absl::Status Commit(FileSystem& fs, const std::string& run_folder, const Manifest& manifest) {
  const std::string temporary = TemporaryFolder(run_folder, manifest.step());
  RETURN_IF_ERROR(ParseManifest(SerializeManifest(manifest)).status());
  RETURN_IF_ERROR(WriteManifest(fs, temporary, manifest));
  RETURN_IF_ERROR(fs.SyncFolder(temporary));
  RETURN_IF_ERROR(
      Publish(fs, run_folder, temporary, JoinPath(run_folder, CheckpointName(manifest.step()))));
  return SetPointer(fs, run_folder, kLatestPointer, manifest.step());
}

std::string Context(const std::string& run_folder, int64_t step) {
  return absl::StrCat("saving the checkpoint of step ", step, " in '", run_folder, "'");
}

int64_t BlockBytes(int64_t asked) { return asked == 0 ? kDefaultBlockBytes : asked; }

}  // namespace

absl::Status RemoveUnfinished(FileSystem& fs, const std::string& run_folder) {
  return CheckpointError(RemoveTemporaries(fs, run_folder),
                         absl::StrCat("what interrupted saves left in '", run_folder, "'"));
}

absl::Status BeginCheckpoint(FileSystem& fs, const std::string& run_folder, int64_t step) {
  DEEPNET_CHECK(step >= 0);
  RETURN_IF_ERROR(RemoveUnfinished(fs, run_folder));
  return CheckpointError(fs.MakeFolder(TemporaryFolder(run_folder, step)),
                         Context(run_folder, step));
}

absl::StatusOr<ShardFile> WriteShard(FileSystem& fs, const std::string& run_folder, int64_t step,
                                     int writer, int num_writers, int64_t block_bytes,
                                     std::span<const NamedTensor> tensors) {
  DEEPNET_CHECK(step >= 0 && block_bytes >= 0 && block_bytes <= kMaxBlockBytes);
  CheckTensors(tensors);
  absl::StatusOr<ShardFile> file =
      WriteTensors(fs, TemporaryFolder(run_folder, step), TensorFileName(writer, num_writers),
                   BlockBytes(block_bytes), tensors);
  if (!file.ok()) return CheckpointError(file.status(), Context(run_folder, step));
  return file;
}

absl::Status CommitCheckpoint(FileSystem& fs, const std::string& run_folder, Manifest manifest) {
  manifest.set_format_version(kFormatVersion);
  manifest.set_block_bytes(BlockBytes(manifest.block_bytes()));
  return CheckpointError(Commit(fs, run_folder, manifest), Context(run_folder, manifest.step()));
}

absl::Status SaveCheckpoint(FileSystem& fs, const std::string& run_folder, Manifest manifest,
                            std::span<const NamedTensor> tensors) {
  DEEPNET_CHECK(manifest.files().empty());
  RETURN_IF_ERROR(BeginCheckpoint(fs, run_folder, manifest.step()));
  ASSIGN_OR_RETURN(*manifest.add_files(), WriteShard(fs, run_folder, manifest.step(), 0, 1,
                                                     manifest.block_bytes(), tensors));
  return CommitCheckpoint(fs, run_folder, std::move(manifest));
}

}  // namespace deepnet
