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
#include "parallel/comm/agreement.h"
#include "parallel/comm/communicator.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/spread_writer.h"

namespace deepnet {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;

// Bytes of a piece: floats as read, their sums in double, their means.
constexpr int64_t kPieceMemory = kPieceElements * (2 * sizeof(float) + sizeof(double));

// Bytes of means that a rank makes in a turn: several blocks, because it reads those at both ends
// that other ranks read, too.
constexpr int64_t kMinTurnBytes = kPieceElements * kElementBytes;
constexpr int64_t kMaxTurnBytes = int64_t{32} << 20;

constexpr int kMeansTag = 0;

using Readers = std::vector<std::unique_ptr<TensorReader>>;

bool IsWeight(const StoredTensor& tensor) { return absl::StartsWith(tensor.name, kWeightPrefix); }

// Returns the name of the tensor of `kind` that belongs to a weight.
std::string NameAs(const std::string& kind, const StoredTensor& weight) {
  return kind + weight.name.substr(std::string_view(kWeightPrefix).size());
}

absl::Status Differ(const TensorReader& a, const TensorReader& b, const std::string& what,
                    const std::string& value_a, const std::string& value_b) {
  if (value_a == value_b) return absl::OkStatus();
  return CheckpointRefused("'", a.folder(), "' and '", b.folder(), "' have different ", what, ": '",
                           value_a, "' and '", value_b, "'");
}

int64_t NumWeights(const TensorReader& reader) {
  return std::count_if(reader.tensors().begin(), reader.tensors().end(), IsWeight);
}

// Fails unless both are the same model at different times.
absl::Status CheckAlike(const TensorReader& a, const TensorReader& b) {
  const Manifest &x = a.manifest(), &y = b.manifest();
  RETURN_IF_ERROR(Differ(a, b, "vocabularies", x.tokenizer_hash(), y.tokenizer_hash()));
  RETURN_IF_ERROR(
      Differ(a, b, "names or shapes of weights", x.inventory_hash(), y.inventory_hash()));
  RETURN_IF_ERROR(
      Differ(a, b, "numbers of weights", absl::StrCat(NumWeights(a)), absl::StrCat(NumWeights(b))));
  for (const StoredTensor& tensor : a.tensors()) {
    if (!IsWeight(tensor)) continue;
    const StoredTensor* const other = b.Find(tensor.name);
    if (other != nullptr && other->shape == tensor.shape) continue;
    return CheckpointRefused("'", tensor.name, "' of '", a.folder(), "' is ",
                             other == nullptr ? "missing" : "of another shape", " in '", b.folder(),
                             "'");
  }
  return absl::OkStatus();
}

absl::Status CheckHolds(const std::string& kind, const TensorReader& reader) {
  for (const StoredTensor& tensor : reader.tensors()) {
    if (!IsWeight(tensor) || reader.Find(NameAs(kind, tensor)) != nullptr) continue;
    return CheckpointRefused("'", reader.folder(), "' holds no '", NameAs(kind, tensor),
                             "': optim.ema_decay was off in that run");
  }
  return absl::OkStatus();
}

absl::Status CheckNotTheSame(const TensorReader& a, const TensorReader& b) {
  const bool same = a.manifest().step() == b.manifest().step() &&
                    a.manifest().manifest_crc32c() == b.manifest().manifest_crc32c();
  if (!same) return absl::OkStatus();
  return WithExitCode(
      InvalidArgument("'", a.folder(), "' and '", b.folder(), "' are the same checkpoint"),
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

Manifest MeanManifest(const Readers& readers, const std::string& kind) {
  Manifest manifest = readers.back()->manifest();
  manifest.clear_files();
  manifest.clear_best();
  manifest.clear_averaged();
  for (const std::unique_ptr<TensorReader>& reader : readers) {
    AveragedCheckpoint& averaged = *manifest.add_averaged();
    averaged.set_folder(reader->folder());
    averaged.set_step(reader->manifest().step());
    averaged.set_manifest_crc32c(reader->manifest().manifest_crc32c());
    averaged.set_ema(kind == kEmaPrefix);
  }
  return manifest;
}

using Tensors = std::vector<const StoredTensor*>;

Tensors TensorsOf(const TensorReader& reader, bool weights_only) {
  Tensors tensors;
  for (const StoredTensor& tensor : reader.tensors()) {
    if (!weights_only || IsWeight(tensor)) tensors.push_back(&tensor);
  }
  return tensors;
}

int64_t NumElements(const Tensors& tensors) {
  int64_t elements = 0;
  for (const StoredTensor* tensor : tensors) elements += tensor->num_elements;
  return elements;
}

// Elements [begin, end) of tensors in a row.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Calls visit(tensor, first_element, num_elements) for the run of each tensor that is in the range.
template <typename Visit>
absl::Status ForEachRun(const Tensors& tensors, ElementRange range, const Visit& visit) {
  int64_t at = 0;  // of the tensor, in the row
  for (const StoredTensor* tensor : tensors) {
    const int64_t first = std::max<int64_t>(range.begin - at, 0);
    const int64_t end = std::min(range.end - at, tensor->num_elements);
    if (first < end) RETURN_IF_ERROR(visit(*tensor, first, end - first));
    at += tensor->num_elements;
  }
  return absl::OkStatus();
}

struct Means {
  const Readers& readers;
  const std::string& kind;  // of the tensors that are read
  const Tensors tensors;    // the weights of the first checkpoint, whose names the means have
};

// Returns the bytes of the means in a range.
absl::StatusOr<std::string> MakeMeans(const Means& means, ElementRange range) {
  std::string bytes;
  bytes.reserve(static_cast<size_t>((range.end - range.begin) * kElementBytes));
  std::vector<float> piece;
  std::vector<double> sum;
  const auto mean = [&](const StoredTensor& tensor, int64_t first, int64_t num) -> absl::Status {
    for (int64_t at = first; at < first + num; at += kPieceElements) {
      const size_t count = static_cast<size_t>(std::min(kPieceElements, first + num - at));
      piece.resize(count);
      sum.assign(count, 0.0);
      for (const std::unique_ptr<TensorReader>& reader : means.readers) {
        RETURN_IF_ERROR(reader->Read(*reader->Find(NameAs(means.kind, tensor)), at, piece));
        for (size_t i = 0; i < count; ++i) sum[i] += static_cast<double>(piece[i]);
      }
      const double divisor = static_cast<double>(means.readers.size());
      for (size_t i = 0; i < count; ++i) piece[i] = static_cast<float>(sum[i] / divisor);
      bytes.append(reinterpret_cast<const char*>(piece.data()), count * sizeof(float));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachRun(means.tensors, range, mean));
  return bytes;
}

// Returns how many bytes of means one of several ranks makes before rank 0 takes them.
int64_t TurnBytes(const ToolOptions& options) {
  const int64_t bytes = std::clamp(options.memory_bytes / 8, kMinTurnBytes, kMaxTurnBytes);
  return bytes / kElementBytes * kElementBytes;
}

// Replaces `bytes` by what another rank has made of a range.
absl::Status Receive(Communicator& world, int rank, ElementRange range, std::string& bytes) {
  bytes.resize(static_cast<size_t>((range.end - range.begin) * kElementBytes));
  ASSIGN_OR_RETURN(const auto received,
                   world.Receive(Buffer::Of(std::span(bytes)), rank, kMeansTag));
  return received->Wait();
}

absl::Status AppendRange(const Tensors& tensors, ElementRange range, std::string_view bytes,
                         SpreadWriter& writer) {
  return ForEachRun(tensors, range, [&](const StoredTensor& tensor, int64_t, int64_t num) {
    const std::string_view run = bytes.substr(0, static_cast<size_t>(num * kElementBytes));
    bytes.remove_prefix(run.size());
    return writer.Append(tensor, run);
  });
}

// Writes the means, in the order of the first checkpoint: ranks take turns in making a range each,
// and rank 0 writes them. Returns the same on every rank.
absl::Status WriteMeans(const Means& means, SpreadWriter& writer, Communicator& world,
                        const ToolOptions& options) {
  const int64_t all = NumElements(means.tensors);
  const int64_t turn = world.size() > 1 ? TurnBytes(options) / kElementBytes : kPieceElements;
  absl::Status written;  // of rank 0
  for (int64_t begin = 0; begin < all; begin += turn * world.size()) {
    const auto range_of = [&](int rank) -> ElementRange {
      return {std::min(all, begin + turn * rank), std::min(all, begin + turn * (rank + 1))};
    };
    absl::StatusOr<std::string> made = MakeMeans(means, range_of(world.rank()));
    RETURN_IF_ERROR(AgreeOnStatus(world, written.ok() ? made.status() : written));
    if (world.rank() > 0 && !made->empty()) {
      ASSIGN_OR_RETURN(const auto sent, world.Send(Buffer::Of(std::span(*made)), 0, kMeansTag));
      RETURN_IF_ERROR(sent->Wait());
    }
    for (int rank = 0; world.rank() == 0 && rank < world.size(); ++rank) {
      const ElementRange range = range_of(rank);
      if (range.begin == range.end) break;
      if (rank > 0) RETURN_IF_ERROR(Receive(world, rank, range, *made));
      if (written.ok()) written = AppendRange(means.tensors, range, *made, writer);
      options.progress(range.end * kElementBytes, all * kElementBytes);
    }
  }
  return AgreeOnStatus(world, written);
}

absl::Status CopyTensors(TensorReader& reader, const Tensors& tensors, ElementRange range,
                         SpreadWriter& writer, const ToolOptions& options) {
  const int64_t total = (range.end - range.begin) * kElementBytes;
  int64_t done = 0;
  return ForEachRun(
      tensors, range, [&](const StoredTensor& tensor, int64_t first, int64_t num) -> absl::Status {
        return reader.Visit(tensor, first, num, [&](std::string_view bytes) -> absl::Status {
          RETURN_IF_ERROR(writer.Append(tensor, bytes));
          done += static_cast<int64_t>(bytes.size());
          options.progress(done, total);
          return absl::OkStatus();
        });
      });
}

absl::StatusOr<Readers> OpenForMeans(FileSystem& fs, std::span<const std::string> folders,
                                     const std::string& kind, const std::string& output_run,
                                     const ToolOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output_run));
  ASSIGN_OR_RETURN(Readers readers, OpenAll(fs, folders, options));
  for (const auto& reader : readers) RETURN_IF_ERROR(CheckHolds(kind, *reader));
  std::vector<TensorReader*> all;
  for (const std::unique_ptr<TensorReader>& reader : readers) all.push_back(reader.get());
  const bool in_turns = options.world != nullptr && options.world->size() > 1;
  const int64_t memory = kPieceMemory + (in_turns ? TurnBytes(options) : 0);
  RETURN_IF_ERROR(ShareMemory(all, kWriteManifestFactor, memory, options,
                              absl::StrCat("averaging ", all.size(), " checkpoints")));
  if (NumWeights(*readers.front()) > 0) return readers;
  return WithExitCode(NotFound("'", readers.front()->folder(), "' holds no weights"),
                      ExitCode::kCheckpoint);
}

absl::StatusOr<std::unique_ptr<TensorReader>> OpenForReshard(FileSystem& fs,
                                                             const std::string& folder,
                                                             int num_files,
                                                             const std::string& output_run,
                                                             const ToolOptions& options) {
  RETURN_IF_ERROR(CheckOutputFolder(fs, output_run));
  ASSIGN_OR_RETURN(std::unique_ptr<TensorReader> reader, TensorReader::Open(fs, folder, options));
  TensorReader* const alone[] = {reader.get()};
  RETURN_IF_ERROR(ShareMemory(alone, kWriteManifestFactor, 0, options, "resharding"));
  const int64_t elements = NumElements(TensorsOf(*reader, /*weights_only=*/false));
  if (num_files >= 1 && num_files <= elements) return reader;
  return ConfigError(num_files, " files: must be from 1 to ", elements, ", an element each");
}

// Returns the elements that lie before `at` in the tensor that has element `at` of all in a row.
int64_t ElementInTensor(const Tensors& tensors, int64_t at) {
  for (const StoredTensor* tensor : tensors) {
    if (at < tensor->num_elements) return at;
    at -= tensor->num_elements;
  }
  return 0;
}

// Writes this rank's share of the files and returns what the manifest says of it.
absl::StatusOr<Manifest> WriteShare(TensorReader& reader, const Tensors& tensors,
                                    SpreadWriter& writer, const Communicator& world,
                                    const ToolOptions& options) {
  const SpreadShape& shape = writer.shape();
  const auto first_of = [&](int64_t rank) {
    return static_cast<int>(shape.num_files * rank / world.size());
  };
  const int first = first_of(world.rank()), end = first_of(world.rank() + 1);
  const ElementRange range = {FirstElementOf(shape, first), FirstElementOf(shape, end)};
  writer.Share(first, end, ElementInTensor(tensors, range.begin));
  RETURN_IF_ERROR(CopyTensors(reader, tensors, range, writer, options));
  return writer.Finish();
}

// Makes one checkpoint of the shares of all ranks; rank 0 does. Returns its folder.
absl::StatusOr<std::string> CommitShares(const Manifest& mine, SpreadWriter& writer,
                                         Communicator& world) {
  ASSIGN_OR_RETURN(const std::vector<Manifest> all, AllGatherMessages(world, mine));
  Manifest merged;
  for (const Manifest& part : all) merged.MergeFrom(part);
  ASSIGN_OR_RETURN(const std::string folder,
                   AgreeOn(world, world.rank() == 0 ? writer.Commit(merged) : ""));
  return BroadcastText(world, folder, 0);
}

}  // namespace

absl::StatusOr<std::string> AverageCheckpoints(FileSystem& fs,
                                               std::span<const std::string> checkpoint_folders,
                                               const std::string& output_run,
                                               const ToolOptions& options,
                                               const std::string& kind) {
  DEEPNET_CHECK(!checkpoint_folders.empty());
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  ASSIGN_OR_RETURN(const Readers readers,
                   AgreeOn(world, OpenForMeans(fs, checkpoint_folders, kind, output_run, options)));
  const Means means = {readers, kind, TensorsOf(*readers.front(), /*weights_only=*/true)};
  SpreadWriter writer(fs, output_run, {.num_files = 1, .num_elements = NumElements(means.tensors)},
                      MeanManifest(readers, kind));
  absl::Status begun;
  if (world.rank() == 0) {
    begun = CopyVocabulary(fs, ParentFolder(readers.back()->folder()), output_run);
    if (begun.ok()) begun = writer.Begin();
  }
  RETURN_IF_ERROR(AgreeOnStatus(world, begun));
  RETURN_IF_ERROR(WriteMeans(means, writer, world, options));
  ASSIGN_OR_RETURN(const Manifest files,
                   AgreeOn(world, world.rank() == 0 ? writer.Finish() : Manifest()));
  return CommitShares(files, writer, world);
}

absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              int num_files, const std::string& output_run,
                                              const ToolOptions& options) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorReader> opened,
      AgreeOn(world, OpenForReshard(fs, checkpoint_folder, num_files, output_run, options)));
  TensorReader& reader = *opened;
  const Tensors tensors = TensorsOf(reader, /*weights_only=*/false);
  Manifest manifest = reader.manifest();
  manifest.clear_files();
  SpreadWriter writer(fs, output_run,
                      {.num_files = num_files, .num_elements = NumElements(tensors)},
                      std::move(manifest));
  absl::Status begun;
  if (world.rank() == 0) {
    begun = CopyVocabulary(fs, ParentFolder(checkpoint_folder), output_run);
    if (begun.ok()) begun = writer.Begin();
  }
  RETURN_IF_ERROR(AgreeOnStatus(world, begun));
  ASSIGN_OR_RETURN(const Manifest share,
                   AgreeOn(world, WriteShare(reader, tensors, writer, world, options)));
  return CommitShares(share, writer, world);
}

}  // namespace deepnet
