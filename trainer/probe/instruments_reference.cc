#include "trainer/probe/instruments_reference.h"

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr char kMagic[] = "deepnet-model-update-1";
constexpr int64_t kMostBytes = int64_t{4} << 30;

template <typename T>
std::string_view BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::string HeadOf(const std::string& identity, int64_t tokens, int64_t width) {
  return absl::StrCat(kMagic, " ", identity, " ", tokens, " ", width, "\n");
}

absl::Status Unusable(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": not of this run, or damaged"));
}

// The rows behind a head that is right.
absl::StatusOr<OutputRows> Parse(const std::string& path, std::string_view bytes,
                                 const std::string& identity) {
  const size_t line = bytes.find('\n');
  if (line == bytes.npos) return Unusable(path);
  const std::vector<std::string> words = absl::StrSplit(std::string(bytes.substr(0, line)), ' ');
  OutputRows rows;
  if (words.size() != 4 || words[0] != kMagic || words[1] != identity ||
      !absl::SimpleAtoi(words[2], &rows.tokens) || !absl::SimpleAtoi(words[3], &rows.width)) {
    return Unusable(path);
  }
  const std::string_view values = bytes.substr(line + 1);
  const bool positive = rows.tokens > 0 && rows.width > 0 && rows.tokens < kMostBytes / rows.width;
  if (!positive || values.size() != sizeof(float) * static_cast<size_t>(rows.tokens * rows.width)) {
    return Unusable(path);
  }
  rows.values.resize(values.size() / sizeof(float));
  std::memcpy(rows.values.data(), values.data(), values.size());
  return rows;
}

}  // namespace

std::string ReferenceIdentity(const std::string& inventory_hash, uint64_t seed,
                              const Microbatch& x) {
  uint32_t crc = 0;
  for (const PackedSide* side : {&x.source, &x.target}) {
    crc = Crc32c(BytesOf(std::span<const int32_t>(side->tokens)), crc);
    crc = Crc32c(BytesOf(std::span<const int32_t>(side->offsets)), crc);
  }
  return absl::StrCat(inventory_hash, "-", seed, "-", absl::Hex(crc, absl::kZeroPad8));
}

absl::Status WriteReference(FileSystem& fs, const std::string& path, const std::string& identity,
                            const OutputRows& rows) {
  std::string bytes = HeadOf(identity, rows.tokens, rows.width);
  bytes += BytesOf(std::span<const float>(rows.values));
  const uint32_t crc = Crc32c(bytes);
  bytes += BytesOf(std::span(&crc, 1));
  return WithExitCode(ReplaceFile(fs, path, bytes), ExitCode::kCheckpoint);
}

absl::StatusOr<OutputRows> ReadReference(FileSystem& fs, const std::string& path,
                                         const std::string& identity) {
  const absl::StatusOr<std::string> bytes = ReadWholeFile(fs, path, kMostBytes);
  uint32_t crc = 0;
  if (!bytes.ok() || bytes->size() < sizeof(crc)) return Unusable(path);
  const std::string_view checked = std::string_view(*bytes).substr(0, bytes->size() - sizeof(crc));
  std::memcpy(&crc, bytes->data() + checked.size(), sizeof(crc));
  if (Crc32c(checked) != crc) return Unusable(path);
  return Parse(path, checked, identity);
}

}  // namespace deepnet
