// Rank 0 collects: a key per rank, and one for the list of all, so that n ranks ask the store for
// n + n keys. Whoever sees a mistake writes it under kFailed, which everybody who waits looks at.
#include "parallel/comm/rendezvous.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr char kFailed[] = "failed";    // the error's text
constexpr char kCame[] = "came";        // counts processes
constexpr char kHeard[] = "heard";      // counts those that know of the error
constexpr char kMembers[] = "members";  // the list of all ranks' texts

// A wait is cut into slices, between which a rank looks whether another one has failed.
constexpr absl::Duration kSlice = absl::Milliseconds(500);
// Rank 0 stays for others to hear of an error.
constexpr absl::Duration kStay = absl::Seconds(3);
// The others wait longer than rank 0, which knows who is missing.
constexpr absl::Duration kGrace = absl::Seconds(2);

std::string ClaimKey(int rank) { return absl::StrCat("claim/", rank); }
std::string RankKey(int rank) { return absl::StrCat("rank/", rank); }

// A rank's own words: its number of ranks, then its text.
struct Record {
  int size = 0;
  std::string text;
};

std::string ToText(const Record& record) { return absl::StrCat(record.size, "\t", record.text); }

Record ParseRecord(const std::string& text) {
  std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('\t', 1));
  Record record{.text = std::move(parts.second)};
  if (!absl::SimpleAtoi(parts.first, &record.size)) record.size = 0;
  return record;
}

// "h3 process 77".
std::string Who(const std::string& text) { return text.substr(0, text.find('\t')); }

absl::Status WrongSize(int rank, const std::string& text, int size, int other) {
  return PreflightError(absl::StrCat("rank ", rank, " (", Who(text), ") was started as one of ",
                                     size, " ranks, rank 0 as one of ", other,
                                     ": WORLD_SIZE must be the same everywhere"));
}

bool IsThere(RendezvousStore& store, int rank) {
  return store.Get(RankKey(rank), absl::Milliseconds(1)).ok();
}

// "rank 2 of 4", "ranks 2, 3 of 4": the first of many.
std::string RanksText(const std::vector<int>& ranks, int size) {
  constexpr size_t kMaxShown = 8;
  const std::vector<int> shown(ranks.begin(), ranks.begin() + std::min(kMaxShown, ranks.size()));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(shown, ", "),
                      shown.size() < ranks.size() ? ", ..." : "", " of ", size);
}

// Says now and then for whom this rank waits.
class Waiting {
 public:
  Waiting(RendezvousStore& store, int rank, int size, const SayWaiting& say)
      : store_(store), rank_(rank), size_(size), say_(say) {}

  void Tick() {
    if (say_ == nullptr || absl::Now() < next_) return;
    next_ = absl::Now() + absl::Minutes(1);
    std::vector<int> missing;
    for (int other = 0; other < (rank_ == 0 ? size_ : 1); ++other) {
      if (!IsThere(store_, other)) missing.push_back(other);
    }
    const std::string whom =
        missing.empty() ? "the others, as rank 0 does" : RanksText(missing, size_);
    say_(absl::StrCat(whom, " at ", store_.Place()));
  }

 private:
  RendezvousStore& store_;
  const int rank_, size_;
  const SayWaiting& say_;
  absl::Time next_ = absl::Now() + kSayWaitingAfter;
};

// Returns the value of `key`, or nothing after `deadline`; the error of another rank if there is
// one.
absl::StatusOr<std::optional<std::string>> Await(RendezvousStore& store, const std::string& key,
                                                 absl::Time deadline, Waiting& waiting) {
  while (true) {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::Milliseconds(1));
    absl::StatusOr<std::string> value = store.Get(key, std::min(left, kSlice));
    if (value.ok()) return *std::move(value);
    if (!absl::IsDeadlineExceeded(value.status())) return value.status();
    RETURN_IF_ERROR(CheckRendezvous(store));
    if (absl::Now() >= deadline) return std::nullopt;
    waiting.Tick();
  }
}

absl::Status Missing(const std::vector<int>& missing, int size, const std::string& place,
                     absl::Duration limit) {
  return PreflightError(absl::StrCat(RanksText(missing, size), " did not come to ", place,
                                     " within ", absl::FormatDuration(limit)));
}

