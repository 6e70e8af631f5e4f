// The place of a corpus: claimed by one process, filled under another name, published by renaming.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/data.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/data/prepare/context.h"

namespace deepnet {

// Returns the spec without the fields that do not change the result.
PrepareSpec CanonicalSpec(PrepareSpec spec);

// Used by rank 0 alone.
class CorpusFolder {
 public:
  explicit CorpusFolder(PrepareContext& context);

  // Deletes the temporary folder if there is nothing in it to continue with and no other rank may
  // still work in it.
  ~CorpusFolder();
  CorpusFolder(const CorpusFolder&) = delete;
  CorpusFolder& operator=(const CorpusFolder&) = delete;

  // Takes the lock and makes the temporary folder, with what an earlier preparation has finished;
  // or returns the report of a corpus that is there already and is the one asked for. Fails if the
  // place is taken or another process has the lock.
  absl::StatusOr<std::optional<CorpusReport>> Claim();

  // Renames the temporary folder, whose files are complete and durable, to the output folder.
  absl::Status Publish();

 private:
  // Takes an advisory lock on the file `path` as long as the object lives. Fails if another process
  // has it. On a file system without locks there is none to take: a warning says so.
  absl::Status TakeLock(const std::string& path);

  // Returns the report of a corpus that is there already, if it is the one asked for; nothing if
  // the place is free or may be replaced.
  absl::StatusOr<std::optional<CorpusReport>> FindExisting();

  // Returns true if the output is a mount point: it keeps its name, so the temporary folder lies in
  // it.
  bool IsInside() const { return ParentFolder(context_.temporary) == context_.output; }

  absl::Status FinishPublishing();
  absl::Status PublishInside();

  // Deletes what an earlier preparation left in the temporary folder, except finished parts.
  absl::Status TidyUp();

  // Returns where Publish() puts a corpus that it replaces.
  std::string ReplacedPath() const;

  PrepareContext& context_;
  const std::unique_ptr<FileSystem> files_;
  int lock_ = -1;  // its file
  bool owns_temporary_ = false;
};

}  // namespace deepnet
