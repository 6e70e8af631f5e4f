// A message is two posts, one of the sender and one of the receiver. Whoever posts second finds the
// other in the lane of (sender, receiver, tag), copies outside of the lock, and wakes the owner.
// One mutex guards all posts and lanes of a world; it is held for look-ups only.
#include "parallel/comm/thread_communicator.h"

#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/mutex.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using Message = MessageCommunicator::Message;

enum class State { kWaiting, kCopying, kDone, kSizesDiffer, kEnded };

// One message as one rank asked for it. Guarded by the world's mutex, except for the memory while
// kCopying.
struct Post : Message {
  explicit Post(const Message& message) : Message(message) {}

  State state = State::kWaiting;
  int64_t peer_bytes = 0;  // where kSizesDiffer
  CondVar changed;

  bool Finished() const { return state != State::kWaiting && state != State::kCopying; }
};

// The state that all ranks of the job share.
struct World {
  Mutex mutex;
  // All posts in kWaiting, so that the end can reach them.
  std::set<Post*> waiting ABSL_GUARDED_BY(mutex);
  bool ended ABSL_GUARDED_BY(mutex) = false;
  int exit_code ABSL_GUARDED_BY(mutex) = 0;
  std::string ended_by ABSL_GUARDED_BY(mutex);

  // The first end counts.
  void End(std::string who, int code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (ended) return;
    ended = true;
    exit_code = code;
    ended_by = std::move(who);
    for (Post* post : waiting) {
      post->state = State::kEnded;
      post->changed.NotifyAll();
    }
    waiting.clear();
  }

  absl::Status EndedStatus(const std::string& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return WithExitCode(absl::AbortedError(absl::StrCat(
                            call, ": ", ended_by, ", the job ends with exit code ", exit_code)),
                        static_cast<ExitCode>(exit_code));
  }
};

// The state that the ranks of one group share. Guarded by the world's mutex; constant: world,
// world_ranks.
struct Group {
  using Lane = std::tuple<int, int, int>;  // sender, receiver, tag
  struct Child {
    std::shared_ptr<Group> group;
    size_t num_joined = 0;
  };

  std::shared_ptr<World> world;
  std::vector<int> world_ranks;                             // of the members, in this group's order
  std::map<Lane, std::deque<std::shared_ptr<Post>>> lanes;  // in order; all of one kind; none empty
  std::map<std::pair<int, int>, Child> children;            // by (number of the split, colour)
};

class ThreadTransfer final : public Transfer {
 public:
  ThreadTransfer(std::shared_ptr<Group> group, std::shared_ptr<Post> post, int world_rank)
      : group_(std::move(group)),
        world_(*group_->world),
        post_(std::move(post)),
        world_rank_(world_rank) {}

  // A peer that copies at this moment is waited for: the memory may be freed afterwards.
  ~ThreadTransfer() override {
    const MutexLock lock(world_.mutex);
    post_->changed.Wait(world_.mutex, [&] { return post_->state != State::kCopying; });
    if (post_->state == State::kWaiting) {
      world_.End(absl::StrCat("rank ", world_rank_, " gave up ", post_->Text()),
                 static_cast<int>(ExitCode::kInternal));
    }
  }

  absl::Status Wait(absl::Duration limit) override {
    const MutexLock lock(world_.mutex);
    if (!post_->changed.WaitFor(world_.mutex, limit, [&] { return post_->Finished(); })) {
      return absl::DeadlineExceededError(
          absl::StrCat(post_->Text(), ": not finished after ", absl::FormatDuration(limit)));
    }
    if (post_->state == State::kEnded) return world_.EndedStatus(post_->Text());
    if (post_->state == State::kDone) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(post_->Text(), ": the peer states ", post_->peer_bytes, " B"));
  }

  bool Done() override {
    const MutexLock lock(world_.mutex);
    return post_->Finished();
  }

 private:
  const std::shared_ptr<Group> group_;  // keeps the world
  World& world_;
  const std::shared_ptr<Post> post_;
  const int world_rank_;
};

