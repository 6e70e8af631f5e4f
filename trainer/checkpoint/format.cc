// A manifest ends with field 2047, six bytes: two of tag, four of checksum. Protobuf writes fields
// in the order of their numbers, so any decoder reads the file; we append and compare those six by
// hand.
//
// Blocks are read and written in pieces, so that the checksum is taken while a piece is in the
// processor's cache, and so that comparing and writing need no room for a whole block.
#include "trainer/checkpoint/format.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// Tag of field 2047 with four fixed bytes: varint of 2047 << 3 | 5.
constexpr std::string_view kChecksumTag = "\xfd\x7f";
constexpr size_t kTrailerBytes = 6;

std::string LittleEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

absl::Status CheckFile(const ShardFile& file, int64_t block_bytes) {
  const std::string& name = file.file();
  if (!IsFileName(name)) {
    return DataLoss("'", name, "' is no name of a file in this folder");
  }
  const int64_t blocks = file.bytes() / block_bytes + (file.bytes() % block_bytes != 0 ? 1 : 0);
  if (file.bytes() < 0 || blocks != file.block_crc32c_size()) {
    return DataLoss(name, " has ", file.bytes(), " bytes but ", file.block_crc32c_size(),
                    " checksums");
  }
  int64_t end = 0;  // bytes, where the extent before ended
  for (const TensorExtent& extent : file.extents()) {
    if (extent.dtype() != TensorExtent::F32) {
      return FailedPrecondition("'", extent.name(), "' has elements of type ", extent.dtype(),
                                "; this program reads F32");
    }
    const int64_t elements = CheckedElements(extent.shape());
    const bool inside_tensor = extent.first_element() >= 0 && extent.num_elements() > 0 &&
                               extent.num_elements() <= elements &&
                               extent.first_element() <= elements - extent.num_elements();
    const bool inside_file =
        extent.offset() >= end && extent.offset() <= file.bytes() &&
        extent.num_elements() <= (file.bytes() - extent.offset()) / kElementBytes;
    if (!inside_tensor || !inside_file) {
      return DataLoss("an extent of '", extent.name(), "' does not fit into ", name);
    }
    end = extent.offset() + extent.num_elements() * kElementBytes;
  }
  return absl::OkStatus();
}

// Fails unless every tensor's extents, over all files, cover it exactly once.
absl::Status CheckTensors(const Manifest& manifest) {
  std::map<std::string, std::map<int64_t, const TensorExtent*>> tensors;  // by first element
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      if (!tensors[extent.name()].emplace(extent.first_element(), &extent).second) {
        return DataLoss("'", extent.name(), "' is stored twice");
      }
    }
  }
  for (const auto& [name, extents] : tensors) {
    const TensorExtent& first = *extents.begin()->second;
    int64_t covered = 0;
    for (const auto& [first_element, extent] : extents) {
      const bool same_shape = std::ranges::equal(extent->shape(), first.shape());
      if (first_element != covered || !same_shape) break;
      covered += extent->num_elements();
    }
    if (covered != CheckedElements(first.shape())) {
      return DataLoss("the parts of '", name, "' do not make a whole");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const Manifest& manifest) {
  if (manifest.format_version() != kFormatVersion) {
    return FailedPrecondition("format_version is ", manifest.format_version(),
                              "; this program reads ", kFormatVersion);
  }
  if (manifest.block_bytes() <= 0 || manifest.block_bytes() > kMaxBlockBytes) {
    return DataLoss("block_bytes is ", manifest.block_bytes());
  }
  std::set<std::string> names;
  for (const ShardFile& file : manifest.files()) {
    RETURN_IF_ERROR(CheckFile(file, manifest.block_bytes()));
    if (!names.insert(file.file()).second) {
      return DataLoss(file.file(), " is listed twice");
    }
  }
  return CheckTensors(manifest);
}

// No call reads or writes more: what fits into the processor's cache is written two to four times
// as fast as complete blocks.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

std::string NameTensors(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return "no tensor";
  const std::string first = absl::StrCat("'", tensors.front(), "'");
  return tensors.size() == 1 ? first : absl::StrCat(first, " and ", tensors.size() - 1, " more");
}

}  // namespace

std::string TensorFileName(int index, int count) {
  return absl::StrFormat("tensors-%05d-of-%05d.bin", index, count);
}

std::string SerializeManifest(const Manifest& manifest) {
  Manifest without_checksum = manifest;
  without_checksum.clear_manifest_crc32c();
  std::string bytes = ToBytes(without_checksum);
  const uint32_t checksum = Crc32c(bytes);
  bytes.append(kChecksumTag);
  return bytes + LittleEndian(checksum);
}

