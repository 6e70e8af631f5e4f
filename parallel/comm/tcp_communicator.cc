// Every two ranks have one connection. A message of up to 64 KiB is sent at once; a longer one, of
// any size, when the peer has asked for it, into the memory where it belongs, in pieces between
// which others pass.
//
// One mutex guards the state of all connections. It is held while bytes are copied into and out of
// the kernel, at most a piece at a time, and never while anybody waits. Callers write what they
// send as far as the kernel takes it; the thread reads, and writes the rest.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/host.h"
#include "parallel/base/mutex.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "parallel/comm/backends.h"
#include "parallel/comm/pending_message.h"
#include "parallel/comm/rendezvous.h"

namespace deepnet {
namespace {

using Message = MessageCommunicator::Message;

// Longer messages wait for the peer to ask for them.
constexpr int64_t kEagerBytes = 64 << 10;
constexpr int64_t kPieceBytes = 1 << 20;

// For an Abort to reach the peers.
constexpr absl::Duration kAbortLimit = absl::Seconds(2);
// For ranks that cannot connect to be heard.
constexpr absl::Duration kGrace = absl::Seconds(5);

enum Kind : uint32_t {
  kEager = 1,  // a message and its bytes
  kOffer,      // a long message; `bytes` of it can be had as `id`
  kAsk,        // the receiver of the offer `id` is ready
  kRefuse,     // it expects another number of bytes: `bytes`
  kPiece,      // the next `bytes` of the message `id`
  kAbort,      // the job ends with exit code `tag`
  kGoodbye,    // nothing more comes from this rank
};

// Numbers as the sender's memory has them: all ranks run the same program file.
struct Header {
  uint32_t kind = 0;
  int32_t tag = 0;
  uint64_t group = 0;
  uint64_t id = 0;  // drawn by the sender of the message
  int64_t bytes = 0;
};
static_assert(sizeof(Header) == 32);

bool HasPayload(const Header& header) { return header.kind == kEager || header.kind == kPiece; }

// The messages of a connection that match each other: group, tag.
using Lane = std::pair<uint64_t, int>;

// All but the constants is guarded by the job's mutex.
struct TcpMessage : PendingMessage {
  TcpMessage(const Message& message, uint64_t group, int world_peer)
      : PendingMessage(message), group(group), world_peer(world_peer) {}

  const uint64_t group;
  const int world_peer;
  uint64_t id = 0;          // of a send
  int64_t moved_bytes = 0;  // of a long message

  Lane lane() const { return {group, tag}; }
  char* data() const { return static_cast<char*>(buffer.data); }
};
using MessagePtr = std::shared_ptr<TcpMessage>;

// Bytes to send: a header and what belongs to it.
struct Frame {
  Header header;
  MessagePtr message;  // null where nothing belongs to it, or the message was given up
  const char* data = nullptr;
  std::vector<char> copy;  // of the bytes of a message that was given up
  size_t sent = 0;         // of header and data

  size_t size() const { return sizeof(Header) + (HasPayload(header) ? header.bytes : 0); }
};

// A message that came before its receive.
struct Arrival {
  uint64_t id = 0;
  int64_t bytes = 0;
  std::vector<char> data;  // all of them, if it was sent at once
  bool offered = false;
};

struct Connection {
  Descriptor socket;
  int peer = -1;
  absl::Status lost = absl::OkStatus();  // not OK: no connection any more
  bool writable_wanted = false;          // the kernel's buffer was full
  bool broken = false;                   // nothing can be sent; what came before can be read

  std::set<MessagePtr> pending;  // not finished
  // Receives that nothing came for, and what no receive was posted for; no list is empty.
  std::map<Lane, std::deque<MessagePtr>> posted;
  std::map<Lane, std::deque<Arrival>> arrived;

  std::deque<Frame> frames;  // in this order; the front may be half sent
  std::deque<MessagePtr>
      long_sends;  // that the peer has asked for; pieces go when `frames` is empty
  std::map<uint64_t, MessagePtr> offers;  // that the peer has not asked for yet
  std::map<uint64_t, MessagePtr> coming;  // receives of long messages, by the sender's id

