// Writing: a checkpoint is written under a temporary name, made durable file by file, then renamed:
// the one moment at which it begins to exist. The manifest comes after the tensors, so that even a
// folder copied half-way by other means is recognised.
//
//   folder -> tensors, fsync -> manifest, fsync -> fsync folder -> rename -> fsync run -> `latest`
//
// Reading: a file is read block by block, ascending, each verified before a byte of it is used.
// Extents and blocks are both sorted, so one pass over both copies what they share.
//
// Finding: pointers are a convenience for people and scripts; resuming trusts only what it has read
// and verified.
#include "trainer/checkpoint/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/inventory.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

// Writing.

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

// Stops the program unless the run lies within its tensor.
template <typename Element>
void CheckRun(const TensorRun<Element>& tensor) {
  const int64_t end = tensor.first_element + static_cast<int64_t>(tensor.data.size());
  DEEPNET_CHECK(tensor.first_element >= 0 && end <= ElementsOf(tensor.shape))
      << tensor.name << ": elements " << tensor.first_element << " to " << end << " of "
      << ElementsOf(tensor.shape);
}

void CheckTensors(std::span<const NamedTensor> tensors) {
  std::set<std::pair<std::string_view, int64_t>> seen;
  for (const NamedTensor& tensor : tensors) {
    CheckRun(tensor);
    DEEPNET_CHECK(!tensor.data.empty()) << tensor.name << " has no elements";
    DEEPNET_CHECK(seen.emplace(tensor.name, tensor.first_element).second)
        << tensor.name << " is given twice";
  }
}

int64_t BlockBytes(int64_t asked) { return asked == 0 ? kDefaultBlockBytes : asked; }

absl::StatusOr<ShardFile> WriteTensors(FileSystem& fs, const std::string& folder,
                                       const CheckpointWriter& writer,
                                       std::span<const NamedTensor> tensors) {
  ShardFile description;
  description.set_file(TensorFileName(writer.index, writer.count));
  RETURN_IF_ERROR(MakeOwnFolder(fs, folder));  // each writer: none has to wait for another
  ASSIGN_OR_RETURN(const auto file, fs.CreateNew(JoinPath(folder, description.file())));
  BlockWriter blocks(*file, BlockBytes(writer.block_bytes), description);
  for (const NamedTensor& tensor : tensors) {
    TensorExtent& extent = *description.add_extents();
    extent.set_name(tensor.name);
    extent.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    extent.set_first_element(tensor.first_element);
    extent.set_num_elements(static_cast<int64_t>(tensor.data.size()));
    extent.set_offset(description.bytes());
    RETURN_IF_ERROR(blocks.Append(
        {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size() * kElementBytes}));
  }
  RETURN_IF_ERROR(blocks.Finish());
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  return description;
}

// Gives the finished folder `temporary` its name. A folder cannot replace a full one in one step,
// so an earlier checkpoint of the same step first steps aside under a name that readers know as
// well.
absl::Status Publish(FileSystem& fs, const std::string& run_folder, const std::string& temporary,
                     const std::string& folder) {
  const std::string replaced = absl::StrCat(folder, kReplacedEnd);
  ASSIGN_OR_RETURN(const bool exists, Exists(fs, folder));
  ASSIGN_OR_RETURN(bool aside, Exists(fs, replaced));
  if (exists) {
    if (aside) RETURN_IF_ERROR(fs.DeleteTree(replaced));
    RETURN_IF_ERROR(fs.SyncFolder(run_folder));
    RETURN_IF_ERROR(fs.Rename(folder, replaced));
    RETURN_IF_ERROR(fs.SyncFolder(run_folder));
    aside = true;
  }
  RETURN_IF_ERROR(fs.Rename(temporary, folder));
  RETURN_IF_ERROR(fs.SyncFolder(run_folder));
  return aside ? fs.DeleteTree(replaced) : absl::OkStatus();
}

std::string TemporaryFolder(const std::string& run_folder, int64_t step) {
  return absl::StrCat(JoinPath(run_folder, CheckpointName(step)), kUnfinishedEnd);
}

absl::Status Commit(FileSystem& fs, const std::string& run_folder, const Manifest& manifest) {
  const std::string temporary = TemporaryFolder(run_folder, manifest.step());
  const std::string bytes = SerializeManifest(manifest);
  RETURN_IF_ERROR(ParseManifest(bytes).status());
  ASSIGN_OR_RETURN(const auto file, fs.CreateNew(JoinPath(temporary, kManifestFile)));
  RETURN_IF_ERROR(file->Append(bytes));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  RETURN_IF_ERROR(fs.SyncFolder(temporary));
  RETURN_IF_ERROR(
      Publish(fs, run_folder, temporary, JoinPath(run_folder, CheckpointName(manifest.step()))));
  return SetPointer(fs, run_folder, kLatestPointer, manifest.step());
}

