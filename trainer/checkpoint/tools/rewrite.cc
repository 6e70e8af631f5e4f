#include "trainer/checkpoint/tools/rewrite.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/spread_writer.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;

// Bytes of a piece: floats as read, their sums in double, their means.
constexpr int64_t kPieceMemory = kPieceElements * (2 * sizeof(float) + sizeof(double));

using Readers = std::vector<std::unique_ptr<TensorReader>>;

bool IsWeight(const StoredTensor& tensor) { return absl::StartsWith(tensor.name, kWeightPrefix); }

absl::Status Differ(const TensorReader& a, const TensorReader& b, const std::string& what,
                    const std::string& value_a, const std::string& value_b) {
  if (value_a == value_b) return absl::OkStatus();
  return CheckpointRefused(absl::StrCat("'", a.folder(), "' and '", b.folder(), "' have different ",
                                        what, ": '", value_a, "' and '", value_b, "'"));
}

int64_t NumWeights(const TensorReader& reader) {
  return std::count_if(reader.tensors().begin(), reader.tensors().end(), IsWeight);
}

// Fails unless both are the same model at different times.
absl::Status CheckAlike(const TensorReader& a, const TensorReader& b) {
  const Manifest &x = a.manifest(), &y = b.manifest();
  RETURN_IF_ERROR(Differ(a, b, "inventories", x.inventory_hash(), y.inventory_hash()));
  RETURN_IF_ERROR(Differ(a, b, "tokenizers", x.tokenizer_hash(), y.tokenizer_hash()));
  RETURN_IF_ERROR(
      Differ(a, b, "numbers of weights", absl::StrCat(NumWeights(a)), absl::StrCat(NumWeights(b))));
  for (const StoredTensor& tensor : a.tensors()) {
    if (!IsWeight(tensor)) continue;
    const StoredTensor* const other = b.Find(tensor.name);
    if (other != nullptr && other->shape == tensor.shape) continue;
    return CheckpointRefused(absl::StrCat("'", tensor.name, "' of '", a.folder(), "' is ",
                                          other == nullptr ? "missing" : "of another shape",
                                          " in '", b.folder(), "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckNotTheSame(const TensorReader& a, const TensorReader& b) {
  const bool same = a.manifest().step() == b.manifest().step() &&
                    a.manifest().manifest_crc32c() == b.manifest().manifest_crc32c();
  if (!same) return absl::OkStatus();
  return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                          "'", a.folder(), "' and '", b.folder(), "' are the same checkpoint")),
                      ExitCode::kCheckpoint);
}

// Opens all checkpoints, ascending by step, and compares them with each other.
absl::StatusOr<Readers> OpenAll(FileSystem& fs, std::span<const std::string> folders,
                                const ToolOptions& options) {
  Readers readers;
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(std::unique_ptr<TensorReader> reader, TensorReader::Open(fs, folder, options));
    readers.push_back(std::move(reader));
  }
  std::ranges::sort(readers, {}, [](const auto& reader) {
    return std::make_tuple(reader->manifest().step(), reader->folder());
  });
  for (size_t i = 1; i < readers.size(); ++i) {
    RETURN_IF_ERROR(CheckAlike(*readers[i - 1], *readers[i]));
    for (size_t j = 0; j < i; ++j) RETURN_IF_ERROR(CheckNotTheSame(*readers[j], *readers[i]));
  }
  return readers;
}

Manifest MeanManifest(const Readers& readers) {
  Manifest manifest = readers.back()->manifest();
  manifest.clear_files();
  manifest.clear_best();
  manifest.clear_averaged();
  for (const std::unique_ptr<TensorReader>& reader : readers) {
    AveragedCheckpoint& averaged = *manifest.add_averaged();
    averaged.set_folder(reader->folder());
    averaged.set_step(reader->manifest().step());
    averaged.set_manifest_crc32c(reader->manifest().manifest_crc32c());
  }
  return manifest;
}

