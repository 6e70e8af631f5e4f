#include "launch/rendezvous_store.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

// The first line of what was thrown: c10d's errors go on with a backtrace.
std::string TextOf(const std::exception& error) {
  const auto* const with_backtrace = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      with_backtrace != nullptr ? with_backtrace->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// LibTorch throws where the store is gone; what `call` throws is Unavailable.
template <typename Call>
auto Catch(const Call& call) -> absl::StatusOr<decltype(call())> {
  try {
    return call();
  } catch (const std::exception& error) {
    return absl::UnavailableError(TextOf(error));
  }
}

// Keeps LibTorch's log quiet while it lives. c10d writes two warnings for every wait that ends
// without its key, several a second while a rank is awaited, and a backtrace with what it throws;
// our errors say all of that.
class QuietLog {
 public:
  QuietLog() { FLAGS_caffe2_log_level = std::max(before_, c10::GLOG_FATAL); }
  ~QuietLog() { FLAGS_caffe2_log_level = before_; }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  const int before_ = FLAGS_caffe2_log_level;
};

class C10dStore final : public RendezvousStore {
 public:
  C10dStore(std::unique_ptr<QuietLog> quiet, std::string place,
            c10::intrusive_ptr<c10d::Store> store)
      : quiet_(std::move(quiet)), place_(std::move(place)), store_(std::move(store)) {}

  std::string Place() const override { return place_; }

  absl::Status Set(const std::string& key, const std::string& value) override {
    return Catch([&] {
             store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
             return true;
           })
        .status();
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration limit) override {
    try {
      store_->wait({key}, Milliseconds(limit));
    } catch (const std::exception& error) {
      const bool late = dynamic_cast<const c10::DistStoreError*>(&error) != nullptr ||
                        absl::StrContains(TextOf(error), "Wait timeout");  // of a FileStore
      if (late) return absl::DeadlineExceededError(key);
      return absl::UnavailableError(TextOf(error));
    }
    return Catch([&] {
      const std::vector<uint8_t> bytes = store_->get(key);
      return std::string(bytes.begin(), bytes.end());
    });
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    return Catch([&] { return store_->add(key, amount); });
  }

  absl::Status Delete(const std::string& key) override {
    return Catch([&] { return store_->deleteKey(key); }).status();
  }

 private:
  const std::unique_ptr<QuietLog> quiet_;
  const std::string place_;
  const c10::intrusive_ptr<c10d::Store> store_;
};

absl::Status OpenError(const Launch& launch, bool serves, absl::Duration limit,
                       const std::string& text) {
  if (!launch.file.empty()) return PreflightError(launch.Place(), ": ", text);
  if (serves) {
    const bool in_use =
        absl::StrContains(text, "EADDRINUSE") || absl::StrContains(text, "address already in use");
    return PreflightError("rank 0 cannot listen at ", launch.Place(), ": ",
                          in_use ? "the port is in use, by another program, an "
                                   "earlier job, or a second rank 0"
                                 : text);
  }
  return PreflightError("rank 0 did not come: nobody answers at ", launch.Place(), " within ",
                        absl::FormatDuration(limit), ": ", text);
}

// Connects to the store within kSayWaitingAfter; null if that fails.
c10::intrusive_ptr<c10d::Store> ConnectSoon(const Launch& launch, c10d::TCPStoreOptions options) {
  const std::chrono::milliseconds limit = options.timeout;
  options.timeout = Milliseconds(kSayWaitingAfter);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.host, options);
    store->setTimeout(limit);
    return store;
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousStore>> OpenRendezvousStore(const Launch& launch,
                                                                     absl::Duration limit,
                                                                     const SayWaiting& say) {
  const bool serves = launch.rank == 0 && !launch.agent_store;
  auto quiet = std::make_unique<QuietLog>();
  try {
    c10::intrusive_ptr<c10d::Store> store;
    if (launch.file.empty()) {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(launch.port);
      options.isServer = serves;
      options.waitWorkers = false;
      options.timeout = Milliseconds(limit);
      if (!serves && limit > kSayWaitingAfter) store = ConnectSoon(launch, options);
      if (store == nullptr) {
        if (!serves) say(absl::StrCat("the store of rank 0 at ", launch.Place()));
        store = c10::make_intrusive<c10d::TCPStore>(launch.host, options);
      }
    } else {
      store = c10::make_intrusive<c10d::FileStore>(launch.file, launch.size);
    }
    const std::string prefix = absl::StrCat("deepnet/", launch.prefix);
    return std::make_unique<C10dStore>(
        std::move(quiet), launch.Place(),
        c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store)));
  } catch (const std::exception& error) {
    return OpenError(launch, serves, limit, TextOf(error));
  }
}

}  // namespace deepnet