class ThreadCommunicator final : public MessageCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), world_(*group_->world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->world_ranks.size()); }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  void Abort(int exit_code) override {
    const MutexLock lock(world_.mutex);
    world_.End(absl::StrCat("Abort by rank ", group_->world_ranks[rank_]), exit_code);
  }

 private:
  TransferOr Start(const Message& message) override;
  std::shared_ptr<Post> MatchPartner(const std::shared_ptr<Post>& post, const Group::Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_.mutex);
  std::shared_ptr<Group> JoinChild(int color, const std::vector<int>& members);

  absl::Status CheckAlive(const char* call) override {
    const MutexLock lock(world_.mutex);
    return world_.ended ? world_.EndedStatus(call) : absl::OkStatus();
  }

  const std::shared_ptr<Group> group_;
  World& world_;
  const int rank_;
  int num_splits_ = 0;
};

Communicator::TransferOr ThreadCommunicator::Start(const Message& message) {
  const auto& [kind, buffer, peer, tag] = message;
  const auto post = std::make_shared<Post>(message);
  const bool sends = kind == Message::Kind::kSend;
  std::shared_ptr<Post> partner;
  {
    const MutexLock lock(world_.mutex);
    if (world_.ended) return world_.EndedStatus(post->Text());
    partner = MatchPartner(post, {sends ? rank_ : peer, sends ? peer : rank_, tag});
  }
  if (partner != nullptr) {
    const Buffer& from = sends ? buffer : partner->buffer;
    const Buffer& to = sends ? partner->buffer : buffer;
    if (from.bytes == to.bytes && to.bytes > 0) std::memcpy(to.data, from.data, to.bytes);
    const State result = from.bytes == to.bytes ? State::kDone : State::kSizesDiffer;
    const MutexLock lock(world_.mutex);
    post->peer_bytes = partner->buffer.bytes;
    partner->peer_bytes = buffer.bytes;
    post->state = partner->state = result;
    partner->changed.NotifyAll();
  }
  return std::make_unique<ThreadTransfer>(group_, post, group_->world_ranks[rank_]);
}

// The oldest post of the other side, both now kCopying; or null, and `post` waits in the lane.
std::shared_ptr<Post> ThreadCommunicator::MatchPartner(const std::shared_ptr<Post>& post,
                                                       const Group::Lane& lane) {
  auto& posts = group_->lanes[lane];
  if (posts.empty() || posts.front()->kind == post->kind) {
    posts.push_back(post);
    world_.waiting.insert(post.get());
    return nullptr;
  }
  std::shared_ptr<Post> partner = std::move(posts.front());
  posts.pop_front();
  if (posts.empty()) group_->lanes.erase(lane);
  world_.waiting.erase(partner.get());
  post->state = partner->state = State::kCopying;
  return partner;
}

absl::StatusOr<std::unique_ptr<Communicator>> ThreadCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(const Part part, AgreeOnPart(color, key));
  ++num_splits_;
  if (color == kNoGroup) return nullptr;
  return std::make_unique<ThreadCommunicator>(JoinChild(color, part.members), part.rank);
}

// The first member to come makes the group, the last one takes it off the list.
std::shared_ptr<Group> ThreadCommunicator::JoinChild(int color, const std::vector<int>& members) {
  const MutexLock lock(world_.mutex);
  const std::pair<int, int> place(num_splits_, color);
  Group::Child& child = group_->children[place];
  if (child.group == nullptr) {
    child.group = std::make_shared<Group>();
    child.group->world = group_->world;
    for (const int rank : members) {
      child.group->world_ranks.push_back(group_->world_ranks[rank]);
    }
  }
  std::shared_ptr<Group> group = child.group;
  if (++child.num_joined == members.size()) group_->children.erase(place);
  return group;
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int num_ranks) {
  auto group = std::make_shared<Group>();
  group->world = std::make_shared<World>();
  for (int rank = 0; rank < num_ranks; ++rank) group->world_ranks.push_back(rank);
  std::vector<std::unique_ptr<Communicator>> comms;
  for (int rank = 0; rank < num_ranks; ++rank) {
    comms.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return comms;
}

}  // namespace deepnet