// Writes the means of all weights, in the order of the first checkpoint.
absl::Status WriteMeans(const Readers& readers, int64_t num_elements, SpreadWriter& writer,
                        const ToolOptions& options) {
  std::vector<float> piece;
  std::vector<double> sum;
  int64_t done = 0;
  for (const StoredTensor& tensor : readers.front()->tensors()) {
    if (!IsWeight(tensor)) continue;
    for (int64_t at = 0; at < tensor.num_elements; at += kPieceElements) {
      const size_t count = static_cast<size_t>(std::min(kPieceElements, tensor.num_elements - at));
      piece.resize(count);
      sum.assign(count, 0.0);
      for (const std::unique_ptr<TensorReader>& reader : readers) {
        RETURN_IF_ERROR(reader->Read(*reader->Find(tensor.name), at, piece));
        for (size_t i = 0; i < count; ++i) sum[i] += static_cast<double>(piece[i]);
      }
      const double divisor = static_cast<double>(readers.size());
      for (size_t i = 0; i < count; ++i) piece[i] = static_cast<float>(sum[i] / divisor);
      RETURN_IF_ERROR(writer.Append(
          tensor, {reinterpret_cast<const char*>(piece.data()), count * sizeof(float)}));
    }
    done += tensor.num_elements;
    options.progress(done * kElementBytes, num_elements * kElementBytes);
  }
  return absl::OkStatus();
}

int64_t NumElements(const TensorReader& reader, bool weights_only) {
  int64_t elements = 0;
  for (const StoredTensor& tensor : reader.tensors()) {
    if (!weights_only || IsWeight(tensor)) elements += tensor.num_elements;
  }
  return elements;
}

absl::Status CopyTensors(TensorReader& reader, SpreadWriter& writer, const ToolOptions& options) {
  const int64_t total = NumElements(reader, /*weights_only=*/false) * kElementBytes;
  int64_t done = 0;
  for (const StoredTensor& tensor : reader.tensors()) {
    RETURN_IF_ERROR(
        reader.Visit(tensor, 0, tensor.num_elements, [&](std::string_view bytes) -> absl::Status {
          RETURN_IF_ERROR(writer.Append(tensor, bytes));
          done += static_cast<int64_t>(bytes.size());
          options.progress(done, total);
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> AverageCheckpoints(FileSystem& fs,
                                               std::span<const std::string> checkpoint_folders,
                                               const std::string& output_run,
                                               const ToolOptions& options) {
  DEEPNET_CHECK(!checkpoint_folders.empty());
  RETURN_IF_ERROR(CheckOutputFolder(fs, output_run));
  ASSIGN_OR_RETURN(const Readers readers, OpenAll(fs, checkpoint_folders, options));
  std::vector<TensorReader*> all;
  for (const std::unique_ptr<TensorReader>& reader : readers) all.push_back(reader.get());
  RETURN_IF_ERROR(ShareMemory(all, kWriteManifestFactor, kPieceMemory, options,
                              absl::StrCat("averaging ", all.size(), " checkpoints")));
  const int64_t elements = NumElements(*readers.front(), /*weights_only=*/true);
  if (elements == 0) {
    return WithExitCode(
        absl::NotFoundError(absl::StrCat("'", readers.front()->folder(), "' holds no weights")),
        ExitCode::kCheckpoint);
  }
  RETURN_IF_ERROR(CopyVocabulary(fs, ParentFolder(readers.back()->folder()), output_run));
  SpreadWriter writer(fs, output_run, {.num_files = 1, .num_elements = elements},
                      MeanManifest(readers));
  RETURN_IF_ERROR(WriteMeans(readers, elements, writer, options));
  return writer.Commit();
}

absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              int num_files, const std::string& output_run,
                                              const ToolOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output_run));
  ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> reader,
                   TensorReader::Open(fs, checkpoint_folder, options));
  TensorReader* const alone[] = {reader.get()};
  RETURN_IF_ERROR(ShareMemory(alone, kWriteManifestFactor, 0, options, "resharding"));
  const int64_t elements = NumElements(*reader, /*weights_only=*/false);
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
  RETURN_IF_ERROR(CopyTensors(*reader, writer, options));
  return writer.Commit();
}

}  // namespace deepnet
