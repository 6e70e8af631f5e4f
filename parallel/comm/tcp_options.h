// How a process joins a job of TCP connections.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

#include "parallel/comm/rendezvous.h"

namespace deepnet {

struct TcpOptions {
  int rank = 0;  // 0 <= rank < size
  int size = 1;
  std::shared_ptr<RendezvousStore> store;    // let go when all ranks are connected
  absl::Duration limit = absl::Minutes(10);  // for all ranks to come and to connect
  SayWaiting say = {};                       // told for whom this rank waits
  std::string interface = {};  // of the network, "eth0"; empty: the one that leads to `toward`,
                               // then every other that is up
  std::string toward = {};     // a host's name or address; may be empty
  std::string secret = {};     // of the job: no process counts that does not prove to know it
  std::function<void(const std::string&)> refused = {};  // hears of connections without the secret
};

}  // namespace deepnet
