// Rank r calls every rank below it and is called by those above. A host may have addresses that
// others cannot reach, or that lead somewhere else (each host's own bridge for containers has the
// same): whoever calls tries one after the other until the right rank of the right job answers.
//
// Anybody may connect to a port. So one loop polls the listener and all connections, and waits for
// none of them: a caller says hello, is answered, and confirms the answer. Only then the called
// rank counts the connection, and it does not drop one that it has answered: the caller, who counts
// it when it confirms, never counts one that the called rank has not. Whoever gets no answer hangs
// up and calls again; of two calls of a rank the later counts, in whatever order they are heard.
//
// Each of the three proves by HMAC-SHA256 that its sender knows the job's secret: the hello, so
// that strangers take no rank's place; answer and confirmation over a number that the other side
// has just drawn, so that what was overheard proves nothing. What ranks say of themselves at the
// rendezvous is proved too, so that nobody leads callers to a port between two ranks.

#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/rendezvous.h"

namespace deepnet {
namespace {

// For one address to answer, and for a caller to say hello.
constexpr absl::Duration kAnswerLimit = absl::Seconds(5);
// Between two looks at whether another rank has failed.
constexpr absl::Duration kSlice = absl::Milliseconds(500);
// Between two looks at the deadlines of connections.
constexpr absl::Duration kTurn = absl::Milliseconds(100);
// Before a rank none of whose addresses answered is called again.
constexpr absl::Duration kPause = absl::Milliseconds(200);
// Callers beyond the job's ranks that may stay without having said hello.
constexpr size_t kMaxStrangers = 128;
// Connections that are accepted before the others are looked at again.
constexpr int kAcceptsInARow = 64;
// By IPv6 and IPv4; the second where there is no IPv6.
constexpr char kEveryAddress[] = "::", kEveryAddressOfIpv4[] = "0.0.0.0";
// Ports that are tried until all of an interface's addresses have the same one.
constexpr int kPortTries = 16;
// Callers that are named when they are sent away.
constexpr int kMaxRefused = 8;

std::string ErrnoText() { return std::strerror(errno); }

// How ranks connect with each other. The number changes with what they say.
constexpr std::array<char, 8> kProtocol = {'d', 'e', 'e', 'p', 'n', 'e', 't', '3'};

std::string ProtocolText() { return {kProtocol.begin(), kProtocol.end()}; }

// A connection begins with three of these: the caller's hello, the answer, and the caller's
// confirmation.
enum class Word : int32_t { kHello = 1, kAnswer, kConfirmation };

struct Terms {
  std::array<char, 8> protocol = kProtocol;
  uint64_t job = 0;  // drawn by rank 0
  int32_t from = 0, to = 0;
  int32_t attempt = 0;  // counts the calls of a rank to another
  Word word = Word::kHello;

  friend bool operator==(const Terms&, const Terms&) = default;
};
static_assert(sizeof(Terms) == 32);

using Nonce = std::array<uint8_t, 16>;
using Proof = std::array<uint8_t, crypto_auth_hmacsha256_BYTES>;

struct Greeting {
  Terms terms;
  Nonce nonce = {};  // the sender's
  Proof proof = {};
};
static_assert(sizeof(Greeting) == 80);

// HMAC-SHA256 of the text.
Proof Prove(const std::string& secret, std::string_view text) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const uint8_t*>(secret.data()),
                              secret.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const uint8_t*>(text.data()), text.size());
  Proof proof;
  crypto_auth_hmacsha256_final(&state, proof.data());
  return proof;
}

// Proves a greeting; `called`: the nonce of the rank that is called, zeros in a hello.
Proof Prove(const std::string& secret, const Terms& terms, const Nonce& caller,
            const Nonce& called) {
  const struct {
    Terms terms;
    Nonce caller, called;
  } stated = {terms, caller, called};
  static_assert(sizeof(stated) == sizeof(Terms) + 2 * sizeof(Nonce));
  return Prove(secret, {reinterpret_cast<const char*>(&stated), sizeof(stated)});
}

