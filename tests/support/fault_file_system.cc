#include "tests/support/fault_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "tests/support/memory_file_system.h"

namespace deepnet::testing {

class FaultAppendFile final : public AppendFile {
 public:
  FaultAppendFile(FaultFileSystem& fs, std::string path, std::unique_ptr<AppendFile> inner)
      : fs_(fs), path_(std::move(path)), inner_(std::move(inner)) {}

  absl::Status Append(std::string_view bytes) override {
    if (const absl::Status failed = fs_.Count("append", path_); !failed.ok()) {
      inner_->Append(bytes.substr(0, fs_.Reserve(bytes.size() / 2))).IgnoreError();
      return failed;
    }
    const size_t fits = fs_.Reserve(bytes.size());
    RETURN_IF_ERROR(inner_->Append(bytes.substr(0, fits)));
    if (fits == bytes.size()) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("no space for '", path_, "'"));
  }
  absl::Status Sync() override {
    RETURN_IF_ERROR(fs_.Count("sync", path_));
    return inner_->Sync();
  }
  absl::Status Close() override {
    const absl::Status failed = fs_.Count("close", path_);
    absl::Status closed = inner_->Close();
    return failed.ok() ? closed : failed;
  }

 private:
  FaultFileSystem& fs_;
  const std::string path_;
  const std::unique_ptr<AppendFile> inner_;
};

absl::Status FaultFileSystem::Count(const char* kind, const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::string change = absl::StrCat(kind, " ", path);
  if (const size_t name = change.rfind('/') + 1; IsUnusedName(change.substr(name))) {
    change.replace(name, change.npos, "unused");
  }
  if (*kind != '\0' && (changes_.empty() || changes_.back() != change)) changes_.push_back(change);
  if (change == failing_change_) return failure_;
  return calls_++ == failing_call_ ? failure_ : absl::OkStatus();
}

size_t FaultFileSystem::Reserve(size_t wanted) {
  const std::lock_guard lock(mutex_);
  const size_t fits = std::min(wanted, static_cast<size_t>(room_));
  room_ -= static_cast<int64_t>(fits);
  return fits;
}

absl::StatusOr<std::unique_ptr<AppendFile>> FaultFileSystem::OpenForAppend(
    const std::string& path) {
  RETURN_IF_ERROR(Count("open", path));
  ASSIGN_OR_RETURN(auto file, inner_.OpenForAppend(path));
  return std::make_unique<FaultAppendFile>(*this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<AppendFile>> FaultFileSystem::CreateNew(const std::string& path) {
  RETURN_IF_ERROR(Count("create", path));
  ASSIGN_OR_RETURN(auto file, inner_.CreateNew(path));
  return std::make_unique<FaultAppendFile>(*this, path, std::move(file));
}

absl::StatusOr<int64_t> FaultFileSystem::ReadAt(const std::string& path, int64_t offset,
                                                std::span<char> buffer) {
  RETURN_IF_ERROR(Count());
  const absl::StatusOr<int64_t> count = inner_.ReadAt(path, offset, buffer);
  const std::lock_guard lock(mutex_);
  read_bytes_ += count.value_or(0);
  return count;
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::string name = from.substr(from.rfind('/') + 1);
  const std::string named = IsUnusedName(name) ? JoinPath(ParentFolder(from), "unused") : from;
  RETURN_IF_ERROR(Count("rename", absl::StrCat(named, " ", to)));
  return inner_.Rename(from, to);
}

absl::Status FaultFileSystem::Delete(const std::string& path) {
  RETURN_IF_ERROR(Count("delete", path));
  const absl::StatusOr<int64_t> bytes = inner_.Size(path);
  const bool is_folder = inner_.List(path).ok();
  RETURN_IF_ERROR(inner_.Delete(path));
  const std::lock_guard lock(mutex_);
  const bool limited = room_ < std::numeric_limits<int64_t>::max();
  if (bytes.ok() && !is_folder && limited) room_ += *bytes;
  return absl::OkStatus();
}

absl::Status FaultFileSystem::DeleteTree(const std::string& path) {
  return DeleteTreeByCalls(*this, path);
}

absl::Status FaultFileSystem::MakeFolder(const std::string& path) {
  RETURN_IF_ERROR(Count("make", path));
  return inner_.MakeFolder(path);
}

absl::Status FaultFileSystem::SyncFolder(const std::string& folder) {
  RETURN_IF_ERROR(Count("sync", folder));
  return inner_.SyncFolder(folder);
}

void FaultFileSystem::FailCall(int64_t number, absl::Status status) {
  const std::lock_guard lock(mutex_);
  failing_call_ = number;
  failure_ = std::move(status);
}

void FaultFileSystem::SetRoom(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  room_ = bytes;
}

int64_t FaultFileSystem::num_calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::vector<std::string> FaultFileSystem::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

void FaultFileSystem::ClearChanges() {
  const std::lock_guard lock(mutex_);
  changes_.clear();
}

void FaultFileSystem::FailChange(std::string change, absl::Status status) {
  const std::lock_guard lock(mutex_);
  failing_change_ = std::move(change);
  failure_ = std::move(status);
}

int64_t FaultFileSystem::read_bytes() const {
  const std::lock_guard lock(mutex_);
  return read_bytes_;
}

}  // namespace deepnet::testing
