// A tree of nodes as processes see it. Beside it, every file remembers how many of its bytes are
// durable, and every folder its durable names and the changes since: a crash replays none, some or
// all of them.
#include "tests/support/memory_file_system.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet::testing {

// `node` leaves the name `from`, if that is not empty, and gets the name `to`, if that is not
// empty.
struct MemoryFileSystem::Change {
  std::string from;
  std::string to;
  std::shared_ptr<Node> node;
};

struct MemoryFileSystem::Node {
  bool is_folder = false;
  std::string link_target;                             // empty: no link
  std::string bytes;                                   // of a file
  size_t durable_bytes = 0;                            // of them
  std::map<std::string, std::shared_ptr<Node>> names;  // of a folder
  std::map<std::string, std::shared_ptr<Node>> durable_names;
  std::vector<Change> changes;  // from durable_names to names
};

namespace {

absl::Status NotFound(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("'", path, "' does not exist"));
}

std::vector<std::string> Parts(const std::string& path) {
  return absl::StrSplit(path, '/', absl::SkipEmpty());
}

// The last part of `path`.
std::string BaseName(const std::string& path) { return Parts(path).back(); }

}  // namespace

class MemoryAppendFile final : public AppendFile {
 public:
  MemoryAppendFile(MemoryFileSystem& fs, std::shared_ptr<MemoryFileSystem::Node> node)
      : fs_(fs), node_(std::move(node)) {}

  absl::Status Append(std::string_view bytes) override {
    const std::lock_guard lock(fs_.mutex_);
    const absl::Status stopped = fs_.CountCall();
    node_->bytes.append(stopped.ok() ? bytes : bytes.substr(0, bytes.size() / 2));
    return stopped;
  }

  absl::Status Sync() override {
    const std::lock_guard lock(fs_.mutex_);
    RETURN_IF_ERROR(fs_.CountCall());
    node_->durable_bytes = node_->bytes.size();
    return absl::OkStatus();
  }

  absl::Status Close() override {
    const std::lock_guard lock(fs_.mutex_);
    return fs_.CountCall();
  }

 private:
  MemoryFileSystem& fs_;
  const std::shared_ptr<MemoryFileSystem::Node> node_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) { root_->is_folder = true; }

MemoryFileSystem::~MemoryFileSystem() = default;

std::shared_ptr<MemoryFileSystem::Node> MemoryFileSystem::Find(const std::string& path,
                                                               bool follow) const {
  std::shared_ptr<Node> node = root_;
  const std::vector<std::string> parts = Parts(path);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == ".") continue;
    const auto next = node->names.find(parts[i]);
    if (next == node->names.end()) return nullptr;
    node = next->second;
    const bool is_last = i + 1 == parts.size();
    if (!node->link_target.empty() && (follow || !is_last)) node = Find(node->link_target);
    if (node == nullptr) return nullptr;
  }
  return node;
}

void MemoryFileSystem::MakeLink(const std::string& target, const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto link = std::make_shared<Node>();
  link->link_target = target;
  const std::shared_ptr<Node> folder = Find(ParentFolder(path));
  folder->names[BaseName(path)] = folder->durable_names[BaseName(path)] = link;
}

absl::StatusOr<std::shared_ptr<MemoryFileSystem::Node>> MemoryFileSystem::FindFolder(
    const std::string& path) const {
  std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return NotFound(path);
  if (!node->is_folder) {
    return absl::FailedPreconditionError(absl::StrCat("'", path, "' is no folder"));
  }
  return node;
}

absl::Status MemoryFileSystem::CountCall() {
  if (calls_left_.has_value()) {
    if (*calls_left_ == 0) return absl::UnavailableError("the world has stopped");
    --*calls_left_;
  }
  ++num_changing_calls_;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AppendFile>> MemoryFileSystem::OpenForAppend(
    const std::string& path) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CountCall());
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, FindFolder(ParentFolder(path)));
  std::shared_ptr<Node>& node = folder->names[BaseName(path)];
  if (node == nullptr) {
    node = std::make_shared<Node>();
    folder->changes.push_back({"", BaseName(path), node});
  } else if (node->is_folder || !node->link_target.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' is a ", node->is_folder ? "folder" : "symbolic link"));
  }
  return std::make_unique<MemoryAppendFile>(*this, node);
}

absl::StatusOr<std::unique_ptr<AppendFile>> MemoryFileSystem::CreateNew(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (Find(path, /*follow=*/false) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("'", path, "' exists already"));
  }
  return OpenForAppend(path);
}

absl::StatusOr<int64_t> MemoryFileSystem::ReadAt(const std::string& path, int64_t offset,
                                                 std::span<char> buffer) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return NotFound(path);
  if (node->is_folder) {
    return absl::FailedPreconditionError(absl::StrCat("'", path, "' is a folder"));
  }
  const size_t start = std::min(static_cast<size_t>(offset), node->bytes.size());
  const size_t bytes = std::min(buffer.size(), node->bytes.size() - start);
  std::memcpy(buffer.data(), node->bytes.data() + start, bytes);
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<int64_t> MemoryFileSystem::Size(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return NotFound(path);
  return static_cast<int64_t>(node->bytes.size());
}