// Rank 0: everybody's text, by rank.
absl::StatusOr<std::vector<std::string>> Collect(RendezvousStore& store, int size,
                                                 absl::Duration limit, Waiting& waiting) {
  const absl::Time deadline = absl::Now() + limit;
  std::vector<std::string> texts;
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    ASSIGN_OR_RETURN(std::optional<std::string> value,
                     Await(store, RankKey(rank), deadline, waiting));
    if (!value) {
      missing.push_back(rank);
      continue;
    }
    Record record = ParseRecord(*value);
    if (record.size != size) return WrongSize(rank, record.text, record.size, size);
    texts.push_back(std::move(record.text));
  }
  if (!missing.empty()) return Missing(missing, size, store.Place(), limit);
  RETURN_IF_ERROR(store.Set(kMembers, absl::StrJoin(texts, "\n")));
  return texts;
}

// Other ranks: the same, from rank 0.
absl::StatusOr<std::vector<std::string>> Learn(RendezvousStore& store, int rank, int size,
                                               const std::string& mine, absl::Duration limit,
                                               Waiting& waiting) {
  ASSIGN_OR_RETURN(const std::optional<std::string> members,
                   Await(store, kMembers, absl::Now() + limit + kGrace, waiting));
  if (!members) {
    return PreflightError(absl::StrCat("rank 0 did not come to ", store.Place(), " within ",
                                       absl::FormatDuration(limit), ", or still waits for others"));
  }
  std::vector<std::string> texts = absl::StrSplit(*members, '\n');
  const int others = static_cast<int>(texts.size());
  if (others != size) return WrongSize(rank, mine, size, others);
  return texts;
}

absl::StatusOr<std::vector<std::string>> MeetOnce(RendezvousStore& store, int rank, int size,
                                                  const std::string& mine, absl::Duration limit,
                                                  const SayWaiting& say) {
  RETURN_IF_ERROR(store.Add(kCame, 1).status());
  ASSIGN_OR_RETURN(const int64_t claims, store.Add(ClaimKey(rank), 1));
  if (claims > 1) {
    const absl::StatusOr<std::string> first = store.Get(RankKey(rank), kSlice);
    return PreflightError(absl::StrCat("two processes are rank ", rank, ": ",
                                       first.ok() ? Who(ParseRecord(*first).text) : "one before",
                                       " and ", Who(mine), " (at ", store.Place(), ")"));
  }
  RETURN_IF_ERROR(store.Set(RankKey(rank), ToText({.size = size, .text = mine})));
  Waiting waiting(store, rank, size, say);
  return rank == 0 ? Collect(store, size, limit, waiting)
                   : Learn(store, rank, size, mine, limit, waiting);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Meet(RendezvousStore& store, int rank, int size,
                                              const std::string& mine, absl::Duration limit,
                                              const SayWaiting& say) {
  absl::StatusOr<std::vector<std::string>> all = MeetOnce(store, rank, size, mine, limit, say);
  if (!all.ok()) return FailRendezvous(store, rank, all.status());
  return all;
}

absl::Status FailRendezvous(RendezvousStore& store, int rank, const absl::Status& error) {
  if (absl::IsUnavailable(error)) {
    return PreflightError(
        absl::StrCat("the rendezvous at ", store.Place(),
                     " is gone, and rank 0 with it: ", std::string(error.message())));
  }
  absl::Status first = CheckRendezvous(store);
  if (first.ok()) {
    first = error;
    store.Set(kFailed, std::string(error.message())).IgnoreError();
  }
  store.Add(kHeard, 1).IgnoreError();
  const absl::Time deadline = absl::Now() + (rank == 0 ? kStay : absl::ZeroDuration());
  while (absl::Now() < deadline) {
    const absl::StatusOr<int64_t> came = store.Add(kCame, 0);
    const absl::StatusOr<int64_t> heard = store.Add(kHeard, 0);
    if (!came.ok() || !heard.ok() || *heard >= *came) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return first;
}

absl::Status CheckRendezvous(RendezvousStore& store) {
  const absl::StatusOr<std::string> failed = store.Get(kFailed, absl::Milliseconds(1));
  if (absl::IsDeadlineExceeded(failed.status())) return absl::OkStatus();
  RETURN_IF_ERROR(failed.status());
  return PreflightError(*failed);
}

void EndRendezvous(RendezvousStore& store, int size) {
  for (int rank = 0; rank < size; ++rank) {
    store.Delete(ClaimKey(rank)).IgnoreError();
    store.Delete(RankKey(rank)).IgnoreError();
  }
  for (const char* key : {kCame, kMembers}) store.Delete(key).IgnoreError();
}

}  // namespace deepnet
