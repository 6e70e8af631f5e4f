// A message is two posts, one of the sender and one of the receiver. Whoever posts second finds the
// other in the lane of (sender, receiver, tag), copies outside of the lock, and wakes the owner.
// One mutex guards all posts and lanes of a world; it is held for look-ups only.
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/mutex.h"
#include "parallel/comm/backends.h"
#include "parallel/comm/pending_message.h"

namespace deepnet {
namespace {

using Message = MessageCommunicator::Message;

// One message as one rank asked for it. Guarded by the world's mutex, except for the memory while
// it is copied.
struct Post : PendingMessage {
  Post(const Message& message, int world_rank) : PendingMessage(message), world_rank(world_rank) {}

  const int world_rank;  // of the rank that asked
  bool copying = false;
};

// The state that all ranks of the job share.
struct World : MessageBackend {
  // All posts without a partner, so that the end can reach them.
  std::set<Post*> waiting ABSL_GUARDED_BY(mutex);

  // The first end counts.
  void End(const std::string& who, int code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!alive.ok()) return;
    alive =
        WithExitCode(absl::AbortedError(absl::StrCat(who, ", the job ends with exit code ", code)),
                     static_cast<ExitCode>(code));
    for (Post* post : waiting) post->Finish(alive);
    waiting.clear();
  }

  // A peer that copies at this moment is waited for: the memory may be freed afterwards.
  void GiveUp(const std::shared_ptr<Post>& post) {
    const MutexLock lock(mutex);
    post->changed.Wait(mutex, [&] { return !post->copying || post->finished; });
    if (post->finished) return;
    End(absl::StrCat("rank ", post->world_rank, " gave up ", post->Text()),
        static_cast<int>(ExitCode::kInternal));
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

class ThreadCommunicator final : public MessageCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), world_(*group_->world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->world_ranks.size()); }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    ASSIGN_OR_RETURN(const Part part, AgreeOnPart(color, key));
    ++num_splits_;
    if (color == kNoGroup) return nullptr;
    return std::make_unique<ThreadCommunicator>(JoinChild(color, part.members), part.rank);
  }

  void Abort(int exit_code) override {
    const MutexLock lock(world_.mutex);
    world_.End(absl::StrCat("Abort by rank ", group_->world_ranks[rank_]), exit_code);
  }

 private:
  TransferOr Start(const Message& message) override {
    const auto& [direction, buffer, peer, tag] = message;
    const auto post = std::make_shared<Post>(message, group_->world_ranks[rank_]);
    const bool sends = message.sends();
    std::shared_ptr<Post> partner;
    {
      const MutexLock lock(world_.mutex);
      if (!world_.alive.ok()) return WithPrefix(post->Text(), world_.alive);
      partner = MatchPartner(post, {sends ? rank_ : peer, sends ? peer : rank_, tag});
    }
    if (partner != nullptr) {
      const Buffer& from = sends ? buffer : partner->buffer;
      const Buffer& to = sends ? partner->buffer : buffer;
      if (from.bytes == to.bytes && to.bytes > 0) std::memcpy(to.data, from.data, to.bytes);
      const auto result = [&](const Buffer& peers) {
        return from.bytes == to.bytes ? absl::OkStatus()
                                      : InvalidArgument("the peer states ", peers.bytes, " B");
      };
      const MutexLock lock(world_.mutex);
      post->Finish(result(partner->buffer));
      partner->Finish(result(buffer));
    }
    return std::make_unique<PendingTransfer<World, Post>>(group_->world, post);
  }

  // The oldest post of the other side, which is now copied; or null, and `post` waits in the lane.
  std::shared_ptr<Post> MatchPartner(const std::shared_ptr<Post>& post, const Group::Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_.mutex) {
    auto& posts = group_->lanes[lane];
    if (posts.empty() || posts.front()->direction == post->direction) {
      posts.push_back(post);
      world_.waiting.insert(post.get());
      return nullptr;
    }
    std::shared_ptr<Post> partner = std::move(posts.front());
    posts.pop_front();
    if (posts.empty()) group_->lanes.erase(lane);
    world_.waiting.erase(partner.get());
    partner->copying = true;
    return partner;
  }

  // The first member to come makes the group, the last one takes it off the list.
  std::shared_ptr<Group> JoinChild(int color, const std::vector<int>& members) {
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

  absl::Status CheckAlive(const char* call) override { return WithPrefix(call, world_.Alive()); }

  const std::shared_ptr<Group> group_;
  World& world_;
  const int rank_;
  int num_splits_ = 0;
};

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