template <typename T>
T Draw() {
  T drawn;
  randombytes_buf(&drawn, sizeof(drawn));
  return drawn;
}

// A rank tells this of itself, with tabs between: "h3 process 77", host, port, a number for the job
// (rank 0's counts), the protocol, addresses, the proof.
struct Place {
  std::string who, host;
  int port = 0;
  uint64_t job = 0;
  std::vector<std::string> addresses;
};

std::string ToText(const Place& place) {
  return absl::StrCat(place.who, "\t", place.host, "\t", place.port, "\t", place.job, "\t",
                      ProtocolText(), "\t", absl::StrJoin(place.addresses, "\t"));
}

absl::StatusOr<Place> ParsePlace(int rank, const std::string& text, const std::string& secret) {
  const std::vector<std::string> words = absl::StrSplit(text, '\t');
  Place place;
  if (words.size() < 5 || !absl::SimpleAtoi(words[2], &place.port) ||
      !absl::SimpleAtoi(words[3], &place.job)) {
    return PreflightError("a rank says \"", text,
                          "\" of itself at the rendezvous: another program, or version?");
  }
  place.who = words[0];
  place.host = words[1];
  if (words[4] != ProtocolText() || words.size() < 7) {
    return PreflightError("rank ", rank, " (", place.who,
                          ") runs another build, which does not connect by ", ProtocolText(),
                          " as that on ", HostName(), " does");
  }
  if (text != ProvedPlace(rank, text.substr(0, text.rfind('\t')), secret)) {
    return PreflightError("rank ", rank, " (", place.who, ") has another job secret than ",
                          HostName(), ": set DEEPNET_JOB_SECRET to the same text on all");
  }
  place.addresses.assign(words.begin() + 5, words.end() - 1);
  return place;
}

