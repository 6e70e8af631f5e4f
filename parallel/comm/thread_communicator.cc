// A message is two posts, one of the sender and one of the receiver. Whoever posts second finds the
// other in the lane of (sender, receiver, tag), copies outside of the lock, and wakes the owner.
// One mutex guards all posts and lanes of a world; it is held for look-ups only.
#include "parallel/comm/thread_communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using Message = MessageCommunicator::Message;

// Waits without a limit get this one: a clock's time plus an infinite duration would overflow.
constexpr absl::Duration kLongestWait = absl::Hours(24 * 365);

enum class State { kWaiting, kCopying, kDone, kSizesDiffer, kEnded };

// One message as one rank asked for it. Guarded by the world's mutex, except for the memory while
// kCopying.
struct Post : Message {
  explicit Post(const Message& message) : Message(message) {}

  State state = State::kWaiting;
  int64_t peer_bytes = 0;  // where kSizesDiffer
  std::condition_variable changed;

  bool Finished() const { return state != State::kWaiting && state != State::kCopying; }
};

// The state that all ranks of the job share.
struct World {
  std::mutex mutex;
  std::set<Post*> waiting;  // all posts in kWaiting, so that the end can reach them
  bool ended = false;
  int exit_code = 0;
  std::string ended_by;

  // The first end counts. Called with the mutex held, as is EndedStatus.
  void End(std::string who, int code) {
    if (ended) return;
    ended = true;
    exit_code = code;
    ended_by = std::move(who);
    for (Post* post : waiting) {
      post->state = State::kEnded;
      post->changed.notify_all();
    }
    waiting.clear();
  }

  absl::Status EndedStatus(const std::string& call) const {
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
      : group_(std::move(group)), post_(std::move(post)), world_rank_(world_rank) {}

  // A peer that copies at this moment is waited for: the memory may be freed afterwards.
  ~ThreadTransfer() override {
    std::unique_lock lock(group_->world->mutex);
    post_->changed.wait(lock, [&] { return post_->state != State::kCopying; });
    if (post_->state == State::kWaiting) {
      group_->world->End(absl::StrCat("rank ", world_rank_, " gave up ", post_->Text()),
                         static_cast<int>(ExitCode::kInternal));
    }
  }

  absl::Status Wait(absl::Duration limit) override {
    const auto finished = [&] { return post_->Finished(); };
    std::unique_lock lock(group_->world->mutex);
    if (!post_->changed.wait_for(lock, absl::ToChronoNanoseconds(std::min(limit, kLongestWait)),
                                 finished)) {
      return absl::DeadlineExceededError(
          absl::StrCat(post_->Text(), ": not finished after ", absl::FormatDuration(limit)));
    }
    if (post_->state == State::kEnded) return group_->world->EndedStatus(post_->Text());
    if (post_->state == State::kDone) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(post_->Text(), ": the peer states ", post_->peer_bytes, " B"));
  }

  bool Done() override {
    const std::lock_guard lock(group_->world->mutex);
    return post_->Finished();
  }

 private:
  const std::shared_ptr<Group> group_;
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
    const std::lock_guard lock(world_.mutex);
    world_.End(absl::StrCat("Abort by rank ", group_->world_ranks[rank_]), exit_code);
  }

 private:
  TransferOr Start(const Message& message) override;
  std::shared_ptr<Post> TakePartner(const std::shared_ptr<Post>& post, const Group::Lane& lane);
  std::shared_ptr<Group> JoinChild(int color, const std::vector<int>& members);

  absl::Status CheckAlive(const char* call) override {
    const std::lock_guard lock(world_.mutex);
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
  std::unique_lock lock(world_.mutex);
  if (world_.ended) return world_.EndedStatus(post->Text());
  const std::shared_ptr<Post> partner =
      TakePartner(post, {sends ? rank_ : peer, sends ? peer : rank_, tag});
  if (partner != nullptr) {
    lock.unlock();
    const Buffer& from = sends ? buffer : partner->buffer;
    const Buffer& to = sends ? partner->buffer : buffer;
    if (from.bytes == to.bytes && to.bytes > 0) std::memcpy(to.data, from.data, to.bytes);
    const State result = from.bytes == to.bytes ? State::kDone : State::kSizesDiffer;
    lock.lock();
    post->peer_bytes = partner->buffer.bytes;
    partner->peer_bytes = buffer.bytes;
    post->state = partner->state = result;
    partner->changed.notify_all();
  }
  return std::make_unique<ThreadTransfer>(group_, post, group_->world_ranks[rank_]);
}

// The oldest post of the other side, both now kCopying; or null, and `post` waits in the lane.
std::shared_ptr<Post> ThreadCommunicator::TakePartner(const std::shared_ptr<Post>& post,
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
  struct Wish {
    int color;
    int key;
  };
  std::vector<Wish> wishes(size());
  std::vector<Buffer> all;
  for (Wish& wish : wishes) all.push_back(Buffer::Of(std::span(&wish, 1)));
  Wish mine = {color, key};
  ASSIGN_OR_RETURN(auto gathered, AllGather(Buffer::Of(std::span(&mine, 1)), all));
  RETURN_IF_ERROR(gathered->Wait());
  ++num_splits_;
  if (color == kNoGroup) return nullptr;

  std::vector<int> members;
  for (int rank = 0; rank < size(); ++rank) {
    if (wishes[rank].color == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  const auto self = std::find(members.begin(), members.end(), rank_);
  return std::make_unique<ThreadCommunicator>(JoinChild(color, members),
                                              static_cast<int>(self - members.begin()));
}

// The first member to come makes the group, the last one takes it off the list.
std::shared_ptr<Group> ThreadCommunicator::JoinChild(int color, const std::vector<int>& members) {
  const std::lock_guard lock(world_.mutex);
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