  Header header;             // of the frame that is being read
  size_t header_bytes = 0;   // read so far
  size_t payload_bytes = 0;  // likewise
  MessagePtr target;         // of a piece; null: `payload` is
  std::vector<char> payload;
};

// Takes the first of a lane's list out of `lists`, where no list is empty.
template <typename Item>
std::optional<Item> TakeFirst(std::map<Lane, std::deque<Item>>& lists, const Lane& lane) {
  const auto list = lists.find(lane);
  if (list == lists.end()) return std::nullopt;
  std::optional<Item> first = std::move(list->second.front());
  list->second.pop_front();
  if (list->second.empty()) lists.erase(list);
  return first;
}

class TcpWorld : public MessageBackend {
 public:
  TcpWorld(Mesh mesh, int rank)
      : rank_(rank), hosts_(std::move(mesh.hosts)), connections_(mesh.sockets.size()) {
    epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    DEEPNET_CHECK(epoll_.fd() >= 0 && stop_.fd() >= 0) << std::strerror(errno);
    Watch(EPOLL_CTL_ADD, stop_.fd(), EPOLLIN, -1);
    for (size_t peer = 0; peer < connections_.size(); ++peer) {
      Connection& connection = connections_[peer];
      connection.peer = static_cast<int>(peer);
      connection.socket = std::move(mesh.sockets[peer]);
      if (connection.socket.fd() < 0) continue;
      Watch(EPOLL_CTL_ADD, connection.socket.fd(), EPOLLIN, connection.peer);
    }
  }

  ~TcpWorld() {
    if (joined_) {
      if (!Alive().ok()) Abort(static_cast<int>(ExitCode::kInternal));
      Leave();
    }
    const uint64_t one = 1;
    DEEPNET_CHECK(write(stop_.fd(), &one, sizeof(one)) == sizeof(one));
    if (thread_.joinable()) thread_.join();
  }

  // Starts the thread that moves all messages. Call it first.
  absl::Status Begin() {
    ASSIGN_OR_RETURN(thread_, StartThread([this] { Loop(); }));
    return absl::OkStatus();
  }

  // All ranks are connected: from now on this does not end before they leave.
  void SetJoined() { joined_ = true; }

  // The message's memory belongs to the job until it is finished.
  absl::StatusOr<MessagePtr> Start(const Message& message, uint64_t group, int world_peer) {
    const MutexLock lock(mutex);
    RETURN_IF_ERROR(alive);
    Connection& connection = connections_[world_peer];
    auto started = std::make_shared<TcpMessage>(message, group, world_peer);
    if (!message.sends()) {
      if (const auto arrival = TakeFirst(connection.arrived, started->lane())) {
        Accept(connection, started, *arrival);  // also what a lost peer had sent before
        return started;
      }
    }
    if (!connection.lost.ok()) return WithPrefix(message.Text(), connection.lost);
    connection.pending.insert(started);
    if (!message.sends()) {
      connection.posted[started->lane()].push_back(started);
      return started;
    }
    started->id = next_id_++;
    const bool eager = message.buffer.bytes <= kEagerBytes;
    if (!eager) connection.offers[started->id] = started;
    Push(connection, {.header = {eager ? kEager : kOffer, message.tag, group, started->id,
                                 message.buffer.bytes},
                      .message = eager ? started : nullptr,
                      .data = started->data()});
    return started;
  }

