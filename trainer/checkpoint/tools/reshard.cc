#include "trainer/checkpoint/tools/reshard.h"

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/spread_writer.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

int64_t NumElements(const TensorReader& reader) {
  int64_t elements = 0;
  for (const StoredTensor& tensor : reader.tensors()) elements += tensor.num_elements;
  return elements;
}

absl::Status CopyTensors(TensorReader& reader, SpreadWriter& writer, const ToolOptions& options) {
  const int64_t total = NumElements(reader) * kElementBytes;
  int64_t done = 0;
  for (const StoredTensor& tensor : reader.tensors()) {
    RETURN_IF_ERROR(
        reader.Visit(tensor, 0, tensor.num_elements, [&](std::string_view bytes) -> absl::Status {
          RETURN_IF_ERROR(writer.Append(tensor, bytes));
          done += static_cast<int64_t>(bytes.size());
          if (options.progress) options.progress(done, total);
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              int num_files, const std::string& output_run,
                                              const ToolOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output_run));
  ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> reader,
                   TensorReader::Open(fs, checkpoint_folder, options));
  TensorReader* const alone[] = {reader.get()};
  RETURN_IF_ERROR(ShareMemory(alone, kWriteManifestFactor, 0, options, "resharding"));
  const int64_t elements = NumElements(*reader);
  if (num_files < 1 || num_files > elements) {
    return WithExitCode(
        absl::InvalidArgumentError(
            absl::StrCat(num_files, " files: must be from 1 to ", elements, ", an element each")),
        ExitCode::kBadConfig);
  }
  RETURN_IF_ERROR(CopyVocabulary(fs, ParentFolder(checkpoint_folder), output_run));
  Manifest manifest = reader->manifest();
  manifest.clear_files();
  SpreadWriter writer(fs, output_run, {.num_files = num_files, .num_elements = elements},
                      std::move(manifest));
  RETURN_IF_ERROR(writer.Begin());
  RETURN_IF_ERROR(CopyTensors(*reader, writer, options));
  RETURN_IF_ERROR(writer.Commit());
  return JoinPath(output_run, CheckpointName(reader->manifest().step()));
}

}  // namespace deepnet
