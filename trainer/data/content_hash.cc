// Words of eight bytes are folded in by a 64 x 64 -> 128 bit product whose halves are added without
// carry; the last word is padded with zeros and the length enters the start.
#include "trainer/data/content_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace deepnet {
namespace {

static_assert(std::endian::native == std::endian::little, "corpora are little-endian");

constexpr size_t kBlockBytes = 1 << 16;
constexpr uint64_t kStart = 0x9E3779B97F4A7C15ULL;
constexpr uint64_t kFactor = 0xD6E8FEB86659FD93ULL;

uint64_t Fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t HashBytes(std::string_view bytes, uint64_t seed) {
  uint64_t hash = Fold(seed ^ kStart, bytes.size() ^ kFactor);
  while (!bytes.empty()) {
    const size_t count = std::min<size_t>(bytes.size(), sizeof(uint64_t));
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), count);
    hash = Fold(hash ^ word, kFactor) + kStart;
    bytes.remove_prefix(count);
  }
  return Fold(hash ^ (hash >> 32), kStart);
}

void ContentHasher::Update(std::string_view bytes) {
  if (!pending_.empty()) {
    const size_t count = std::min(bytes.size(), kBlockBytes - pending_.size());
    pending_.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    if (pending_.size() < kBlockBytes) return;
    hash_ = HashBytes(pending_, hash_);
    pending_.clear();
  }
  for (; bytes.size() >= kBlockBytes; bytes.remove_prefix(kBlockBytes)) {
    hash_ = HashBytes(bytes.substr(0, kBlockBytes), hash_);
  }
  pending_.assign(bytes);
}

uint64_t ContentHasher::Digest() const { return HashBytes(pending_, hash_); }

uint64_t HashContent(std::string_view bytes) {
  ContentHasher hasher;
  hasher.Update(bytes);
  return hasher.Digest();
}

}  // namespace deepnet