  // Takes the message's memory back.
  void GiveUp(const MessagePtr& message) {
    const MutexLock lock(mutex);
    if (message->finished) return;
    SetGivenUp(*message);
    Connection& connection = connections_[message->world_peer];
    const auto is_of_it = [&](const auto& entry) { return entry.second == message; };
    std::erase(connection.long_sends, message);
    std::erase_if(connection.offers, is_of_it);
    std::erase_if(connection.coming, is_of_it);
    for (Frame& frame : connection.frames) {  // what the peer was told of must be sent
      if (frame.message != message) continue;
      frame.copy.assign(frame.data, frame.data + frame.header.bytes);
      frame.data = frame.copy.data();
      frame.message = nullptr;
    }
    if (connection.target == message) {
      connection.target = nullptr;
      connection.payload.resize(connection.header.bytes);
    }
    const auto lane = connection.posted.find(message->lane());
    if (lane != connection.posted.end()) {
      std::erase(lane->second, message);
      if (lane->second.empty()) connection.posted.erase(lane);
    }
    Finish(connection, message, alive);
  }

  // Does not return. The mutex stays held: nobody else moves any more.
  [[noreturn]] void Abort(int exit_code) {
    mutex.Lock();
    End(exit_code, rank_);
  }

  // A group's number that no two ranks have used for another group: the largest of all that the
  // members name.
  uint64_t next_group() {
    const MutexLock lock(mutex);
    return next_group_;
  }
  void ReserveGroup(uint64_t group) {
    const MutexLock lock(mutex);
    next_group_ = group + 1;
  }

 private:
  void Finish(Connection& connection, const MessagePtr& message,
              const absl::Status& result = absl::OkStatus()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    message->Finish(result);
    connection.pending.erase(MessagePtr(message));
  }

  // The peer is gone: messages that are not finished fail; what has arrived whole can still be
  // taken.
  void FailMessages(Connection& connection, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (connection.lost.ok()) {
      connection.lost = WithExitCode(
          absl::UnavailableError(absl::StrCat("rank ", connection.peer, " (host ",
                                              hosts_[connection.peer], ") is lost: ", why)),
          ExitCode::kPeerLost);
    }
    connection.long_sends.clear();
    connection.offers.clear();
    connection.coming.clear();
    connection.target = nullptr;
    connection.posted.clear();
    for (auto& [lane, arrivals] : connection.arrived) {
      std::erase_if(arrivals, [](const Arrival& arrival) { return arrival.offered; });
    }
    std::erase_if(connection.arrived, [](const auto& lane) { return lane.second.empty(); });
    for (const MessagePtr& message : connection.pending) message->Finish(connection.lost);
    connection.pending.clear();
    left_.NotifyAll();
  }

  void Close(Connection& connection, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Watch(EPOLL_CTL_DEL, connection.socket.fd(), 0, connection.peer);
    connection.socket = Descriptor();
    connection.frames.clear();
    FailMessages(connection, why);
  }

  // Tells every peer, and waits until they have closed their ends: a process that ends with unread
  // bytes resets its connections, and takes back what the peers have not read.
  [[noreturn]] void End(int exit_code, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::fflush(nullptr);
    for (Connection& connection : connections_) {
      if (connection.socket.fd() < 0) continue;
      const bool half_sent = !connection.frames.empty() && connection.frames.front().sent > 0;
      connection.frames.resize(half_sent ? 1 : 0);
      connection.frames.push_back(
          {.header = {.kind = kAbort, .tag = exit_code, .id = static_cast<uint64_t>(rank)}});
    }
    const absl::Time deadline = absl::Now() + kAbortLimit;
    std::vector<char> ignored(1 << 16);
    while (absl::Now() < deadline) {
      std::vector<pollfd> open;
      for (Connection& connection : connections_) {
        const int fd = connection.socket.fd();
        if (fd < 0) continue;
        while (!connection.frames.empty() && SendFront(connection)) {
          if (connection.frames.empty()) shutdown(fd, SHUT_WR);
        }
        const short events = connection.frames.empty() ? POLLIN : POLLIN | POLLOUT;
        open.push_back({.fd = fd, .events = events, .revents = 0});
        const ssize_t got = recv(fd, ignored.data(), ignored.size(), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) connection.socket = Descriptor();
      }
      if (open.empty()) break;
      poll(open.data(), open.size(), 50);
    }
    _exit(exit_code);
  }