absl::StatusOr<FileType> MemoryFileSystem::TypeOf(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Node> node = Find(path, /*follow=*/false);
  if (node == nullptr) return FileType::kNone;
  if (!node->link_target.empty()) return FileType::kLink;
  return node->is_folder ? FileType::kFolder : FileType::kFile;
}

absl::StatusOr<std::vector<std::string>> MemoryFileSystem::List(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> node, FindFolder(folder));
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

absl::Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CountCall());
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> source, FindFolder(ParentFolder(from)));
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> target, FindFolder(ParentFolder(to)));
  const std::string from_name = BaseName(from), to_name = BaseName(to);
  const auto found = source->names.find(from_name);
  if (found == source->names.end()) return NotFound(from);
  const std::shared_ptr<Node> node = found->second;
  const auto replaced = target->names.find(to_name);
  if (replaced != target->names.end() &&
      (replaced->second->is_folder != node->is_folder || !replaced->second->names.empty())) {
    return absl::FailedPreconditionError(absl::StrCat("'", to, "' is in the way"));
  }
  source->names.erase(from_name);
  target->names[to_name] = node;
  if (source == target) {
    source->changes.push_back({from_name, to_name, node});
  } else {
    source->changes.push_back({from_name, "", node});
    target->changes.push_back({"", to_name, node});
  }
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Delete(const std::string& path) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CountCall());
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> folder, FindFolder(ParentFolder(path)));
  const auto found = folder->names.find(BaseName(path));
  if (found == folder->names.end()) return NotFound(path);
  if (!found->second->names.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("'", path, "' is not empty"));
  }
  folder->changes.push_back({found->first, "", found->second});
  folder->names.erase(found);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::MakeFolder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Node> node = root_;
  for (const std::string& part : Parts(path)) {
    if (part == ".") continue;
    std::shared_ptr<Node>& child = node->names[part];
    if (child == nullptr) {
      if (const absl::Status stopped = CountCall(); !stopped.ok()) {
        node->names.erase(part);
        return stopped;
      }
      child = std::make_shared<Node>();
      child->is_folder = true;
      node->durable_names[part] = child;
    } else if (!child->is_folder && child->link_target.empty()) {
      return absl::AlreadyExistsError(absl::StrCat("a file is in the way of '", path, "'"));
    }
    node = child->is_folder ? child : Find(child->link_target);
    if (node == nullptr) return NotFound(path);
  }
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::DeleteTree(const std::string& path) {
  return DeleteTreeByCalls(*this, path);
}

absl::Status MemoryFileSystem::SyncFolder(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(CountCall());
  ASSIGN_OR_RETURN(const std::shared_ptr<Node> node, FindFolder(folder));
  node->durable_names = node->names;
  node->changes.clear();
  return absl::OkStatus();
}

void MemoryFileSystem::StopAfter(int64_t calls) {
  const std::lock_guard lock(mutex_);
  calls_left_ = calls;
}

int64_t MemoryFileSystem::num_changing_calls() const {
  const std::lock_guard lock(mutex_);
  return num_changing_calls_;
}

void MemoryFileSystem::ForgetUnsynced(Node& node, CrashKind kind, std::mt19937_64& random) {
  const bool keeps_some = kind == CrashKind::kLoseSome;
  const size_t unsynced = node.bytes.size() - node.durable_bytes;
  const size_t kept = keeps_some ? random() % (unsynced + 1) : 0;
  node.bytes.resize(node.durable_bytes + kept);
  if (random() % 2 == 0) std::fill_n(node.bytes.begin() + node.durable_bytes, kept, '\0');
  node.durable_bytes = node.bytes.size();

  for (const Change& change : node.changes) {
    if (!keeps_some || random() % 2 == 0) continue;
    if (!change.from.empty()) {
      const auto found = node.durable_names.find(change.from);
      if (found == node.durable_names.end() || found->second != change.node) continue;
      node.durable_names.erase(found);
    }
    if (!change.to.empty()) node.durable_names[change.to] = change.node;
  }
  node.changes.clear();
  node.names = node.durable_names;
  for (const auto& [name, child] : node.names) ForgetUnsynced(*child, kind, random);
}

void MemoryFileSystem::Crash(CrashKind kind, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  if (kind != CrashKind::kKeepAll) ForgetUnsynced(*root_, kind, random);
  calls_left_.reset();
}

void MemoryFileSystem::FlipBit(const std::string& path, int64_t offset, int bit) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Node> node = Find(path);
  DEEPNET_CHECK(node != nullptr && static_cast<size_t>(offset) < node->bytes.size()) << path;
  node->bytes[offset] = static_cast<char>(node->bytes[offset] ^ (1 << bit));
}

absl::Status DeleteTreeByCalls(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const FileType type, fs.TypeOf(path));
  if (type == FileType::kFolder) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
    for (const std::string& name : names) {
      RETURN_IF_ERROR(DeleteTreeByCalls(fs, JoinPath(path, name)));
    }
  }
  return fs.Delete(path);
}

}  // namespace deepnet::testing
