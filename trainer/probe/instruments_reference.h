// The file that keeps F(x, theta_0) of a run: one line of text that says whose it is, the rows as
// little-endian float32, and the CRC-32C of all before it in four bytes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/data/microbatch.h"
#include "trainer/probe/model_update.h"

namespace deepnet {

// Of a model, its seed and x; without blanks.
std::string ReferenceIdentity(const std::string& inventory_hash, uint64_t seed,
                              const Microbatch& x);

// Replaces `path`, durably.
absl::Status WriteReference(FileSystem& fs, const std::string& path, const std::string& identity,
                            const OutputRows& rows);

// kNotFound where there is none, or none of `identity`, or a damaged one.
absl::StatusOr<OutputRows> ReadReference(FileSystem& fs, const std::string& path,
                                         const std::string& identity);

}  // namespace deepnet
