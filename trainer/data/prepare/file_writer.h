// A file being written front to back, with its hash.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/content_hash.h"

namespace deepnet {

class FileWriter {
 public:
  // Create, Append and Finish.
  static absl::StatusOr<CorpusFile> Write(const std::string& folder, const std::string& name,
                                          std::string_view bytes);

  // Creates or replaces <folder>/<name>.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Create(const std::string& folder,
                                                            const std::string& name);

  // Returns false once something could not be written; Finish() says so.
  bool Append(std::string_view bytes);

  // Syncs the file to disk and returns its name, size and hash. Fails naming the file.
  absl::StatusOr<CorpusFile> Finish();

 private:
  explicit FileWriter(std::string path) : path_(std::move(path)) {}
  absl::Status Failure() const;

  const std::string path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_{nullptr, fclose};
  bool complete_ = true;    // so far
  CorpusFile description_;  // without the hash
  ContentHasher hasher_;
};

}  // namespace deepnet