std::string Context(const std::string& run_folder, int64_t step) {
  return absl::StrCat("saving the checkpoint of step ", step, " in '", run_folder, "'");
}

// Reading.

// Says which bytes of a file are wanted, and where they go.
struct ByteRange {
  int64_t begin;  // bytes in the file
  int64_t end;
  char* destination;
};

// Reads the blocks that hold parts of `ranges` (ascending, disjoint) and copies those.
absl::Status ReadRanges(BlockReader& reader, std::span<const ByteRange> ranges) {
  std::vector<char> contents;
  for (int64_t block = 0; block < reader.num_blocks() && !ranges.empty(); ++block) {
    const int64_t begin = reader.Begin(block), end = reader.End(block);
    if (ranges.front().begin >= end) continue;
    contents.resize(static_cast<size_t>(end - begin));
    RETURN_IF_ERROR(reader.Read(block, contents));
    for (const ByteRange& range : ranges) {
      if (range.begin >= end) break;
      const int64_t from = std::max(range.begin, begin);
      const int64_t to = std::min(range.end, end);
      std::memcpy(range.destination + (from - range.begin), contents.data() + (from - begin),
                  static_cast<size_t>(to - from));
    }
    while (!ranges.empty() && ranges.front().end <= end) ranges = ranges.subspan(1);
  }
  return absl::OkStatus();
}

// Wanted tensors by name; parts of one tensor stand in the order in which they were given.
using Wanted = std::multimap<std::string_view, const MutableNamedTensor*>;

template <typename Shape>
std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Fails unless every wanted tensor is stored with the shape it should have. (ParseManifest() has
// checked that stored tensors are complete.)
absl::Status CheckWanted(const Manifest& manifest, Wanted wanted) {
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      const std::vector<int64_t> shape(extent.shape().begin(), extent.shape().end());
      const auto [begin, end] = wanted.equal_range(extent.name());
      for (auto found = begin; found != end; ++found) {
        if (shape == found->second->shape) continue;
        return FailedPrecondition("'", extent.name(), "' has shape ", ShapeText(shape), ", not ",
                                  ShapeText(found->second->shape));
      }
      wanted.erase(begin, end);
    }
  }
  if (wanted.empty()) return absl::OkStatus();
  return NotFound("'", std::string(wanted.begin()->first), "'",
                  wanted.size() == 1 ? "" : " (and others)", " is not stored there");
}

// Returns what to read of one file, ascending and disjoint.
std::vector<ByteRange> RangesOf(const ShardFile& file, const Wanted& wanted) {
  std::vector<ByteRange> ranges;
  for (const TensorExtent& extent : file.extents()) {
    const int64_t first = extent.first_element();
    const auto [found_begin, found_end] = wanted.equal_range(extent.name());
    for (auto found = found_begin; found != found_end; ++found) {
      const MutableNamedTensor& tensor = *found->second;
      const int64_t begin = std::max(first, tensor.first_element);
      const int64_t end = std::min(first + extent.num_elements(),
                                   tensor.first_element + static_cast<int64_t>(tensor.data.size()));
      if (begin >= end) continue;
      ranges.push_back(
          {extent.offset() + (begin - first) * kElementBytes,
           extent.offset() + (end - first) * kElementBytes,
           reinterpret_cast<char*>(tensor.data.data() + (begin - tensor.first_element))});
    }
  }
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  return ranges;
}

// Finding.

constexpr char kStepPrefix[] = "step-";
constexpr int64_t kMaxPointerBytes = 100;

// A folder that may be a checkpoint. Better ones compare greater: a later step, and at equal steps
// the one that was not replaced.
struct Candidate {
  int64_t step;
  bool current;
  std::string name;

  auto operator<=>(const Candidate&) const = default;
};

absl::StatusOr<Manifest> ReadVerified(FileSystem& fs, const std::string& folder, int64_t step) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, folder));
  if (manifest.step() != step) {
    return CheckpointError(DataLoss("its manifest says step ", manifest.step()),
                           absl::StrCat("'", folder, "' has a wrong name"));
  }
  RETURN_IF_ERROR(VerifyTensors(fs, folder, manifest));
  return manifest;
}

