#include "tests/support/trace_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

namespace deepnet::testing {
namespace {

using ::testing::AnyOf;

using Fields = google::protobuf::Map<std::string, google::protobuf::Value>;

constexpr int kGpuLine = 2;

std::string Text(const Fields& fields, const std::string& key) {
  const auto found = fields.find(key);
  return found == fields.end() ? "" : found->second.string_value();
}

int64_t Number(const Fields& fields, const std::string& key, double unit = 1.0) {
  const auto found = fields.find(key);
  return found == fields.end() ? -1 : std::llround(unit * found->second.number_value());
}

FileEvent EventOf(const Fields& fields) {
  FileEvent event{.name = Text(fields, "name"),
                  .category = Text(fields, "cat"),
                  .phase = Text(fields, "ph"),
                  .rank = static_cast<int>(Number(fields, "pid")),
                  .line = static_cast<int>(Number(fields, "tid")),
                  .start = Number(fields, "ts", 1e3)};
  event.end = event.start + std::max<int64_t>(0, Number(fields, "dur", 1e3));
  const auto identity = fields.find("id2");
  if (identity != fields.end()) {
    event.identity = Text(identity->second.struct_value().fields(), "local");
  }
  const auto arguments = fields.find("args");
  if (arguments == fields.end()) return event;
  const Fields& more = arguments->second.struct_value().fields();
  event.action = Text(more, "action");
  event.step = Number(more, "step");
  event.bytes = Number(more, "bytes");
  event.microbatch = static_cast<int>(Number(more, "microbatch"));
  return event;
}

void ExpectBeginsHaveEnds(const std::vector<FileEvent>& events) {
  std::map<std::tuple<int, std::string, std::string>, int64_t> open;
  for (const FileEvent& event : events) {
    const std::tuple key(event.rank, event.identity, event.category);
    if (event.phase == "b") {
      EXPECT_TRUE(open.emplace(key, event.start).second) << event.name;
    } else if (event.phase == "e") {
      ASSERT_EQ(open.count(key), 1u) << event.name;
      EXPECT_LE(open[key], event.start) << event.name;
      open.erase(key);
    } else {
      EXPECT_EQ(event.phase, "X") << event.name;
    }
  }
  EXPECT_TRUE(open.empty());
}

void ExpectNested(const std::vector<FileEvent>& events) {
  std::map<std::pair<int, int>, std::vector<FileEvent>> open;  // by line, what later ones may be in
  for (const FileEvent& event : events) {
    if (event.phase != "X") continue;
    std::vector<FileEvent>& outer = open[{event.rank, event.line}];
    while (!outer.empty() && outer.back().end <= event.start) outer.pop_back();
    if (!outer.empty()) {
      EXPECT_LE(event.end, outer.back().end) << event.name << " in " << outer.back().name;
      EXPECT_GE(event.start, outer.back().start) << event.name << " in " << outer.back().name;
    }
    outer.push_back(event);
  }
}

// Returns how often each (rank, step, action) is there, of a category.
std::map<std::tuple<int, int64_t, std::string>, int> CountActions(
    const std::vector<FileEvent>& events, const std::string& category, bool by_name) {
  std::map<std::tuple<int, int64_t, std::string>, int> counts;
  for (const FileEvent& event : events) {
    if (event.category != category || event.phase == "e") continue;
    ++counts[{event.rank, event.step, by_name ? event.name : event.action}];
  }
  return counts;
}

void ExpectActions(const std::vector<FileEvent>& events, const TracedRun& run) {
  std::map<std::tuple<int, int64_t, std::string>, int> computed, sent, received;
  for (int64_t step = run.from; step <= run.to; ++step) {
    for (int rank = 0; rank < run.stages * run.replicas; ++rank) {
      const int stage = rank % run.stages;
      for (int m = 0; m < run.microbatches; ++m) {
        for (const char* op : {"F", "B"}) computed[{rank, step, absl::StrCat(stage, op, m)}] = 1;
        if (stage + 1 < run.stages) {
          sent[{rank, step, absl::StrCat(stage, "SF", m)}] = 1;
          received[{rank, step, absl::StrCat(stage, "RB", m)}] = 1;
        }
        if (stage > 0) {
          sent[{rank, step, absl::StrCat(stage, "SB", m)}] = 1;
          received[{rank, step, absl::StrCat(stage, "RF", m)}] = 1;
        }
      }
    }
  }
  EXPECT_EQ(CountActions(events, "compute", /*by_name=*/false), computed);
  EXPECT_EQ(CountActions(events, "send", /*by_name=*/false), sent);
  EXPECT_EQ(CountActions(events, "receive", /*by_name=*/false), received);
  if (!run.on_gpu) return;
  const auto on_device = CountActions(events, "device", /*by_name=*/true);
  for (const auto& [action, count] : computed) EXPECT_EQ(on_device.count(action), 1u);
}

// Every action has kernels, and every kernel lies inside of an action of its line. On a GPU those
// of the step as a whole lie outside: what goes to the device and back, the norm and the update.
void ExpectKernels(const std::vector<FileEvent>& events, const TracedRun& run) {
  const int line = run.on_gpu ? kGpuLine : 0;
  std::map<int, std::vector<FileEvent>> around;  // by rank: actions, with kernels counted
  std::map<int, std::vector<int>> inside;
  for (const FileEvent& event : events) {
    if (event.category == (run.on_gpu ? "device" : "compute")) {
      around[event.rank].push_back(event);
      inside[event.rank].push_back(0);
      EXPECT_EQ(event.line, line);
    } else if (event.category == "kernel") {
      EXPECT_EQ(event.line, line) << event.name;
      EXPECT_NE(event.name, "");
      if (!around[event.rank].empty() && event.start < around[event.rank].back().end) {
        EXPECT_LE(event.end, around[event.rank].back().end) << event.name;
        ++inside[event.rank].back();
      } else if (run.on_gpu) {
        EXPECT_THAT(event.name, AnyOf("Upload", "SumSquares", "Add", "Adam", "ReadBack"));
      }
    }
  }
  ASSERT_EQ(around.size(), static_cast<size_t>(run.stages * run.replicas));
  for (const auto& [rank, counts] : inside) {
    for (size_t i = 0; i < counts.size(); ++i) {
      EXPECT_GE(counts[i], 1) << "rank " << rank << ", " << around[rank][i].name;
    }
  }
}

void ExpectOncePerStep(const std::vector<FileEvent>& events, const TracedRun& run) {
  for (const std::string category : {"step", "data", "norm", "update", "gather"}) {
    std::map<std::pair<int, int64_t>, int> counts;
    for (const FileEvent& event : events) {
      if (event.category == category) ++counts[{event.rank, event.step}];
    }
    EXPECT_EQ(counts.size(),
              static_cast<size_t>(run.stages * run.replicas * (run.to - run.from + 1)))
        << category;
    for (const auto& [where, count] : counts) EXPECT_EQ(count, 1) << category;
  }
  int64_t sums = 0;
  for (const FileEvent& event : events) {
    if (event.category != "sum" || event.phase != "b") continue;
    ++sums;
    EXPECT_GT(event.bytes, 0);
  }
  EXPECT_EQ(sums > 0, run.replicas > 1);
}

}  // namespace

std::vector<FileEvent> ReadTrace(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  google::protobuf::Struct json;
  const auto status = google::protobuf::util::JsonStringToMessage(text.str(), &json);
  EXPECT_TRUE(status.ok()) << file << ": " << status;
  std::vector<FileEvent> events;
  if (!status.ok()) return events;
  for (const auto& value : json.fields().at("traceEvents").list_value().values()) {
    if (Text(value.struct_value().fields(), "ph") == "M") continue;
    events.push_back(EventOf(value.struct_value().fields()));
  }
  return events;
}

void ExpectWholeTrace(const std::vector<FileEvent>& events, const TracedRun& run) {
  ASSERT_FALSE(events.empty());
  ExpectBeginsHaveEnds(events);
  ExpectNested(events);
  ExpectActions(events, run);
  ExpectKernels(events, run);
  ExpectOncePerStep(events, run);
}

}  // namespace deepnet::testing