  void Push(Connection& connection, Frame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    connection.frames.push_back(std::move(frame));
    if (!connection.writable_wanted) Write(connection);
  }

  // Sends until all is sent or the kernel takes no more; the thread goes on then.
  void Write(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!connection.broken && (!connection.frames.empty() || NextPiece(connection))) {
      if (!SendFront(connection)) break;
      // A long message leaves the mutex to others after each piece.
      if (connection.frames.empty() && !connection.long_sends.empty()) break;
    }
    const bool more = !connection.frames.empty() || !connection.long_sends.empty();
    WantWritable(connection, more && !connection.broken);
  }

  // Makes a frame of the next piece of the oldest long message.
  bool NextPiece(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (connection.long_sends.empty()) return false;
    MessagePtr message = std::move(connection.long_sends.front());
    connection.long_sends.pop_front();
    const int64_t at = message->moved_bytes;
    const int64_t bytes = std::min(kPieceBytes, message->buffer.bytes - at);
    message->moved_bytes += bytes;
    if (message->moved_bytes < message->buffer.bytes) connection.long_sends.push_back(message);
    connection.frames.push_back({.header = {.kind = kPiece, .id = message->id, .bytes = bytes},
                                 .message = message,
                                 .data = message->data() + at});
    return true;
  }

  // Returns true if the front is sent, and gone. After false the kernel takes no more, or the
  // connection is broken: reading will find out, after what the peer has sent before, which may be
  // an Abort.
  bool SendFront(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Frame& frame = connection.frames.front();
    while (frame.sent < frame.size()) {
      iovec parts[2];
      size_t count = 0;
      if (frame.sent < sizeof(Header)) {
        parts[count++] = {reinterpret_cast<char*>(&frame.header) + frame.sent,
                          sizeof(Header) - frame.sent};
      }
      const size_t data_sent = std::max(frame.sent, sizeof(Header)) - sizeof(Header);
      const size_t left = frame.size() - sizeof(Header) - data_sent;
      if (left > 0) parts[count++] = {const_cast<char*>(frame.data) + data_sent, left};
      msghdr message = {};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      const ssize_t sent = sendmsg(connection.socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EINTR) continue;
        connection.broken = errno != EAGAIN && errno != EWOULDBLOCK;
        return false;
      }
      frame.sent += static_cast<size_t>(sent);
    }
    if (frame.header.kind == kGoodbye) left_.NotifyAll();
    const MessagePtr message = std::move(frame.message);
    const bool ends = message != nullptr &&
                      frame.data + frame.header.bytes == message->data() + message->buffer.bytes;
    connection.frames.pop_front();
    if (ends) Finish(connection, message);
    return true;
  }

  // Returns true if a frame was read to its end.
  bool ReadFrame(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (connection.header_bytes < sizeof(Header)) {
      auto* const header = reinterpret_cast<char*>(&connection.header);
      if (!ReadInto(connection, header, sizeof(Header), &connection.header_bytes)) return false;
      if (!BeginPayload(connection)) return false;
    }
    if (HasPayload(connection.header)) {
      TcpMessage* const target = connection.target.get();
      char* const data =
          target != nullptr ? target->data() + target->moved_bytes : connection.payload.data();
      const auto bytes = static_cast<size_t>(connection.header.bytes);
      if (!ReadInto(connection, data, bytes, &connection.payload_bytes)) return false;
    }
    connection.header_bytes = connection.payload_bytes = 0;
    Handle(connection);
    return true;
  }

  // Returns true if all bytes are there. Otherwise there are no more at present, or no peer.
  bool ReadInto(Connection& connection, char* data, size_t bytes, size_t* done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (*done < bytes) {
      const ssize_t got = recv(connection.socket.fd(), data + *done, bytes - *done, 0);
      if (got > 0) {
        *done += static_cast<size_t>(got);
      } else if (got == 0) {
        Close(connection, "its process has ended");
        return false;
      } else if (errno != EINTR) {
        if (errno != EAGAIN && errno != EWOULDBLOCK) Close(connection, std::strerror(errno));
        return false;
      }
    }
    return true;
  }