absl::StatusOr<int64_t> ReadPointerFile(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string contents, ReadWholeFile(fs, path, kMaxPointerBytes));
  const std::string name(absl::StripSuffix(contents, "\n"));
  if (const std::optional<int64_t> step = StepOfCheckpointName(name)) return *step;
  return absl::DataLossError("it does not name a checkpoint, such as step-00000010");
}

}  // namespace

absl::Status RemoveUnfinished(FileSystem& fs, const std::string& run_folder) {
  const auto remove = [&]() -> absl::Status {
    RETURN_IF_ERROR(fs.MakeFolder(run_folder));
    ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
    for (const std::string& name : names) {
      const bool unfinished = StateEnd(name) == kUnfinishedEnd && StepOfCheckpointFolder(name);
      if (unfinished) RETURN_IF_ERROR(fs.DeleteTree(JoinPath(run_folder, name)));
    }
    return absl::OkStatus();
  };
  return CheckpointError(remove(),
                         absl::StrCat("what interrupted saves left in '", run_folder, "'"));
}

absl::Status BeginCheckpoint(FileSystem& fs, const std::string& run_folder, int64_t step) {
  DEEPNET_CHECK(step >= 0);
  RETURN_IF_ERROR(RemoveUnfinished(fs, run_folder));
  return CheckpointError(MakeOwnFolder(fs, TemporaryFolder(run_folder, step)),
                         Context(run_folder, step));
}

absl::StatusOr<ShardFile> WriteShard(FileSystem& fs, const std::string& run_folder, int64_t step,
                                     const CheckpointWriter& writer,
                                     std::span<const NamedTensor> tensors) {
  DEEPNET_CHECK(step >= 0 && writer.block_bytes >= 0 && writer.block_bytes <= kMaxBlockBytes);
  CheckTensors(tensors);
  return CheckpointError(WriteTensors(fs, TemporaryFolder(run_folder, step), writer, tensors),
                         Context(run_folder, step));
}

absl::Status CommitCheckpoint(FileSystem& fs, const std::string& run_folder, Manifest manifest) {
  manifest.set_format_version(kFormatVersion);
  manifest.set_block_bytes(BlockBytes(manifest.block_bytes()));
  return CheckpointError(Commit(fs, run_folder, manifest), Context(run_folder, manifest.step()));
}

absl::StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& checkpoint_folder) {
  const std::string path = JoinPath(checkpoint_folder, kManifestFile);
  ASSIGN_OR_RETURN(
      const std::string bytes,
      CheckpointError(ReadWholeFile(fs, path, kMaxManifestBytes),
                      absl::StrCat("'", checkpoint_folder, "' is no complete checkpoint")));
  return CheckpointError(ParseManifest(bytes), absl::StrCat("'", path, "' is damaged or foreign"));
}

absl::Status ReadTensors(FileSystem& fs, const std::string& checkpoint_folder,
                         const Manifest& manifest, std::span<const MutableNamedTensor> tensors) {
  const std::string context = absl::StrCat("reading checkpoint '", checkpoint_folder, "'");
  Wanted wanted;
  for (const MutableNamedTensor& tensor : tensors) {
    CheckRun(tensor);
    wanted.emplace(tensor.name, &tensor);
  }
  RETURN_IF_ERROR(CheckpointError(CheckWanted(manifest, wanted), context));
  for (const ShardFile& file : manifest.files()) {
    const std::vector<ByteRange> ranges = RangesOf(file, wanted);
    if (ranges.empty()) continue;
    BlockReader reader(fs, checkpoint_folder, file, manifest.block_bytes());
    RETURN_IF_ERROR(CheckpointError(reader.CheckSize(), context));
    RETURN_IF_ERROR(CheckpointError(ReadRanges(reader, ranges), context));
  }
  return absl::OkStatus();
}

absl::Status VerifyTensors(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, const std::atomic<bool>* cancel) {
  const std::string context = absl::StrCat("verifying checkpoint '", checkpoint_folder, "'");
  for (const ShardFile& file : manifest.files()) {
    BlockReader reader(fs, checkpoint_folder, file, manifest.block_bytes());
    RETURN_IF_ERROR(CheckpointError(reader.CheckSize(), context));
    for (int64_t block = 0; block < reader.num_blocks(); ++block) {
      if (cancel != nullptr && *cancel) return absl::OkStatus();
      RETURN_IF_ERROR(CheckpointError(reader.Read(block), context));
    }
  }
  return absl::OkStatus();
}

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%08d", kStepPrefix, step); }

