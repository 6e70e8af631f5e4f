// A folder of one test, with helpers to put files there and read them back. Header-only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet::testing {

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Made empty for the running test, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("deepnet_") + info->test_suite_name() + "_" + info->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string Path(std::string_view name) const { return (path_ / name).string(); }

  // Writes a file, making its folders; returns its path.
  std::string Write(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }

  // Returns the paths of all that is below `folder`, relative to it.
  std::vector<std::string> FilesBelow(std::string_view folder) const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_ / folder)) {
      paths.push_back(std::filesystem::relative(entry.path(), path_ / folder).string());
    }
    return paths;
  }

  // Makes a file of 64 GiB of zeros that takes no space; returns its path.
  std::string WriteHuge(std::string_view name) const {
    const std::string path = Write(name, "");
    std::filesystem::resize_file(path, uintmax_t{64} << 30);
    return path;
  }

  std::string Read(std::string_view name) const { return ReadFile(path_ / name); }

 private:
  std::filesystem::path path_;
};

}  // namespace deepnet::testing
