#include "trainer/checkpoint/tools/spread_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

// No call writes more: what fits into the processor's cache is written two to four times as fast as
// complete blocks.
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int64_t kMaxVocabularyBytes = int64_t{64} << 20;
constexpr const char* kVocabularyFiles[] = {kRunTokenizerFile, kRunLanguagesFile};

bool IsLeftOver(const std::string& name) {
  if (absl::EndsWith(name, kTemporarySuffix)) return true;
  return std::find(std::begin(kVocabularyFiles), std::end(kVocabularyFiles), name) !=
         std::end(kVocabularyFiles);
}

}  // namespace

SpreadWriter::SpreadWriter(FileSystem& fs, std::string run_folder, const SpreadShape& shape,
                           Manifest manifest)
    : fs_(fs),
      run_folder_(std::move(run_folder)),
      temporary_folder_(
          absl::StrCat(JoinPath(run_folder_, CheckpointName(manifest.step())), kTemporarySuffix)),
      shape_(shape),
      manifest_(std::move(manifest)) {
  DEEPNET_CHECK(shape_.num_files > 0 && shape_.num_elements >= shape_.num_files);
  DEEPNET_CHECK(manifest_.files().empty() && manifest_.block_bytes() > 0);
  buffer_.reserve(kBufferBytes);
}

SpreadWriter::~SpreadWriter() {
  syncing_.Wait().IgnoreError();
  file_.reset();
  if (begun_ && !committed_) DeleteTree(fs_, temporary_folder_).IgnoreError();
}

absl::Status SpreadWriter::Begin() {
  begun_ = true;
  return BeginCheckpoint(fs_, run_folder_, manifest_.step());
}

int64_t SpreadWriter::FileEnd() const {
  // In two parts, so that the product stays small.
  const int64_t n = shape_.num_files, files = manifest_.files_size();
  const int64_t elements = shape_.num_elements / n * files + shape_.num_elements % n * files / n;
  return elements * kElementBytes;
}

absl::Status SpreadWriter::Append(const StoredTensor& tensor, std::string_view bytes) {
  while (!bytes.empty()) {
    if (file_ == nullptr) RETURN_IF_ERROR(OpenFile());
    const size_t room = static_cast<size_t>(FileEnd() - position_);
    const size_t taken = std::min({bytes.size(), room, kBufferBytes});
    RETURN_IF_ERROR(CheckpointError(AppendToFile(tensor, bytes.substr(0, taken)),
                                    absl::StrCat("writing '", temporary_folder_, "'")));
    bytes.remove_prefix(taken);
    if (position_ == FileEnd()) RETURN_IF_ERROR(FinishFile());
  }
  return absl::OkStatus();
}

absl::Status SpreadWriter::OpenFile() {
  DEEPNET_CHECK(manifest_.files_size() < shape_.num_files) << "more elements than announced";
  ShardFile& description = *manifest_.add_files();
  description.set_file(TensorFileName(manifest_.files_size() - 1, shape_.num_files));
  absl::StatusOr<std::unique_ptr<AppendFile>> file =
      fs_.OpenForAppend(JoinPath(temporary_folder_, description.file()));
  if (!file.ok()) return CheckpointError(file.status(), "writing a checkpoint");
  file_ = *std::move(file);
  return absl::OkStatus();
}

absl::Status SpreadWriter::AppendToFile(const StoredTensor& tensor, std::string_view bytes) {
  ShardFile& file = *manifest_.mutable_files(manifest_.files_size() - 1);
  if (extent_bytes_ == 0) {
    TensorExtent& extent = *file.add_extents();
    extent.set_name(tensor.name);
    for (const int64_t size : tensor.shape) extent.add_shape(size);
    extent.set_first_element(tensor_bytes_ / kElementBytes);
    extent.set_offset(file.bytes());
  }
  const int64_t added = static_cast<int64_t>(bytes.size());
  file.set_bytes(file.bytes() + added);
  position_ += added;
  extent_bytes_ += added;
  tensor_bytes_ += added;
  if (tensor_bytes_ == tensor.num_elements * kElementBytes) {
    CloseExtent();
    tensor_bytes_ = 0;
  }
  if (buffer_.size() + bytes.size() > kBufferBytes) RETURN_IF_ERROR(Flush());
  if (bytes.size() >= kBufferBytes) return Write(bytes);
  buffer_.append(bytes);
  return absl::OkStatus();
}