std::optional<int64_t> StepOfCheckpointName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = 0;
  const std::string digits(name.substr(sizeof(kStepPrefix) - 1));
  const bool is_step = absl::SimpleAtoi(digits, &step) && step >= 0 && CheckpointName(step) == name;
  return is_step ? std::optional(step) : std::nullopt;
}

std::vector<int64_t> CheckpointSteps(std::span<const std::string> names) {
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = StepOfCheckpointName(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

std::string_view StateEnd(std::string_view name) {
  for (const std::string_view end : {kUnfinishedEnd, kReplacedEnd}) {
    if (name.ends_with(end)) return end;
  }
  return "";
}

std::optional<int64_t> StepOfCheckpointFolder(std::string_view name) {
  return StepOfCheckpointName(name.substr(0, name.size() - StateEnd(name).size()));
}

absl::Status SetPointer(FileSystem& fs, const std::string& run_folder, const std::string& pointer,
                        int64_t step) {
  const std::string path = JoinPath(run_folder, pointer);
  return CheckpointError(ReplaceFile(fs, path, absl::StrCat(CheckpointName(step), "\n")),
                         absl::StrCat("pointer '", path, "'"));
}

absl::StatusOr<int64_t> GetPointer(FileSystem& fs, const std::string& run_folder,
                                   const std::string& pointer) {
  const std::string path = JoinPath(run_folder, pointer);
  return CheckpointError(ReadPointerFile(fs, path), absl::StrCat("pointer '", path, "'"));
}

absl::StatusOr<std::optional<FoundCheckpoint>> FindLatest(FileSystem& fs,
                                                          const std::string& run_folder) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(run_folder);
  if (absl::IsNotFound(names.status())) return std::nullopt;
  if (!names.ok()) return CheckpointError(names.status(), "looking for checkpoints");
  FoundCheckpoint found;
  std::vector<Candidate> candidates;
  for (const std::string& name : *names) {
    const std::optional<int64_t> step = StepOfCheckpointFolder(name);
    if (!step.has_value()) continue;
    if (StateEnd(name) == kUnfinishedEnd) {
      found.notes.push_back(absl::StrCat("'", JoinPath(run_folder, name), "' was never finished"));
    } else {
      candidates.push_back({*step, StateEnd(name).empty(), name});
    }
  }
  std::ranges::sort(candidates, std::greater<>());
  for (const Candidate& candidate : candidates) {
    found.folder = JoinPath(run_folder, candidate.name);
    absl::StatusOr<Manifest> manifest = ReadVerified(fs, found.folder, candidate.step);
    if (manifest.ok()) {
      found.manifest = *std::move(manifest);
      return found;
    }
    found.notes.emplace_back(manifest.status().message());
  }
  if (candidates.empty()) return std::nullopt;
  return CheckpointError(absl::DataLossError(absl::StrJoin(found.notes, "; ")),
                         absl::StrCat("'", run_folder, "' has no complete checkpoint"));
}

std::string CheckpointPath(FileSystem& fs, std::string path) {
  const auto ends_with = [&path](std::string_view end) {
    return path.size() > end.size() && path.ends_with(end);
  };
  while (ends_with("/") || ends_with("/.")) path.pop_back();
  const bool dots = path == "." || path == ".." || path.ends_with("/..");
  const bool link = fs.TypeOf(path).value_or(FileType::kNone) == FileType::kLink;
  if (!dots && !link) return path;
  std::error_code error;
  const std::string target = std::filesystem::canonical(path, error).string();
  const std::string beside = JoinPath(ParentFolder(target), kRunLanguagesFile);
  return !error && Exists(fs, beside).value_or(false) ? target : path;
}

absl::StatusOr<std::string> ResolveCheckpoint(FileSystem& fs, const std::string& given) {
  const std::string path = CheckpointPath(fs, given);
  const std::string context = absl::StrCat("checkpoint '", path, "'");
  ASSIGN_OR_RETURN(const bool is_checkpoint,
                   CheckpointError(Exists(fs, JoinPath(path, kManifestFile)), context));
  if (is_checkpoint) return path;
  if (!fs.List(path).ok()) {
    ASSIGN_OR_RETURN(const int64_t step,
                     CheckpointError(ReadPointerFile(fs, path),
                                     context + ": no checkpoint, run folder or pointer"));
    return JoinPath(ParentFolder(path), CheckpointName(step));
  }
  ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> latest, FindLatest(fs, path));
  if (latest.has_value()) return latest->folder;
  return CheckpointError(absl::NotFoundError("the folder holds no checkpoint"), context);
}

}  // namespace deepnet
