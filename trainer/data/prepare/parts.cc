#include "trainer/data/prepare/parts.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

#include "parallel/base/file_system.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxPartsBytes = int64_t{256} << 20;  // of a note or of a corpus's list
constexpr size_t kDigestSize = 16;

std::string WithDigest(const std::string& note) {
  return absl::StrCat(note, absl::Hex(HashBytes(note), absl::kZeroPad16));
}

}  // namespace

uint64_t KeyOf(std::span<const std::string> facts) {
  uint64_t key = 0;
  for (const std::string& fact : facts) key = HashBytes(fact, key);
  return key;
}

std::string PartStore::Path(std::string_view name) const { return JoinPath(folder_, name); }

std::optional<PreparedPart> PartStore::Find(std::string_view name, uint64_t key) const {
  const auto fs = MakePosixFileSystem();
  const auto note = ReadWholeFile(*fs, absl::StrCat(Path(name), ".part"), kMaxPartsBytes);
  if (!note.ok() || note->size() < kDigestSize) return std::nullopt;
  const std::string text = note->substr(0, note->size() - kDigestSize);
  PreparedPart part;
  if (*note != WithDigest(text) || !part.ParseFromString(text) || part.key() != key) {
    return std::nullopt;
  }
  for (const CorpusFile& file : part.files()) {
    if (!IsFileName(file.name())) return std::nullopt;
    const auto bytes = fs->Size(Path(file.name()));
    if (!bytes.ok() || *bytes != file.bytes()) return std::nullopt;
    const auto hash = HashFile(Path(file.name()));
    if (!hash.ok() || *hash != file.hash()) return std::nullopt;
  }
  return part;
}

absl::Status PartStore::Keep(std::string_view name, const PreparedPart& part) const {
  const auto fs = MakePosixFileSystem();
  return ReplaceFile(*fs, absl::StrCat(Path(name), ".part"), WithDigest(ToBytes(part)));
}

absl::StatusOr<bool> PartStore::Claim(std::string_view name) const {
  const absl::Status created =
      MakePosixFileSystem()->CreateNew(absl::StrCat(Path(name), kClaimEnd)).status();
  if (absl::IsAlreadyExists(created)) return false;
  RETURN_IF_ERROR(created);
  return true;
}

std::map<uint64_t, EarlierPart> ReadEarlierParts(const std::string& folder) {
  const auto manifest = ReadManifest(folder);
  const auto text =
      ReadWholeFile(*MakePosixFileSystem(), JoinPath(folder, kPartsFile), kMaxPartsBytes);
  CorpusParts parts;
  if (!manifest.ok() || !text.ok() || !ParseTextProto(*text, &parts)) return {};
  const auto note = std::ranges::find(manifest->notes(), kPartsFile, &CorpusFile::name);
  if (note != manifest->notes().end() && note->hash() != HashContent(*text)) return {};
  std::map<uint64_t, EarlierPart> by_key;
  std::map<std::string, int64_t> num_pairs;  // of each shard so far
  for (PreparedPart& part : *parts.mutable_parts()) {
    if (part.files().empty() || !IsFileName(part.files(0).name())) return {};
    const int64_t first_pair = num_pairs[part.files(0).name()];
    num_pairs[part.files(0).name()] += part.counts().kept();
    const uint64_t key = part.key();
    by_key[key] = {std::move(part), first_pair};
  }
  return by_key;
}

std::vector<int> Deal(std::span<const int64_t> costs, int num_ranks) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> loads(static_cast<size_t>(num_ranks), 0);
  std::vector<int> ranks(costs.size());
  for (const size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += costs[i];
    ranks[i] = static_cast<int>(least - loads.begin());
  }
  return ranks;
}

std::vector<size_t> ClaimOrder(const std::vector<int>& owners, int rank) {
  std::vector<size_t> order;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] == rank) order.push_back(i);
  }
  for (size_t i = owners.size(); i-- > 0;) {
    if (owners[i] != rank) order.push_back(i);
  }
  return order;
}

}  // namespace deepnet
