#include "tests/mpi/mpi_main.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

#include "launch/job.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr absl::Duration kMeetLimit = absl::Minutes(1);

class BodyTest final : public testing::Test {
 public:
  explicit BodyTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  const std::function<void()> body_;
};

// Ranks meet after each test, so that none sends into the next one of another.
class MeetAfterEachTest final : public testing::EmptyTestEventListener {
 public:
  explicit MeetAfterEachTest(Communicator& world) : world_(world) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed() || world_.rank() == 0) return;  // rank 0 has GoogleTest's own printer
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", world_.rank(), result.file_name(),
                 result.line_number(), result.message());
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    const absl::Status met = world_.Barrier(kMeetLimit);
    if (met.ok()) return;
    std::fprintf(stderr, "rank %d, after %s: %s\n", world_.rank(), test.name(),
                 met.ToString().c_str());
    world_.Abort(static_cast<int>(ExitCode::kHang));
  }

 private:
  Communicator& world_;
};

int RunOnAllRanks(Communicator& world) {
  AddMpiTests(world);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new MeetAfterEachTest(world));  // owned by GoogleTest
  double failed = RUN_ALL_TESTS();
  const absl::Status summed = world.AllReduceSum(std::span(&failed, 1), kMeetLimit);
  return summed.ok() && failed == 0 ? 0 : 1;
}

}  // namespace

void AddMpiTest(const std::string& suite, const std::string& name, std::function<void()> body) {
  testing::RegisterTest(
      suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
      [body = std::move(body)]() -> testing::Test* { return new BodyTest(body); });
}

}  // namespace deepnet

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto job = deepnet::JoinJob();
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return static_cast<int>(deepnet::GetExitCode(job.status()));
  }
  return deepnet::RunOnAllRanks(**job);
}
