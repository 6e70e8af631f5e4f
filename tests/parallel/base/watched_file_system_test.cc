#include "parallel/base/watched_file_system.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/memory_file_system.h"

namespace deepnet {
namespace {

TEST(WatchedFileSystem, TellsOfEveryCallThatHasEndedAndPassesAnswersOn) {
  testing::MemoryFileSystem memory;
  std::vector<std::string> told;
  WatchedFileSystem fs(memory, [&](const std::string& path) { told.push_back(path); });
  ASSERT_TRUE(fs.MakeFolder("run").ok());
  {
    const auto file = fs.OpenForAppend("run/a");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("text").ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE((*file)->Close().ok());
  }
  ASSERT_TRUE(fs.CreateNew("run/b").ok());
  char bytes[4];
  EXPECT_EQ(*fs.ReadAt("run/a", 1, bytes), 3);
  EXPECT_EQ(*fs.Size("run/a"), 4);
  EXPECT_TRUE(*fs.Exists("run/a"));
  EXPECT_EQ(fs.List("run")->size(), 2u);
  ASSERT_TRUE(fs.Rename("run/a", "run/c").ok());
  ASSERT_TRUE(fs.SyncFolder("run").ok());
  ASSERT_TRUE(fs.Delete("run/c").ok());
  EXPECT_TRUE(absl::IsNotFound(fs.Size("run/a").status()));
  EXPECT_EQ(told,
            (std::vector<std::string>{"run", "run/a", "run/a", "run/a", "run/a", "run/b", "run/a",
                                      "run/a", "run/a", "run", "run/a", "run", "run/c", "run/a"}));
}

}  // namespace
}  // namespace deepnet