  // Finds the place of the bytes that follow a header.
  bool BeginPayload(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Header& header = connection.header;
    connection.target = nullptr;
    if (!HasPayload(header)) return true;
    bool fits = header.bytes >= 0 && header.bytes <= kPieceBytes;
    if (header.kind == kPiece) {
      const auto coming = connection.coming.find(header.id);  // none: given up here
      if (coming != connection.coming.end()) {
        connection.target = coming->second;
        const int64_t left = connection.target->buffer.bytes - connection.target->moved_bytes;
        fits = fits && header.bytes <= left;
      }
    }
    if (!fits) {
      Close(connection, "it sent what is no message");
      return false;
    }
    if (connection.target == nullptr) connection.payload.resize(header.bytes);
    return true;
  }

  void Handle(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Header header = connection.header;
    const auto offer = connection.offers.find(header.id);
    switch (header.kind) {
      case kEager:
        return Match(connection, {.id = header.id,
                                  .bytes = header.bytes,
                                  .data = std::exchange(connection.payload, {})});
      case kOffer:
        return Match(connection, {.id = header.id, .bytes = header.bytes, .offered = true});
      case kAsk:
        if (offer == connection.offers.end()) return;  // given up here
        connection.long_sends.push_back(std::move(offer->second));
        connection.offers.erase(offer);
        if (!connection.writable_wanted) Write(connection);
        return;
      case kRefuse:
        if (offer == connection.offers.end()) return;
        Finish(connection, std::exchange(offer->second, nullptr),
               InvalidArgument("the peer expects ", header.bytes, " B"));
        connection.offers.erase(offer);
        return;
      case kPiece: {
        const MessagePtr message = std::exchange(connection.target, nullptr);
        if (message == nullptr) return;
        message->moved_bytes += header.bytes;
        if (message->moved_bytes < message->buffer.bytes) return;
        connection.coming.erase(header.id);
        return Finish(connection, message);
      }
      case kAbort:
        std::fprintf(stderr, "[%d/%d] rank %d (host %s) ended the job with exit code %d\n", rank_,
                     static_cast<int>(hosts_.size()), static_cast<int>(header.id),
                     ShownText(hosts_[header.id % hosts_.size()]).c_str(), header.tag);
        End(header.tag, static_cast<int>(header.id));
      case kGoodbye:
        return FailMessages(connection, "it has left the job");
      default:
        return Close(connection, "it sent what is no message");
    }
  }

  void Match(Connection& connection, Arrival arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const Lane lane(connection.header.group, connection.header.tag);
    if (const auto message = TakeFirst(connection.posted, lane)) {
      Accept(connection, *message, arrival);
    } else {
      connection.arrived[lane].push_back(std::move(arrival));
    }
  }

