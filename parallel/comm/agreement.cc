#include "parallel/comm/agreement.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "proto/plan.pb.h"

namespace deepnet {
namespace {

constexpr size_t kShownCharacters = 80;
constexpr char kAgreedPayload[] = "deepnet/agreed";

absl::Status Agreed(absl::Status status) {
  status.SetPayload(kAgreedPayload, absl::Cord(""));
  return status;
}

// A status as text: code, exit code and message, each on its own line.
std::string Pack(const absl::Status& status) {
  if (status.ok()) return "";
  return absl::StrCat(static_cast<int>(status.code()), "\n", static_cast<int>(GetExitCode(status)),
                      "\n", status.message());
}

absl::Status Unpack(const std::string& text, const std::string& prefix) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  return Agreed(WithExitCode(absl::Status(static_cast<absl::StatusCode>(std::stoi(parts[0])),
                                          absl::StrCat(prefix, parts[2])),
                             static_cast<ExitCode>(std::stoi(parts[1]))));
}

bool Alike(const std::vector<std::string>& texts) {
  return std::count(texts.begin(), texts.end(), texts[0]) == std::ssize(texts);
}

// "rank 2 (host b)", "ranks 2, 5 (hosts b, c)".
std::string NameRanks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (std::find(names.begin(), names.end(), hosts[rank]) == names.end()) {
      names.push_back(hosts[rank]);
    }
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                      names.size() == 1 ? " (host " : " (hosts ", absl::StrJoin(names, ", "), ")");
}

// Returns the first line in which the two differ, cut to a length that can be read.
std::pair<std::string, std::string> FirstDifference(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = absl::StrSplit(a, '\n'), right = absl::StrSplit(b, '\n');
  size_t line = 0;
  while (line + 1 < std::min(left.size(), right.size()) && left[line] == right[line]) ++line;
  const auto shown = [](const std::string& text) {
    std::string trimmed(absl::StripAsciiWhitespace(text));
    if (trimmed.size() <= kShownCharacters) return trimmed;
    return absl::StrCat(trimmed.substr(0, kShownCharacters), "...");
  };
  return {shown(left[line]), shown(right[line])};
}

absl::Status AgreedError(const std::string& message) {
  return Agreed(PreflightError("preflight: ", message));
}

// The error where values differ. The most frequent value (of the lowest rank among equals) is taken
// to be the one that was meant.
absl::Status Disagreement(const std::string& name, const std::vector<std::string>& values,
                          const std::vector<std::string>& hosts) {
  std::map<std::string, std::vector<int>> holders;
  for (size_t rank = 0; rank < values.size(); ++rank) holders[values[rank]].push_back(rank);
  const auto meant = std::max_element(holders.begin(), holders.end(), [](auto& a, auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                              : a.second.front() > b.second.front();
  });
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : holders) {
    if (value == meant->first) continue;
    const auto [others, theirs] = FirstDifference(meant->first, value);
    parts.push_back(
        absl::StrFormat("%s: '%s', the others '%s'", NameRanks(ranks, hosts), theirs, others));
  }
  return AgreedError(
      absl::StrCat(name, " is not the same on all ranks: ", absl::StrJoin(parts, "; ")));
}

// Returns every rank's text, in rank order: on rank 0, or on all.
absl::StatusOr<std::vector<std::string>> ExchangeTexts(Communicator& comm, std::string_view mine,
                                                       bool to_all) {
  ASSIGN_OR_RETURN(const std::vector<size_t> lengths, AllGatherValue(comm, mine.size()));
  std::string own(mine);
  std::vector<std::string> texts(comm.size());
  std::vector<Buffer> send(comm.size()), receive(comm.size());
  send[0] = Buffer::Of(std::span(own));
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (to_all || comm.rank() == 0) texts[rank].resize(lengths[rank]);
    receive[rank] = Buffer::Of(std::span(texts[rank]));
  }
  RETURN_IF_ERROR(Finish(to_all ? comm.AllGather(send[0], receive) : comm.AllToAll(send, receive)));
  return texts;
}

}  // namespace

absl::Status AgreeOnStatus(Communicator& comm, const absl::Status& mine) {
  ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherText(comm, Pack(mine)));
  const auto failed = std::find_if(all.begin(), all.end(), [](auto& text) { return text != ""; });
  if (failed == all.end()) return absl::OkStatus();
  return Unpack(*failed, Alike(all) ? "" : absl::StrCat("rank ", failed - all.begin(), ": "));
}

bool IsAgreed(const absl::Status& status) { return status.GetPayload(kAgreedPayload).has_value(); }

