// Rank r connects to every rank below it and accepts those above. A host may have addresses that
// others cannot reach, or that lead somewhere else (each host's own bridge for containers has the
// same): whoever connects tries one after the other until the right rank of the right job answers.
#include "parallel/comm/sockets.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>

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

namespace deepnet {
namespace {

// For one address to answer.
constexpr absl::Duration kAnswerLimit = absl::Seconds(5);
// Between two looks at whether another rank has failed.
constexpr absl::Duration kSlice = absl::Milliseconds(500);

absl::Status Preflight(const std::string& message) {
  return WithExitCode(absl::FailedPreconditionError(message), ExitCode::kPreflight);
}

std::string ErrnoText() { return std::strerror(errno); }

// The first bytes of a connection, in both directions.
struct Hello {
  uint64_t magic = 0x6465'6570'6e65'7431;  // "deepnet1"
  uint64_t job = 0;                        // drawn by rank 0
  int32_t from = 0, to = 0;

  friend bool operator==(const Hello&, const Hello&) = default;
};

// A rank tells this of itself, with tabs between: "h3 process 77", host, port, a number for the job
// (rank 0's counts), addresses.
struct Place {
  std::string who, host;
  int port = 0;
  uint64_t job = 0;
  std::vector<std::string> addresses;
};

std::string ToText(const Place& place) {
  return absl::StrCat(place.who, "\t", place.host, "\t", place.port, "\t", place.job, "\t",
                      absl::StrJoin(place.addresses, "\t"));
}

absl::StatusOr<Place> ParsePlace(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, '\t');
  Place place;
  if (words.size() < 5 || !absl::SimpleAtoi(words[2], &place.port) ||
      !absl::SimpleAtoi(words[3], &place.job)) {
    return Preflight(absl::StrCat("a rank says \"", text,
                                  "\" of itself at the rendezvous: another program, or version?"));
  }
  place.who = words[0];
  place.host = words[1];
  place.addresses.assign(words.begin() + 4, words.end());
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
  const Socket probe(socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
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
  if (getifaddrs(&list) != 0) return Preflight(absl::StrCat("network interfaces: ", ErrnoText()));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const std::string text = AddressText(at->ifa_addr);
    const bool wanted = options.interface.empty() || options.interface == at->ifa_name;
    if (!text.empty() && wanted && (at->ifa_flags & IFF_UP) != 0) addresses.push_back(text);
  }
  if (addresses.empty()) {
    return Preflight(absl::StrCat("no network interface ", options.interface,
                                  " of this host is up and has an address"));
  }
  const std::string best = AddressToward(options.toward);
  const auto order = [&](const std::string& address) {
    return IsLoopback(address) ? 2 : address == best ? 0 : 1;
  };
  std::stable_sort(addresses.begin(), addresses.end(),
                   [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return addresses;
}

// A socket that accepts connections by IPv6 and IPv4, or by IPv4 where there is no IPv6, on a free
// port.
absl::StatusOr<Socket> Listen() {
  for (const int family : {AF_INET6, AF_INET}) {
    Socket listener(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int off = 0;
    if (family == AF_INET6) {
      setsockopt(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    sockaddr_storage any = {};  // all zero is every address and a free port
    any.ss_family = static_cast<sa_family_t>(family);
    const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&any), length) == 0 &&
        listen(listener.fd(), SOMAXCONN) == 0) {
      return listener;
    }
  }
  return Preflight(absl::StrCat("no port to listen on: ", ErrnoText()));
}

int PortOf(const Socket& listener) {
  sockaddr_in6 address = {};  // an IPv4 address has its port in the same place
  socklen_t length = sizeof(address);
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin6_port);
}

// Sleeps until the socket can be read (or written), or the deadline.
bool Ready(const Socket& socket, short events, absl::Time deadline) {
  pollfd entry = {.fd = socket.fd(), .events = events, .revents = 0};
  const auto left = absl::ToInt64Milliseconds(
      absl::Ceil(std::max(deadline - absl::Now(), absl::ZeroDuration()), absl::Milliseconds(1)));
  return poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) > 0;
}

bool SendHello(const Socket& socket, const Hello& hello) {
  return send(socket.fd(), &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
}

std::optional<Hello> ReceiveHello(const Socket& socket, absl::Time deadline) {
  Hello hello;
  size_t at = 0;
  while (at < sizeof(hello)) {
    if (!Ready(socket, POLLIN, deadline)) return std::nullopt;
    const ssize_t got =
        recv(socket.fd(), reinterpret_cast<char*>(&hello) + at, sizeof(hello) - at, 0);
    if (got <= 0) return std::nullopt;
    at += static_cast<size_t>(got);
  }
  return hello;
}

// Returns an error's text; empty: `socket` is a connection to that rank.
std::string TryAddress(const std::string& address, int port, const Hello& hello,
                       absl::Time deadline, Socket* socket) {
  const AddressList target = Resolve(address, port, AI_NUMERICHOST);
  if (target == nullptr) return "not an address";
  Socket made(::socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(made.fd(), target->ai_addr, target->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ErrnoText();
    if (!Ready(made, POLLOUT, deadline)) return "no answer";
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return std::strerror(error);
  }
  if (!SendHello(made, hello)) return ErrnoText();
  Hello expected = hello;
  std::swap(expected.from, expected.to);
  if (ReceiveHello(made, deadline) != expected) return "somebody else, or no answer";
  *socket = std::move(made);
  return "";
}

class Meeting {
 public:
  explicit Meeting(const TcpOptions& options)
      : options_(options), deadline_(absl::Now() + options.limit) {}

  absl::StatusOr<Mesh> Run() {
    RendezvousStore& store = *options_.store;
    const absl::StatusOr<Place> mine = OpenPlace();
    if (!mine.ok()) return FailRendezvous(store, options_.rank, mine.status());
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     Meet(store, options_.rank, options_.size, ToText(*mine), options_.limit));
    const absl::Status connected = Connect(texts);
    if (!connected.ok()) return FailRendezvous(store, options_.rank, connected);
    return std::move(mesh_);
  }

 private:
  absl::StatusOr<Place> OpenPlace() {
    ASSIGN_OR_RETURN(listener_, Listen());
    ASSIGN_OR_RETURN(std::vector<std::string> addresses, OwnAddresses(options_));
    return Place{.who = absl::StrCat(HostName(), " process ", getpid()),
                 .host = HostName(),
                 .port = PortOf(listener_),
                 .job = std::random_device()() * uint64_t{1'000'003},
                 .addresses = std::move(addresses)};
  }

  absl::Status Connect(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      ASSIGN_OR_RETURN(Place place, ParsePlace(text));
      mesh_.hosts.push_back(place.host);
      places_.push_back(std::move(place));
    }
    mesh_.sockets.resize(options_.size);
    for (int rank = 0; rank < options_.rank; ++rank) RETURN_IF_ERROR(ConnectTo(rank));
    RETURN_IF_ERROR(AcceptOthers());
    for (const Socket& socket : mesh_.sockets) {
      if (socket.fd() >= 0) SetOptions(socket);
    }
    return absl::OkStatus();
  }

  absl::Status ConnectTo(int rank) {
    const Place& place = places_[rank];
    const Hello hello{.job = places_[0].job, .from = options_.rank, .to = rank};
    std::vector<std::string> tried;
    do {
      tried.clear();
      for (const std::string& address : place.addresses) {
        const absl::Time deadline = std::min(deadline_, absl::Now() + kAnswerLimit);
        const std::string error =
            TryAddress(address, place.port, hello, deadline, &mesh_.sockets[rank]);
        if (error.empty()) return absl::OkStatus();
        tried.push_back(absl::StrCat(address, " port ", place.port, ": ", error));
      }
      RETURN_IF_ERROR(CheckRendezvous(*options_.store));
      absl::SleepFor(kSlice);
    } while (absl::Now() < deadline_);
    return Preflight(absl::StrCat("rank ", options_.rank, " (", HostName(),
                                  ") cannot connect to rank ", rank, " (", place.who,
                                  "): ", absl::StrJoin(tried, "; ")));
  }

  absl::Status AcceptOthers() {
    const auto first = mesh_.sockets.begin() + options_.rank + 1;
    while (true) {
      const auto missing =
          std::find_if(first, mesh_.sockets.end(), [](const Socket& s) { return s.fd() < 0; });
      if (missing == mesh_.sockets.end()) return absl::OkStatus();
      if (Ready(listener_, POLLIN, std::min(deadline_, absl::Now() + kSlice))) {
        AcceptOne();
        continue;
      }
      RETURN_IF_ERROR(CheckRendezvous(*options_.store));
      const auto rank = missing - mesh_.sockets.begin();
      if (absl::Now() >= deadline_) {
        return Preflight(absl::StrCat("rank ", rank, " (", places_[rank].who,
                                      ") did not connect to rank ", options_.rank, " (", HostName(),
                                      ") within ", absl::FormatDuration(options_.limit)));
      }
    }
  }

  // Whoever is not of this job is sent away.
  void AcceptOne() {
    Socket made(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made.fd() < 0) return;
    const std::optional<Hello> hello = ReceiveHello(made, absl::Now() + kAnswerLimit);
    if (!hello || hello->from <= options_.rank || hello->from >= options_.size) return;
    const Hello expected{.job = places_[0].job, .from = hello->from, .to = options_.rank};
    if (*hello != expected) return;
    if (!SendHello(made, {.job = hello->job, .from = hello->to, .to = hello->from})) return;
    mesh_.sockets[hello->from] = std::move(made);  // a second one: the peer has given the first up
  }

  // Small messages go out at once. A host that is gone without a word is noticed after 45 s.
  static void SetOptions(const Socket& socket) {
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
  Socket listener_;
  std::vector<Place> places_;
  Mesh mesh_;
};

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Mesh> ConnectAll(const TcpOptions& options) { return Meeting(options).Run(); }

}  // namespace deepnet
