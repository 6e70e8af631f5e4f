#include "trainer/data/prepare/file_writer.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"

namespace deepnet {

FileWriter::FileWriter(std::string path, std::string name, FILE* file)
    : path_(std::move(path)), name_(std::move(name)), file_(file, fclose) {}

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& folder,
                                                               const std::string& name) {
  std::string path = absl::StrCat(folder, "/", name);
  unlink(path.c_str());
  FILE* file = fopen(path.c_str(), "wbx");  // a new file, and no link's target
  if (file == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  }
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(path), name, file));
}

absl::StatusOr<CorpusFile> FileWriter::Write(const std::string& folder, const std::string& name,
                                             std::string_view bytes) {
  ASSIGN_OR_RETURN(const auto file, Create(folder, name));
  file->Append(bytes);
  return file->Finish();
}

bool FileWriter::Append(std::string_view bytes) {
  hasher_.Update(bytes);
  num_bytes_ += static_cast<int64_t>(fwrite(bytes.data(), 1, bytes.size(), file_.get()));
  num_wanted_ += static_cast<int64_t>(bytes.size());
  return num_bytes_ == num_wanted_;
}

absl::StatusOr<CorpusFile> FileWriter::Finish() {
  if (fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0 || num_bytes_ != num_wanted_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", path_, ": ", strerror(errno)));
  }
  CorpusFile file;
  file.set_name(name_);
  file.set_bytes(num_bytes_);
  file.set_hash(hasher_.Digest());
  return file;
}

}  // namespace deepnet