  void Accept(Connection& connection, const MessagePtr& message, const Arrival& arrival)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (arrival.bytes != message->buffer.bytes) {
      if (arrival.offered) {
        Push(connection,
             {.header = {.kind = kRefuse, .id = arrival.id, .bytes = message->buffer.bytes}});
      }
      return Finish(connection, message, InvalidArgument("the peer states ", arrival.bytes, " B"));
    }
    if (!arrival.offered) {
      if (arrival.bytes > 0) std::memcpy(message->data(), arrival.data.data(), arrival.bytes);
      return Finish(connection, message);
    }
    connection.pending.insert(message);
    connection.coming[arrival.id] = message;
    Push(connection, {.header = {.kind = kAsk, .id = arrival.id}});
  }

  // Says goodbye and sleeps until every peer has, or is lost.
  void Leave() {
    const MutexLock lock(mutex);
    for (Connection& connection : connections_) {
      if (connection.socket.fd() >= 0) Push(connection, {.header = {.kind = kGoodbye}});
    }
    left_.Wait(mutex, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return std::all_of(connections_.begin(), connections_.end(),
                         [](const Connection& connection) {
                           return connection.socket.fd() < 0 ||
                                  (!connection.lost.ok() && connection.frames.empty());
                         });
    });
  }

  void Loop() {
    prctl(PR_SET_NAME, "tcp");
    constexpr int kFramesInARow = 16;
    std::vector<epoll_event> events(64);
    while (true) {
      const int count =
          epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), /*timeout=*/-1);
      for (int i = 0; i < count; ++i) {
        const int peer = events[i].data.fd;
        if (peer < 0) return;
        const MutexLock lock(mutex);
        Connection& connection = connections_[peer];
        if (connection.socket.fd() < 0) continue;
        if ((events[i].events & EPOLLOUT) != 0) Write(connection);
        for (int frame = 0; frame < kFramesInARow && connection.socket.fd() >= 0; ++frame) {
          if (!ReadFrame(connection)) break;
        }
      }
    }
  }

  void Watch(int operation, int fd, uint32_t events, int peer) {
    epoll_event event = {.events = events, .data = {.fd = peer}};
    epoll_ctl(epoll_.fd(), operation, fd, &event);
  }
  void WantWritable(Connection& connection, bool wanted) {
    if (connection.writable_wanted == wanted) return;
    connection.writable_wanted = wanted;
    Watch(EPOLL_CTL_MOD, connection.socket.fd(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN,
          connection.peer);
  }

  const int rank_;
  const std::vector<std::string> hosts_;
  Descriptor epoll_, stop_;
  bool joined_ = false;

  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex);  // by rank; the own one is unused
  uint64_t next_id_ ABSL_GUARDED_BY(mutex) = 1;
  uint64_t next_group_ ABSL_GUARDED_BY(mutex) = 1;  // group 0: all ranks
  CondVar left_;                                    // a peer said goodbye, or is lost

  std::thread thread_;
};

class TcpCommunicator final : public MessageCommunicator {
 public:
  TcpCommunicator(std::shared_ptr<TcpWorld> world, uint64_t group, std::vector<int> world_ranks,
                  int rank)
      : world_(std::move(world)),
        group_(group),
        world_ranks_(std::move(world_ranks)),
        rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    ASSIGN_OR_RETURN(Part part, AgreeOnPart(color, key, world_->next_group()));
    world_->ReserveGroup(part.number);
    if (color == kNoGroup) return nullptr;
    for (int& member : part.members) member = world_ranks_[member];
    return std::make_unique<TcpCommunicator>(world_, part.number, std::move(part.members),
                                             part.rank);
  }

  void Abort(int exit_code) override { world_->Abort(exit_code); }

 private:
  TransferOr Start(const Message& message) override {
    ASSIGN_OR_RETURN(MessagePtr started,
                     world_->Start(message, group_, world_ranks_[message.peer]));
    return std::make_unique<PendingTransfer<TcpWorld, TcpMessage>>(world_, std::move(started));
  }
  absl::Status CheckAlive(const char*) override { return world_->Alive(); }

  const std::shared_ptr<TcpWorld> world_;
  const uint64_t group_;
  const std::vector<int> world_ranks_;  // of the members, in this group's order
  const int rank_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const TcpOptions& options) {
  ASSIGN_OR_RETURN(Mesh mesh, ConnectAll(options));
  const auto tcp = std::make_shared<TcpWorld>(std::move(mesh), options.rank);
  if (const absl::Status begun = tcp->Begin(); !begun.ok()) {
    return FailRendezvous(options, begun);
  }
  std::vector<int> ranks(options.size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = std::make_unique<TcpCommunicator>(tcp, /*group=*/0, std::move(ranks), options.rank);
  // Rank 0 does not let the store go before all are connected with each other, and nobody goes on.
  // Two that cannot connect say so within the limit: the others stay to hear it.
  const absl::Status met = world->Barrier(options.limit + kGrace);
  if (!met.ok()) return FailRendezvous(options, PreflightError(met.message()));
  if (options.rank == 0) EndRendezvous(options);
  tcp->SetJoined();
  return world;
}

}  // namespace deepnet