void EndJobUnlessAgreed(Communicator& world, const absl::Status& status) {
  if (!status.ok() && world.size() > 1 && !IsAgreed(status)) EndJob(world, status);
}

absl::StatusOr<std::vector<std::string>> AllGatherText(Communicator& comm, std::string_view mine) {
  return ExchangeTexts(comm, mine, /*to_all=*/true);
}

absl::StatusOr<std::vector<std::string>> GatherText(Communicator& comm, std::string_view mine) {
  return ExchangeTexts(comm, mine, /*to_all=*/false);
}

absl::StatusOr<std::string> BroadcastText(Communicator& comm, std::string_view text, int root) {
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   AllGatherText(comm, comm.rank() == root ? text : ""));
  return std::move(all[root]);
}

absl::Status BroadcastMessage(Communicator& comm, google::protobuf::Message& message, int root) {
  ASSIGN_OR_RETURN(const std::string sent, BroadcastText(comm, ToBytes(message), root));
  return ParseSent(sent, message);
}

absl::Status CheckSameEverywhere(Communicator& comm, std::span<const Fact> facts) {
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(comm, HostName()));
  for (const Fact& fact : facts) {
    ASSIGN_OR_RETURN(const std::vector<std::string> values, AllGatherText(comm, fact.value));
    if (!Alike(values)) return Disagreement(fact.name, values, hosts);
  }
  return absl::OkStatus();
}

absl::Status CheckSameFolder(Communicator& comm, FileSystem& fs, const std::string& folder) {
  if (comm.size() == 1) {
    return AgreeOnStatus(comm, WithExitCode(fs.MakeFolder(folder), ExitCode::kPreflight));
  }
  const std::string path = JoinPath(folder, ".seen-by-all-ranks");
  std::string token;
  absl::Status written;
  if (comm.rank() == 0) {
    token = absl::StrFormat("%08x%08x", std::random_device{}(), std::random_device{}());
    written = fs.MakeFolder(folder);
    if (written.ok()) written = ReplaceFile(fs, path, token);
    written = WithExitCode(written, ExitCode::kPreflight);
  }
  RETURN_IF_ERROR(AgreeOnStatus(comm, written));
  ASSIGN_OR_RETURN(token, BroadcastText(comm, token, 0));
  const absl::StatusOr<std::string> seen = ReadWholeFile(fs, path, 1024);
  ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                   AllGatherText(comm, seen.ok() && *seen == token ? "yes" : "no"));
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(comm, HostName()));
  if (comm.rank() == 0) fs.Delete(path).IgnoreError();  // it is in nobody's way
  ASSIGN_OR_RETURN(const std::string named, BroadcastText(comm, folder, 0));
  std::vector<int> blind;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (answers[rank] == "no") blind.push_back(rank);
  }
  if (blind.empty()) return absl::OkStatus();
  return AgreedError(absl::StrCat(named, ": ", NameRanks(blind, hosts),
                                  " does not see what rank 0 wrote there; the run folder must be "
                                  "on a file system that all hosts share"));
}

std::vector<std::string> JobHosts::CoresHere() const {
  std::vector<std::string> here;
  for (size_t other = 0; other < names.size(); ++other) {
    if (names[other] == names[rank]) here.push_back(cores[other]);
  }
  return here;
}

int JobHosts::Threads() const { return ThreadsPerRank(CoresHere(), cores[rank]); }

int JobHosts::RanksBefore() const {
  return static_cast<int>(std::count(names.begin(), names.begin() + rank, names[rank]));
}

int JobHosts::RanksHere() const { return static_cast<int>(std::ranges::count(names, names[rank])); }

absl::StatusOr<JobHosts> GatherHosts(Communicator& world) {
  JobHosts hosts{.rank = world.rank(), .names = {}, .cores = {}};
  ASSIGN_OR_RETURN(hosts.names, AllGatherText(world, HostName()));
  ASSIGN_OR_RETURN(hosts.cores, AllGatherText(world, UsableCoreList()));
  return hosts;
}

ClusterSpec WithNodes(ClusterSpec cluster, const std::vector<std::string>& hosts) {
  if (cluster.nodes() != 0 || cluster.devices_per_node() != 0) return cluster;
  const auto ranks = static_cast<int>(hosts.size());
  const auto distinct = static_cast<int>(std::set(hosts.begin(), hosts.end()).size());
  cluster.set_nodes(ranks % distinct == 0 ? distinct : 1);
  cluster.set_devices_per_node(ranks / cluster.nodes());
  return cluster;
}

int NumRanks(const ClusterSpec& cluster) {
  return std::max(1, cluster.nodes()) * std::max(1, cluster.devices_per_node());
}

}  // namespace deepnet
