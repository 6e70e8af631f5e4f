#include "trainer/checkpoint/tools/spread_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxVocabularyBytes = int64_t{64} << 20;
constexpr const char* kVocabularyFiles[] = {kRunTokenizerFile, kRunLanguagesFile};

}  // namespace

SpreadWriter::SpreadWriter(FileSystem& fs, std::string run_folder, const SpreadShape& shape,
                           Manifest manifest)
    : fs_(fs),
      run_folder_(std::move(run_folder)),
      folder_(JoinPath(run_folder_, CheckpointName(manifest.step()))),
      temporary_folder_(absl::StrCat(folder_, kUnfinishedEnd)),
      shape_(shape),
      manifest_(std::move(manifest)),
      end_file_(shape.num_files) {
  DEEPNET_CHECK(shape_.num_files > 0 && shape_.num_elements >= shape_.num_files);
  DEEPNET_CHECK(manifest_.files().empty() && manifest_.block_bytes() > 0);
}

SpreadWriter::~SpreadWriter() {
  syncing_.Wait().IgnoreError();
  file_.reset();
  if (owns_folder_) fs_.DeleteTree(temporary_folder_).IgnoreError();
}

int64_t FirstElementOf(const SpreadShape& shape, int file) {
  // In two parts, so that the product stays small.
  const int64_t n = shape.num_files;
  return shape.num_elements / n * file + shape.num_elements % n * file / n;
}

int64_t SpreadWriter::FileEnd() const {
  return FirstElementOf(shape_, first_file_ + manifest_.files_size()) * kElementBytes;
}

absl::Status SpreadWriter::Begin() {
  owns_folder_ = true;
  return BeginCheckpoint(fs_, run_folder_, manifest_.step());
}

void SpreadWriter::Share(int first, int end, int64_t first_element) {
  DEEPNET_CHECK(manifest_.files().empty());
  first_file_ = first;
  end_file_ = end;
  position_ = FirstElementOf(shape_, first) * kElementBytes;
  tensor_bytes_ = first_element * kElementBytes;
}

absl::Status SpreadWriter::Append(const StoredTensor& tensor, std::string_view bytes) {
  while (!bytes.empty()) {
    if (file_ == nullptr) RETURN_IF_ERROR(OpenFile());
    const std::string_view piece = bytes.substr(0, static_cast<size_t>(FileEnd() - position_));
    bytes.remove_prefix(piece.size());
    ShardFile& file = *manifest_.mutable_files(manifest_.files_size() - 1);
    if (tensor_bytes_ == 0 || file.extents().empty()) {
      TensorExtent& extent = *file.add_extents();
      extent.set_name(tensor.name);
      extent.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
      extent.set_first_element(tensor_bytes_ / kElementBytes);
      extent.set_offset(file.bytes());
    }
    position_ += static_cast<int64_t>(piece.size());
    tensor_bytes_ += static_cast<int64_t>(piece.size());
    TensorExtent& extent = *file.mutable_extents(file.extents_size() - 1);
    extent.set_num_elements(tensor_bytes_ / kElementBytes - extent.first_element());
    if (tensor_bytes_ == tensor.num_elements * kElementBytes) tensor_bytes_ = 0;
    RETURN_IF_ERROR(WithContext(blocks_->Append(piece)));
    if (position_ == FileEnd()) RETURN_IF_ERROR(FinishFile());
  }
  return absl::OkStatus();
}

absl::Status SpreadWriter::OpenFile() {
  const int index = first_file_ + manifest_.files_size();
  DEEPNET_CHECK(index < end_file_) << "more elements than announced";
  ShardFile& description = *manifest_.add_files();
  description.set_file(TensorFileName(index, shape_.num_files));
  ASSIGN_OR_RETURN(file_,
                   CheckpointError(fs_.CreateNew(JoinPath(temporary_folder_, description.file())),
                                   "writing a checkpoint"));
  blocks_.emplace(*file_, manifest_.block_bytes(), description);
  return absl::OkStatus();
}

absl::Status SpreadWriter::FinishFile() {
  const absl::Status status = blocks_->Finish();
  const std::shared_ptr<AppendFile> finished = std::move(file_);
  RETURN_IF_ERROR(WithContext(status));
  RETURN_IF_ERROR(WithContext(syncing_.Wait()));
  syncing_.Start([finished]() -> absl::Status {
    RETURN_IF_ERROR(finished->Sync());
    return finished->Close();
  });
  return absl::OkStatus();
}

absl::Status SpreadWriter::WithContext(const absl::Status& status) const {
  return CheckpointError(status, absl::StrCat("writing '", temporary_folder_, "'"));
}

absl::StatusOr<Manifest> SpreadWriter::Finish() {
  DEEPNET_CHECK(position_ == FirstElementOf(shape_, end_file_) * kElementBytes)
      << "fewer elements than announced";
  RETURN_IF_ERROR(WithContext(syncing_.Wait()));
  Manifest files;
  *files.mutable_files() = manifest_.files();
  return files;
}

absl::StatusOr<std::string> SpreadWriter::Commit(const Manifest& files) {
  *manifest_.mutable_files() = files.files();
  RETURN_IF_ERROR(CommitCheckpoint(fs_, run_folder_, std::move(manifest_)));
  owns_folder_ = false;
  return folder_;
}

absl::Status CheckOutputFolder(FileSystem& fs, const std::string& folder, bool may_be_left_over) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return WithExitCode(names.status(), ExitCode::kBadConfig);
  for (const std::string& name : *names) {
    const bool of_mount_point = name == kUnfinishedEnd || name == "lost+found";
    const bool is_left_over =
        absl::EndsWith(name, kUnfinishedEnd) || std::ranges::count(kVocabularyFiles, name) > 0;
    if (of_mount_point || (may_be_left_over && is_left_over)) continue;
    return WithExitCode(
        absl::AlreadyExistsError(
            absl::StrCat("'", folder, "' is not empty, it holds '", name, "'; name a new folder")),
        ExitCode::kBadConfig);
  }
  return absl::OkStatus();
}

absl::Status CopyVocabulary(FileSystem& fs, const std::string& from, const std::string& to) {
  const auto copy = [&]() -> absl::Status {
    for (const char* name : kVocabularyFiles) {
      ASSIGN_OR_RETURN(const bool exists, Exists(fs, JoinPath(from, name)));
      if (!exists) continue;
      ASSIGN_OR_RETURN(const std::string contents,
                       ReadWholeFile(fs, JoinPath(from, name), kMaxVocabularyBytes));
      RETURN_IF_ERROR(WriteVocabularyFile(fs, to, name, contents));
    }
    return absl::OkStatus();
  };
  return CheckpointError(copy(), absl::StrCat("copying the vocabulary to '", to, "'"));
}

}  // namespace deepnet
