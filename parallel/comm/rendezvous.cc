// Rank 0 collects: a key per rank, and one for the list of all, so that n ranks ask the store for
// n + n keys. Whoever sees a mistake writes it under kFailed, which everybody who waits looks at.
#include "parallel/comm/rendezvous.h"

#include <algorithm>
#include <optional>
#include <utility>

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
constexpr absl::Duration kStoreWait = absl::Milliseconds(500);
// Rank 0 stays for others to hear of an error.
constexpr absl::Duration kStay = absl::Seconds(3);
// The others wait longer than rank 0, which knows who is missing.
constexpr absl::Duration kMembersGrace = absl::Seconds(2);

std::string ClaimKey(int rank) { return absl::StrCat("claim/", rank); }
std::string RankKey(int rank) { return absl::StrCat("rank/", rank); }

// A rank's own words: its number of ranks, a tab, its text.
std::pair<std::string, std::string> SplitRecord(const std::string& record) {
  return absl::StrSplit(record, absl::MaxSplits('\t', 1));
}

// "h3 process 77".
std::string Who(const std::string& text) { return text.substr(0, text.find('\t')); }

absl::Status WrongSize(int rank, const std::string& text, const std::string& size, int other) {
  return PreflightError("rank ", rank, " (", Who(text), ") was started as one of ", size,
                        " ranks, rank 0 as one of ", other,
                        ": WORLD_SIZE must be the same everywhere");
}

// "rank 2 of 4", "ranks 2, 3 of 4": the first of many.
std::string RanksText(const std::vector<int>& ranks, int size) {
  constexpr size_t kMaxShown = 8;
  const std::vector<int> shown(ranks.begin(), ranks.begin() + std::min(kMaxShown, ranks.size()));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(shown, ", "),
                      shown.size() < ranks.size() ? ", ..." : "", " of ", size);
}

// Says for whom this rank waits.
void SayForWhom(const TcpOptions& options) {
  std::vector<int> missing;
  for (int other = 0; other < (options.rank == 0 ? options.size : 1); ++other) {
    const auto text = options.store->Get(RankKey(other), absl::Milliseconds(1));
    if (!text.ok()) missing.push_back(other);
  }
  const std::string whom =
      missing.empty() ? "the others, as rank 0 does" : RanksText(missing, options.size);
  options.say(absl::StrCat(whom, " at ", options.store->Place()));
}

// Returns the value of `key`, or nothing after `deadline`; the error of another rank if there is
// one. From `say_at` on it says for whom this rank waits.
absl::StatusOr<std::optional<std::string>> Await(const TcpOptions& options, const std::string& key,
                                                 absl::Time deadline, absl::Time& say_at) {
  while (true) {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::Milliseconds(1));
    absl::StatusOr<std::string> value = options.store->Get(key, std::min(left, kStoreWait));
    if (value.ok()) return *std::move(value);
    if (!absl::IsDeadlineExceeded(value.status())) return value.status();
    RETURN_IF_ERROR(CheckRendezvous(*options.store));
    if (absl::Now() >= deadline) return std::nullopt;
    if (options.say == nullptr || absl::Now() < say_at) continue;
    say_at = absl::Now() + absl::Minutes(1);
    SayForWhom(options);
  }
}

// Rank 0: everybody's text, by rank.
absl::StatusOr<std::vector<std::string>> Collect(const TcpOptions& options) {
  absl::Time say_at = absl::Now() + kSayWaitingAfter;
  const absl::Time deadline = absl::Now() + options.limit;
  std::vector<std::string> texts;
  std::vector<int> missing;
  for (int rank = 0; rank < options.size; ++rank) {
    ASSIGN_OR_RETURN(const std::optional<std::string> value,
                     Await(options, RankKey(rank), deadline, say_at));
    if (!value) {
      missing.push_back(rank);
      continue;
    }
    const auto [size, text] = SplitRecord(*value);
    if (size != absl::StrCat(options.size)) return WrongSize(rank, text, size, options.size);
    texts.push_back(text);
  }
  if (!missing.empty()) {
    return PreflightError(RanksText(missing, options.size), " did not come to ",
                          options.store->Place(), " within ", absl::FormatDuration(options.limit));
  }
  RETURN_IF_ERROR(options.store->Set(kMembers, absl::StrJoin(texts, "\n")));
  return texts;
}

// Other ranks: the same, from rank 0.
absl::StatusOr<std::vector<std::string>> Learn(const TcpOptions& options, const std::string& mine) {
  absl::Time say_at = absl::Now() + kSayWaitingAfter;
  ASSIGN_OR_RETURN(const std::optional<std::string> members,
                   Await(options, kMembers, absl::Now() + options.limit + kMembersGrace, say_at));
  if (!members) {
    return PreflightError("rank 0 did not come to ", options.store->Place(), " within ",
                          absl::FormatDuration(options.limit), ", or still waits for others");
  }
  std::vector<std::string> texts = absl::StrSplit(*members, '\n');
  const int others = static_cast<int>(texts.size());
  if (others == options.size) return texts;
  return WrongSize(options.rank, mine, absl::StrCat(options.size), others);
}

absl::StatusOr<std::vector<std::string>> MeetOnce(const TcpOptions& options,
                                                  const std::string& mine) {
  RendezvousStore& store = *options.store;
  const int rank = options.rank;
  RETURN_IF_ERROR(store.Add(kCame, 1).status());
  ASSIGN_OR_RETURN(const int64_t claims, store.Add(ClaimKey(rank), 1));
  if (claims > 1) {
    const absl::StatusOr<std::string> first = store.Get(RankKey(rank), kStoreWait);
    return PreflightError("two processes are rank ", rank, ": ",
                          first.ok() ? Who(SplitRecord(*first).second) : "one before", " and ",
                          Who(mine), " (at ", store.Place(), ")");
  }
  RETURN_IF_ERROR(store.Set(RankKey(rank), absl::StrCat(options.size, "\t", mine)));
  return rank == 0 ? Collect(options) : Learn(options, mine);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Meet(const TcpOptions& options, const std::string& mine) {
  absl::StatusOr<std::vector<std::string>> all = MeetOnce(options, mine);
  if (!all.ok()) return FailRendezvous(options, all.status());
  return all;
}

absl::Status FailRendezvous(const TcpOptions& options, const absl::Status& error) {
  RendezvousStore& store = *options.store;
  if (absl::IsUnavailable(error)) {
    return PreflightError("the rendezvous at ", store.Place(),
                          " is gone, and rank 0 with it: ", std::string(error.message()));
  }
  absl::Status first = CheckRendezvous(store);
  if (first.ok()) {
    first = error;
    store.Set(kFailed, std::string(error.message())).IgnoreError();
  }
  store.Add(kHeard, 1).IgnoreError();
  const absl::Time deadline = absl::Now() + (options.rank == 0 ? kStay : absl::ZeroDuration());
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

void EndRendezvous(const TcpOptions& options) {
  RendezvousStore& store = *options.store;
  for (int rank = 0; rank < options.size; ++rank) {
    store.Delete(ClaimKey(rank)).IgnoreError();
    store.Delete(RankKey(rank)).IgnoreError();
  }
  for (const char* key : {kCame, kMembers}) store.Delete(key).IgnoreError();
}

}  // namespace deepnet
