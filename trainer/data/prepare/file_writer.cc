#include "trainer/data/prepare/file_writer.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"

namespace deepnet {

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& folder,
                                                               const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", name);
  auto writer = std::unique_ptr<FileWriter>(new FileWriter(path));
  writer->description_.set_name(name);
  unlink(path.c_str());
  writer->file_.reset(fopen(path.c_str(), "wbx"));  // a new file, and no link's target
  if (writer->file_ == nullptr) return writer->Failure();
  return writer;
}

absl::StatusOr<CorpusFile> FileWriter::Write(const std::string& folder, const std::string& name,
                                             std::string_view bytes) {
  ASSIGN_OR_RETURN(const auto file, Create(folder, name));
  file->Append(bytes);
  return file->Finish();
}

bool FileWriter::Append(std::string_view bytes) {
  hasher_.Update(bytes);
  description_.set_bytes(description_.bytes() + static_cast<int64_t>(bytes.size()));
  complete_ = complete_ && fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size();
  return complete_;
}

absl::StatusOr<CorpusFile> FileWriter::Finish() {
  if (fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0 || !complete_) return Failure();
  description_.set_hash(hasher_.Digest());
  return description_;
}

absl::Status FileWriter::Failure() const {
  return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path_, ": ", strerror(errno)));
}

}  // namespace deepnet
