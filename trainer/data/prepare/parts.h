// The finished pieces of a preparation, kept in its scratch folder; those of a finished corpus,
// whose blocks another preparation may take over.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/prepare.pb.h"

namespace deepnet {

inline constexpr char kClaimEnd[] = ".claim";  // of a file's name
inline constexpr char kPartsFile[] = "parts.textproto";

// Returns the hash of a list of texts, which are what decides a part.
uint64_t KeyOf(std::span<const std::string> facts);

// Parts in a folder that all ranks see: files, and beside them a note that says they are complete.
class PartStore {
 public:
  explicit PartStore(std::string folder) : folder_(std::move(folder)) {}

  // Returns the part `name`, if it was kept with this key and its files are as they were.
  std::optional<PreparedPart> Find(std::string_view name, uint64_t key) const;

  // Keeps a part whose files are in the folder and durable. Atomic.
  absl::Status Keep(std::string_view name, const PreparedPart& part) const;

  // Returns true to one of all callers on all ranks, the first: the part is its to make. A claim
  // lasts until its file is removed (kClaimEnd).
  absl::StatusOr<bool> Claim(std::string_view name) const;

  std::string Path(std::string_view name) const;

 private:
  const std::string folder_;
};

// A block among the pairs of a finished corpus.
struct EarlierPart {
  PreparedPart part;
  int64_t first_pair = 0;  // in its shard
};

// Returns the encoded blocks of the corpus in `folder` by key; none if their list or the manifest
// is missing or damaged. The shards that hold them are not looked at.
std::map<uint64_t, EarlierPart> ReadEarlierParts(const std::string& folder);

// Deals pieces of work of these costs to ranks: the largest first, each to the rank that has least.
// Returns the rank of each.
std::vector<int> Deal(std::span<const int64_t> costs, int num_ranks);

// Returns in which order `rank` tries to claim pieces that were dealt to `owners`: its own, then
// those of others from the last one on, which they come to last.
std::vector<size_t> ClaimOrder(const std::vector<int>& owners, int rank);

}  // namespace deepnet