absl::StatusOr<Manifest> ParseManifest(std::string_view bytes) {
  if (bytes.size() < kTrailerBytes) {
    return DataLoss("it has only ", bytes.size(), " bytes");
  }
  const std::string_view contents = bytes.substr(0, bytes.size() - kTrailerBytes);
  const std::string_view trailer = bytes.substr(contents.size());
  const std::string expected = std::string(kChecksumTag) + LittleEndian(Crc32c(contents));
  if (trailer != expected) return absl::DataLossError("its checksum is wrong");
  Manifest manifest;
  if (!manifest.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("it is no Manifest");
  }
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

absl::Status WriteVocabularyFile(FileSystem& fs, const std::string& run_folder,
                                 const std::string& name, const std::string& contents) {
  RETURN_IF_ERROR(fs.MakeFolder(run_folder));
  const std::string path = JoinPath(run_folder, name);
  const absl::StatusOr<std::string> there =
      ReadWholeFile(fs, path, static_cast<int64_t>(contents.size()));
  if (there.ok() && *there == contents) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool is_run, Exists(fs, JoinPath(run_folder, kMetricsFile)));
  if (absl::IsNotFound(there.status()) || is_run) return ReplaceFile(fs, path, contents);
  return WithExitCode(
      absl::AlreadyExistsError(absl::StrCat(
          "'", path, "' is there, is another one and would be replaced; name another folder")),
      ExitCode::kBadConfig);
}

int64_t CheckedElements(const google::protobuf::RepeatedField<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size <= 0 || __builtin_mul_overflow(elements, size, &elements)) return -1;
  }
  return elements;
}

absl::Status BlockWriter::Append(std::string_view bytes) {
  description_.set_bytes(description_.bytes() + static_cast<int64_t>(bytes.size()));
  while (!bytes.empty()) {
    const size_t room =
        std::min<size_t>(kPieceBytes, block_bytes_ - block_written_) - buffer_.size();
    const std::string_view piece = bytes.substr(0, room);
    bytes.remove_prefix(piece.size());
    if (buffer_.empty() && piece.size() == room) {
      RETURN_IF_ERROR(Write(piece));
      continue;
    }
    buffer_.append(piece);
    if (piece.size() < room) break;
    RETURN_IF_ERROR(Write(buffer_));
    buffer_.clear();
  }
  return absl::OkStatus();
}

absl::Status BlockWriter::Finish() {
  if (!buffer_.empty()) RETURN_IF_ERROR(Write(buffer_));
  if (block_written_ > 0) EndBlock();
  return absl::OkStatus();
}

absl::Status BlockWriter::Write(std::string_view bytes) {
  RETURN_IF_ERROR(file_.Append(bytes));
  block_crc_ = Crc32c(bytes, block_crc_);
  block_written_ += bytes.size();
  if (block_written_ == block_bytes_) EndBlock();
  return absl::OkStatus();
}

void BlockWriter::EndBlock() {
  description_.add_block_crc32c(block_crc_);
  block_crc_ = 0;
  block_written_ = 0;
}

int64_t BlockReader::End(int64_t block) const {
  return std::min(Begin(block) + block_bytes_, file_.bytes());
}

absl::Status BlockReader::CheckSize() {
  ASSIGN_OR_RETURN(const int64_t bytes, fs_.Size(path_));
  if (bytes == file_.bytes()) return absl::OkStatus();
  return DataLoss("'", path_, "' has ", bytes, " bytes; its manifest says ", file_.bytes());
}

absl::Status BlockReader::Read(int64_t block, std::span<char> into) {
  const int64_t begin = Begin(block), end = End(block);
  DEEPNET_CHECK(into.empty() || std::ssize(into) == end - begin) << path_ << ", block " << block;
  std::vector<char> buffer(
      static_cast<size_t>(into.empty() ? std::min(kPieceBytes, end - begin) : 0));
  uint32_t checksum = 0;
  int64_t at = begin;
  while (at < end) {
    const size_t wanted = static_cast<size_t>(std::min(kPieceBytes, end - at));
    const std::span<char> piece = into.empty()
                                      ? std::span(buffer).first(wanted)
                                      : into.subspan(static_cast<size_t>(at - begin), wanted);
    ASSIGN_OR_RETURN(const int64_t read, fs_.ReadAt(path_, at, piece));
    checksum = Crc32c({piece.data(), static_cast<size_t>(read)}, checksum);
    at += read;
    if (read < std::ssize(piece)) break;
  }
  const uint32_t expected = file_.block_crc32c(static_cast<int>(block));
  if (at == end && checksum == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "'%s' is damaged in block %d (bytes %d to %d): checksum %08x, its manifest says %08x; %s is "
      "stored there",
      path_, block, begin, end - 1, checksum, expected, NameTensors(TensorsIn(file_, begin, end))));
}

std::vector<std::string> TensorsIn(const ShardFile& file, int64_t begin, int64_t end) {
  std::vector<std::string> names;
  for (const TensorExtent& extent : file.extents()) {
    const int64_t extent_end = extent.offset() + extent.num_elements() * kElementBytes;
    if (extent.offset() >= end || extent_end <= begin) continue;
    if (std::find(names.begin(), names.end(), extent.name()) == names.end()) {
      names.push_back(extent.name());
    }
  }
  return names;
}

}  // namespace deepnet