void SpreadWriter::CloseExtent() {
  if (extent_bytes_ == 0) return;
  ShardFile& file = *manifest_.mutable_files(manifest_.files_size() - 1);
  TensorExtent& extent = *file.mutable_extents(file.extents_size() - 1);
  extent.set_num_elements(extent_bytes_ / kElementBytes);
  extent_bytes_ = 0;
}

absl::Status SpreadWriter::Flush() {
  RETURN_IF_ERROR(Write(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status SpreadWriter::Write(std::string_view bytes) {
  RETURN_IF_ERROR(file_->Append(bytes));
  ShardFile& file = *manifest_.mutable_files(manifest_.files_size() - 1);
  while (!bytes.empty()) {
    const size_t room = static_cast<size_t>(manifest_.block_bytes() - block_filled_);
    const size_t taken = std::min(bytes.size(), room);
    block_crc_ = Crc32c(bytes.substr(0, taken), block_crc_);
    block_filled_ += static_cast<int64_t>(taken);
    bytes.remove_prefix(taken);
    if (block_filled_ < manifest_.block_bytes()) break;
    file.add_block_crc32c(block_crc_);
    block_crc_ = 0;
    block_filled_ = 0;
  }
  return absl::OkStatus();
}

absl::Status SpreadWriter::FinishFile() {
  CloseExtent();
  const absl::Status status = Flush();
  if (block_filled_ > 0) {
    manifest_.mutable_files(manifest_.files_size() - 1)->add_block_crc32c(block_crc_);
  }
  block_crc_ = 0;
  block_filled_ = 0;
  const std::shared_ptr<AppendFile> finished = std::move(file_);
  RETURN_IF_ERROR(CheckpointError(status, absl::StrCat("writing '", temporary_folder_, "'")));
  RETURN_IF_ERROR(AwaitSync());
  syncing_.Start([finished]() -> absl::Status {
    RETURN_IF_ERROR(finished->Sync());
    return finished->Close();
  });
  return absl::OkStatus();
}

absl::Status SpreadWriter::AwaitSync() {
  return CheckpointError(syncing_.Wait(), absl::StrCat("writing '", temporary_folder_, "'"));
}

absl::Status SpreadWriter::Commit() {
  DEEPNET_CHECK(position_ == shape_.num_elements * kElementBytes)
      << "fewer elements than announced";
  RETURN_IF_ERROR(AwaitSync());
  RETURN_IF_ERROR(CommitCheckpoint(fs_, run_folder_, std::move(manifest_)));
  committed_ = true;
  return absl::OkStatus();
}

absl::Status CheckOutputFolder(FileSystem& fs, const std::string& run_folder) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(run_folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return WithExitCode(names.status(), ExitCode::kBadConfig);
  for (const std::string& name : *names) {
    if (IsLeftOver(name)) continue;
    return WithExitCode(
        absl::AlreadyExistsError(absl::StrCat("'", run_folder, "' is not empty, it holds '", name,
                                              "'; name a new folder")),
        ExitCode::kBadConfig);
  }
  return absl::OkStatus();
}

absl::Status CopyVocabulary(FileSystem& fs, const std::string& from, const std::string& to) {
  const auto copy = [&]() -> absl::Status {
    RETURN_IF_ERROR(fs.MakeFolder(to));
    for (const char* name : kVocabularyFiles) {
      ASSIGN_OR_RETURN(const bool exists, fs.Exists(JoinPath(from, name)));
      if (!exists) continue;
      ASSIGN_OR_RETURN(const std::string contents,
                       ReadWholeFile(fs, JoinPath(from, name), kMaxVocabularyBytes));
      RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(to, name), contents));
    }
    return absl::OkStatus();
  };
  return CheckpointError(copy(), absl::StrCat("copying the vocabulary to '", to, "'"));
}

}  // namespace deepnet