// "10.77.0.2"; empty where the address is of another kind, or not meant for other hosts.
std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return "";
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  return text;
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList Resolve(const std::string& host, int port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

// The own address from which packets to `host` would go out; nothing is sent. May be empty.
std::string AddressToward(const std::string& host) {
  if (host.empty()) return "";
  const AddressList target = Resolve(host, 9, 0);
  if (target == nullptr) return "";
  const Descriptor probe(socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (connect(probe.fd(), target->ai_addr, target->ai_addrlen) != 0 ||
      getsockname(probe.fd(), address, &length) != 0) {
    return "";
  }
  return AddressText(address);
}

// This host's addresses, the most promising first and loopback last.
absl::StatusOr<std::vector<std::string>> OwnAddresses(const TcpOptions& options) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return PreflightError("network interfaces: ", ErrnoText());
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const std::string text = AddressText(at->ifa_addr);
    const bool wanted = options.interface.empty() || options.interface == at->ifa_name;
    if (!text.empty() && wanted && (at->ifa_flags & IFF_UP) != 0) addresses.push_back(text);
  }
  if (addresses.empty()) {
    return PreflightError("no network interface ", options.interface,
                          " of this host is up and has an address");
  }
  const std::string best = AddressToward(options.toward);
  const auto order = [&](const std::string& address) {
    return IsLoopback(address) ? 2 : address == best ? 0 : 1;
  };
  std::stable_sort(addresses.begin(), addresses.end(),
                   [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return addresses;
}

int PortOf(const Descriptor& listener) {
  sockaddr_in6 address = {};  // an IPv4 address has its port in the same place
  socklen_t length = sizeof(address);
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin6_port);
}

// Returns none where the address or the port cannot be had.
Descriptor ListenAt(const std::string& address, int port) {
  const AddressList own = Resolve(address, port, AI_NUMERICHOST | AI_PASSIVE);
  if (own == nullptr) return Descriptor();
  Descriptor listener(socket(own->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int only = address == kEveryAddress ? 0 : 1;
  setsockopt(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  if (bind(listener.fd(), own->ai_addr, own->ai_addrlen) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return Descriptor();
  }
  return listener;
}

// Sockets that accept connections to one free port of these addresses alone; those of which no port
// can be had are dropped.
absl::StatusOr<std::vector<Descriptor>> Listen(std::vector<std::string>& addresses) {
  if (addresses.empty()) return PreflightError("the loopback interface of this host is not up");
  for (int i = 0; i < kPortTries; ++i) {
    std::vector<Descriptor> listeners;
    std::vector<std::string> heard;
    errno = 0;
    for (const std::string& address : addresses) {
      Descriptor listener = ListenAt(address, listeners.empty() ? 0 : PortOf(listeners.front()));
      if (listener.fd() < 0 && errno == EADDRINUSE) break;
      if (listener.fd() < 0) continue;
      listeners.push_back(std::move(listener));
      heard.push_back(address);
    }
    if (errno == EADDRINUSE) continue;
    if (listeners.empty()) break;
    addresses = std::move(heard);
    return listeners;
  }
  return PreflightError("no port to listen on: ", ErrnoText());
}

// A connection on which ranks do not count yet.
struct Talk {
  Descriptor socket;  // none: closed, or moved to the mesh
  absl::Time deadline;
  bool ready = false;  // something can be read, or the connection is made or lost
  Greeting heard;
  size_t heard_bytes = 0;
  Nonce caller = {}, called = {};  // as far as they are drawn
};

// To a rank.
struct Call : Talk {
  int rank = 0;
  size_t address = 0;  // of the rank's
  int32_t attempt = 0;
  bool greeted = false;                     // hello is sent
  absl::Time begin = absl::InfinitePast();  // where there is no socket: of the next attempt
  std::vector<std::string> errors;          // by address
};

// From anybody.
struct Caller : Talk {
  int rank = -1;  // that was answered
  int32_t attempt = 0;
};

// Returns true when a greeting is heard to its end, and reads nothing beyond. Closes a socket from
// which none can come any more.
bool Hear(Talk& talk) {
  auto* const bytes = reinterpret_cast<char*>(&talk.heard);
  while (talk.heard_bytes < sizeof(Greeting)) {
    const ssize_t got =
        recv(talk.socket.fd(), bytes + talk.heard_bytes, sizeof(Greeting) - talk.heard_bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    talk.heard_bytes += static_cast<size_t>(std::max<ssize_t>(got, 0));
    const size_t known = std::min(talk.heard_bytes, kProtocol.size());
    if (got <= 0 || std::memcmp(bytes, kProtocol.data(), known) != 0) {
      talk.socket = Descriptor();
      return false;
    }
  }
  talk.heard_bytes = 0;
  return true;
}

class Meeting {
 public:
  explicit Meeting(const TcpOptions& options)
      : options_(options), deadline_(absl::Now() + options.limit) {}

  absl::StatusOr<Mesh> Run() {
    const absl::StatusOr<Place> mine = OpenPlace();
    if (!mine.ok()) return FailRendezvous(options_, mine.status());
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     Meet(options_, ProvedPlace(options_.rank, ToText(*mine), options_.secret)));
    const absl::Status connected = Connect(texts);
    if (!connected.ok()) return FailRendezvous(options_, connected);
    return std::move(mesh_);
  }

 private:
  absl::StatusOr<Place> OpenPlace() {
    if (sodium_init() < 0) return PreflightError("no random numbers for this job's connections");
    ASSIGN_OR_RETURN(std::vector<std::string> addresses, OwnAddresses(options_));
    ASSIGN_OR_RETURN(listeners_, ListenFor(addresses));
    return Place{.who = absl::StrCat(HostName(), " process ", getpid()),
                 .host = HostName(),
                 .port = PortOf(listeners_.front()),
                 .job = Draw<uint64_t>(),
                 .addresses = std::move(addresses)};
  }

  // Listens at the interface that was named, else on this host alone if the ranks meet there.
  absl::StatusOr<std::vector<Descriptor>> ListenFor(std::vector<std::string>& addresses) const {
    if (!options_.interface.empty()) return Listen(addresses);
    if (options_.toward == "localhost" || IsLoopback(options_.toward)) {
      std::erase_if(addresses, [](const std::string& address) { return !IsLoopback(address); });
      return Listen(addresses);
    }
    std::vector<std::string> every = {kEveryAddress};
    absl::StatusOr<std::vector<Descriptor>> listeners = Listen(every);
    every = {kEveryAddressOfIpv4};
    return listeners.ok() ? std::move(listeners) : Listen(every);
  }

  absl::Status Connect(const std::vector<std::string>& texts) {
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      ASSIGN_OR_RETURN(Place place,
                       ParsePlace(static_cast<int>(rank), texts[rank], options_.secret));
      mesh_.hosts.push_back(place.host);
      places_.push_back(std::move(place));
    }
    mesh_.sockets.resize(options_.size);
    for (int rank = 0; rank < options_.rank; ++rank) {
      Call& call = calls_.emplace_back();
      call.rank = rank;
      call.errors.resize(places_[rank].addresses.size(), "not tried");
    }
    absl::Time look = absl::Now() + kSlice, say = absl::Now() + kSayWaitingAfter;
    while (FirstMissing() < options_.size) {
      if (options_.say != nullptr && absl::Now() >= say) {
        const int rank = FirstMissing();
        options_.say(absl::StrCat("a connection with rank ", rank, " (", places_[rank].who, ")"));
        say = absl::Now() + absl::Minutes(1);
      }
      if (absl::Now() >= look) {
        RETURN_IF_ERROR(CheckRendezvous(*options_.store));
        look = absl::Now() + kSlice;
      }
      const bool last = absl::Now() >= deadline_;
      Turn();
      if (last && FirstMissing() < options_.size) return MissingError();
    }
    for (const Descriptor& socket : mesh_.sockets) {
      if (socket.fd() >= 0) SetOptions(socket);
    }
    return absl::OkStatus();
  }

  int FirstMissing() const {
    int rank = 0;
    while (rank < options_.size && (rank == options_.rank || mesh_.sockets[rank].fd() >= 0)) ++rank;
    return rank;
  }

  absl::Status MissingError() const {
    const int rank = FirstMissing();
    const Place& place = places_[rank];
    const std::string own = absl::StrCat("rank ", options_.rank, " (", HostName(), ")");
    const std::string other = absl::StrCat("rank ", rank, " (", place.who, ")");
    if (calls_.empty()) {
      return PreflightError(
          other, " did not connect to ", own, " within ", absl::FormatDuration(options_.limit),
          accept_error_.empty() ? "" : ", which could not accept: ", accept_error_);
    }
    std::vector<std::string> tried;
    for (size_t i = 0; i < place.addresses.size(); ++i) {
      tried.push_back(
          absl::StrCat(place.addresses[i], " port ", place.port, ": ", calls_.front().errors[i]));
    }
    return PreflightError(own, " cannot connect to ", other, ": ", absl::StrJoin(tried, "; "));
  }

  // Sleeps until something happens, a turn at most, and goes on with whatever can.
  void Turn() {
    absl::Time wake = std::min(deadline_, absl::Now() + kTurn);
    std::vector<pollfd> polled;
    std::vector<Talk*> talks;
    const auto poll_for = [&](Talk& talk, short events) {
      polled.push_back({.fd = talk.socket.fd(), .events = events, .revents = 0});
      talks.push_back(&talk);
    };
    for (Call& call : calls_) {
      call.ready = false;
      if (call.socket.fd() < 0) {
        wake = std::min(wake, call.begin);
      } else {
        poll_for(call, call.greeted ? POLLIN : POLLOUT);
      }
    }
    for (Caller& caller : callers_) poll_for(caller, POLLIN);
    if (absl::Now() >= accept_again_) {
      for (const Descriptor& listener : listeners_) {
        polled.push_back({.fd = listener.fd(), .events = POLLIN, .revents = 0});
      }
    }
    const absl::Duration left = std::max(wake - absl::Now(), absl::ZeroDuration());
    poll(polled.data(), polled.size(),
         static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
    for (size_t i = 0; i < talks.size(); ++i) talks[i]->ready = polled[i].revents != 0;

    for (Call& call : calls_) Continue(call);
    for (Caller& caller : callers_) {
      if (caller.ready) {
        Continue(caller);
      } else if (absl::Now() >= caller.deadline) {
        caller.socket = Descriptor();
      }
    }
    for (size_t i = talks.size(); i < polled.size(); ++i) {
      if (polled[i].revents != 0) AcceptSome(polled[i].fd);
    }
    std::erase_if(calls_, [&](const Call& call) { return mesh_.sockets[call.rank].fd() >= 0; });
    std::erase_if(callers_, [](const Caller& caller) { return caller.socket.fd() < 0; });
  }

  Terms TermsOf(Word word, int from, int to, int32_t attempt) const {
    return {.job = places_[0].job, .from = from, .to = to, .attempt = attempt, .word = word};
  }

  bool Say(const Talk& talk, const Terms& terms) const {
    const Greeting greeting = {.terms = terms,
                               .nonce = terms.word == Word::kAnswer ? talk.called : talk.caller,
                               .proof = Prove(options_.secret, terms, talk.caller, talk.called)};
    return send(talk.socket.fd(), &greeting, sizeof(greeting), MSG_NOSIGNAL) == sizeof(greeting);
  }

  bool IsProved(const Talk& talk) const {
    const Proof proof = Prove(options_.secret, talk.heard.terms, talk.caller, talk.called);
    return sodium_memcmp(talk.heard.proof.data(), proof.data(), proof.size()) == 0;
  }

  void Begin(Call& call) {
    const Place& place = places_[call.rank];
    const AddressList target = Resolve(place.addresses[call.address], place.port, AI_NUMERICHOST);
    if (target == nullptr) return HangUp(call, "not an address");
    call.socket =
        Descriptor(socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (call.socket.fd() < 0) return HangUp(call, ErrnoText());
    call.deadline = std::min(deadline_, absl::Now() + kAnswerLimit);
    call.greeted = false;
    call.heard_bytes = 0;
    call.caller = Draw<Nonce>();
    call.called = {};
    ++call.attempt;
    const int made = connect(call.socket.fd(), target->ai_addr, target->ai_addrlen);
    if (made != 0 && errno != EINPROGRESS) HangUp(call, ErrnoText());
  }

  void HangUp(Call& call, const std::string& error) {
    call.socket = Descriptor();
    call.errors[call.address] = error;
    call.address = (call.address + 1) % call.errors.size();
    call.begin = call.address > 0 ? absl::InfinitePast() : absl::Now() + kPause;
  }

  void Continue(Call& call) {
    if (call.socket.fd() < 0) {
      if (absl::Now() >= call.begin) Begin(call);
      return;
    }
    const char* const silence = call.greeted ? "somebody else, or no answer" : "no answer";
    if (!call.ready) {
      if (absl::Now() >= call.deadline) HangUp(call, silence);
      return;
    }
    if (!call.greeted) {
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(call.socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return HangUp(call, std::strerror(error));
      call.greeted = Say(call, TermsOf(Word::kHello, options_.rank, call.rank, call.attempt));
      if (!call.greeted) HangUp(call, ErrnoText());
      return;
    }
    if (!Hear(call)) {
      if (call.socket.fd() < 0) HangUp(call, silence);
      return;
    }
    if (call.heard.terms != TermsOf(Word::kAnswer, call.rank, options_.rank, call.attempt)) {
      return HangUp(call, silence);
    }
    call.called = call.heard.nonce;
    if (!IsProved(call)) return HangUp(call, "somebody who does not know the job's secret");
    if (!Say(call, TermsOf(Word::kConfirmation, options_.rank, call.rank, call.attempt))) {
      return HangUp(call, silence);
    }
    mesh_.sockets[call.rank] = std::move(call.socket);
  }

  // Whoever is not of this job is sent away.
  void Continue(Caller& caller) {
    if (!Hear(caller)) return;
    const Terms& heard = caller.heard.terms;
    if (caller.rank < 0) caller.caller = caller.heard.nonce;
    const bool proved = IsProved(caller);
    if (!proved) Refuse(caller);
    Descriptor socket = std::move(caller.socket);
    if (!proved || heard.from <= options_.rank || heard.from >= options_.size ||
        mesh_.sockets[heard.from].fd() >= 0) {
      return;
    }
    if (caller.rank >= 0) {
      if (heard == TermsOf(Word::kConfirmation, caller.rank, options_.rank, caller.attempt)) {
        mesh_.sockets[caller.rank] = std::move(socket);
      }
      return;
    }
    if (heard != TermsOf(Word::kHello, heard.from, options_.rank, heard.attempt)) return;
    for (Caller& other : callers_) {
      if (other.rank != heard.from) continue;
      if (other.attempt > heard.attempt) return;
      other.socket = Descriptor();
    }
    caller.socket = std::move(socket);
    caller.called = Draw<Nonce>();
    if (!Say(caller, TermsOf(Word::kAnswer, options_.rank, heard.from, heard.attempt))) {
      caller.socket = Descriptor();
      return;
    }
    caller.deadline = absl::InfiniteFuture();  // the caller may count the connection already
    caller.rank = heard.from;
    caller.attempt = heard.attempt;
  }

  void Refuse(const Caller& caller) {
    if (!options_.refused || ++refused_ > kMaxRefused) return;
    sockaddr_storage peer = {};
    socklen_t length = sizeof(peer);
    getpeername(caller.socket.fd(), reinterpret_cast<sockaddr*>(&peer), &length);
    options_.refused(absl::StrCat("a connection from ",
                                  AddressText(reinterpret_cast<const sockaddr*>(&peer)),
                                  " was refused: it does not know this job's secret"));
  }

  // Hears each caller at once: what it has said makes no way for those behind it.
  void AcceptSome(int listener) {
    for (int i = 0; i < kAcceptsInARow; ++i) {
      Descriptor made(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (made.fd() < 0) {
        if (errno == EAGAIN) return;
        accept_error_ = ErrnoText();  // too many open files, as a rule
        if (DropOldestStranger()) continue;
        accept_again_ = absl::Now() + kTurn;
        return;
      }
      Caller& caller = callers_.emplace_back();
      caller.socket = std::move(made);
      caller.deadline = absl::Now() + kAnswerLimit;
      Continue(caller);
      if (caller.socket.fd() < 0) callers_.pop_back();
      if (callers_.size() > kMaxStrangers + options_.size) DropOldestStranger();
    }
  }

  // Returns true if there was one.
  bool DropOldestStranger() {
    const auto oldest = std::find_if(callers_.begin(), callers_.end(),
                                     [](const Caller& caller) { return caller.rank < 0; });
    if (oldest == callers_.end()) return false;
    callers_.erase(oldest);
    return true;
  }

  // Small messages go out at once. A host that is gone without a word is noticed after 45 s.
  static void SetOptions(const Descriptor& socket) {
    const auto set = [&](int level, int option, int value) {
      setsockopt(socket.fd(), level, option, &value, sizeof(value));
    };
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  }

  const TcpOptions& options_;
  const absl::Time deadline_;
  std::vector<Descriptor> listeners_;
  std::vector<Place> places_;
  std::vector<Call> calls_;      // to ranks that are missing in the mesh
  std::vector<Caller> callers_;  // the oldest first
  absl::Time accept_again_ = absl::InfinitePast();
  std::string accept_error_;  // the last
  int refused_ = 0;
  Mesh mesh_;
};

}  // namespace

std::string ProvedPlace(int rank, const std::string& text, const std::string& secret) {
  const Proof proof = Prove(secret, absl::StrCat(rank, "\t", text));
  return absl::StrCat(
      text, "\t",
      absl::BytesToHexString({reinterpret_cast<const char*>(proof.data()), proof.size()}));
}

absl::StatusOr<Mesh> ConnectAll(const TcpOptions& options) { return Meeting(options).Run(); }

}  // namespace deepnet
