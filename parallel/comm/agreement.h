// Texts, messages and hosts that ranks tell each other, and checks that they make before they rely
// on each other. Collective and blocking; every rank gets the same answer, and an error of a check
// is marked as one that all know of (IsAgreed), so that it is printed once.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <google/protobuf/message.h>

#include "parallel/base/file_system.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"

namespace deepnet {

class ClusterSpec;

// Returns OK if `mine` is OK on every rank; else the status of the first rank where it is not, with
// its exit code, and with "rank R: " in front where ranks differ.
absl::Status AgreeOnStatus(Communicator& comm, const absl::Status& mine);

// Returns `mine` if it is OK on every rank; else the error of AgreeOnStatus.
template <typename T>
absl::StatusOr<T> AgreeOn(Communicator& comm, absl::StatusOr<T> mine) {
  RETURN_IF_ERROR(AgreeOnStatus(comm, mine.status()));
  return mine;
}

// Returns true if every rank of the group got this very error from a function of this header.
bool IsAgreed(const absl::Status& status);

// EndJob for an error that not all ranks agreed on; does nothing for OK or for a rank alone.
void EndJobUnlessAgreed(Communicator& world, const absl::Status& status);

// Returns every rank's text (any bytes, any length), in rank order: AllGatherText on every rank,
// GatherText on rank 0, and empty texts elsewhere.
absl::StatusOr<std::vector<std::string>> AllGatherText(Communicator& comm, std::string_view mine);
absl::StatusOr<std::vector<std::string>> GatherText(Communicator& comm, std::string_view mine);

// Returns `text` of rank `root` (any bytes) on every rank.
absl::StatusOr<std::string> BroadcastText(Communicator& comm, std::string_view text, int root);

// Replaces `message` by that of rank `root` on every rank, as ToBytes (messages.h) sends it.
absl::Status BroadcastMessage(Communicator& comm, google::protobuf::Message& message, int root);

// Returns every rank's message on every rank, in rank order, likewise.
template <typename Message>
absl::StatusOr<std::vector<Message>> AllGatherMessages(Communicator& comm, const Message& mine) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, AllGatherText(comm, ToBytes(mine)));
  std::vector<Message> all(texts.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    RETURN_IF_ERROR(ParseSent(texts[rank], all[rank]));
  }
  return all;
}

// Something that must be the same on every rank.
struct Fact {
  std::string name;   // "RunSpec"
  std::string value;  // may have many lines; an error shows the first that differs
};

// Every rank gives the same facts in the same order. FailedPrecondition (ExitCode::kPreflight)
// names the first whose values are not equal everywhere, the ranks and hosts that are in the
// minority, and both values.
absl::Status CheckSameEverywhere(Communicator& comm, std::span<const Fact> facts);

// Checks that `folder` (made if missing) is one folder for all ranks. FailedPrecondition
// (ExitCode::kPreflight) names the ranks and hosts that do not see what rank 0 writes into it.
absl::Status CheckSameFolder(Communicator& comm, FileSystem& fs, const std::string& folder);

// The hosts of a job: which of its ranks share one, and with it its cores.
struct JobHosts {
  int rank = 0;                    // this one
  std::vector<std::string> names;  // HostName of every rank
  std::vector<std::string> cores;  // UsableCoreList of every rank

  // Returns the cores of the ranks of this host, this one's included.
  std::vector<std::string> CoresHere() const;
  // Returns this rank's share of the cores that it may use (ThreadsPerRank).
  int Threads() const;
  // Returns how many ranks of this host come before this one, and how many it has.
  int RanksBefore() const;
  int RanksHere() const;
};

// Collective.
absl::StatusOr<JobHosts> GatherHosts(Communicator& world);

// Returns `cluster`, where it gives neither nodes nor devices_per_node, with those of the job whose
// ranks are on `hosts`: one node where not all hosts have as many ranks.
ClusterSpec WithNodes(ClusterSpec cluster, const std::vector<std::string>& hosts);

// Returns nodes x devices_per_node, each at least 1.
int NumRanks(const ClusterSpec& cluster);

}  // namespace deepnet
