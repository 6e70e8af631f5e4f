// Describes a host, and the folder of a run, without computing anything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/doctor.pb.h"

namespace deepnet {

// Returns what this process may use of its host: name, cores, memory (of control groups or
// `ulimit -v`, whichever is less), program.
DoctorRank DescribeHost();

// Returns the bytes that this user may still write where `folder` is.
absl::StatusOr<int64_t> FreeBytes(const std::string& folder);

// Returns OK if an advisory lock of the file (flock) can be had and keeps a second one out.
absl::Status CheckLocks(const std::string& path);

// The ways to a folder.
struct FolderAccess {
  FileSystem* files = nullptr;  // required
  std::function<absl::StatusOr<int64_t>(const std::string&)> free_bytes = FreeBytes;
  std::function<absl::Status(const std::string&)> check_locks = CheckLocks;
};

// Returns `folder`, or the nearest one above it that exists: where the folder is going to be.
std::string NearestFolder(FileSystem& files, std::string folder);

// Does in `folder` what checkpoints and locks do, with small files named after `name`, and fills in
// rank's folder, free_bytes, sync_seconds and folder_failures. Leaves nothing behind.
void CheckFolder(const FolderAccess& access, const std::string& folder, const std::string& name,
                 DoctorRank& rank);

}  // namespace deepnet
