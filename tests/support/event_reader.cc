#include "tests/support/event_reader.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace deepnet::testing {
namespace {

uint32_t SlowMaskedCrc(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

uint64_t Number(const std::string& bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    number = 256 * number + static_cast<unsigned char>(bytes[i]);
  }
  return number;
}

}  // namespace

std::vector<tensorboard::Event> ReadEventFile(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = content.str();
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at + 12 <= bytes.size();) {
    const std::string head = bytes.substr(at, 8);
    const uint64_t length = Number(head);
    if (Number(bytes.substr(at + 8, 4)) != SlowMaskedCrc(head)) break;
    if (length > bytes.size() || at + 16 + length > bytes.size()) break;
    const std::string event = bytes.substr(at + 12, length);
    if (Number(bytes.substr(at + 12 + length, 4)) != SlowMaskedCrc(event)) break;
    if (!events.emplace_back().ParseFromString(event)) break;
    at += 16 + length;
  }
  return events;
}

ShownFigures ReadShownFigures(const std::string& folder) {
  std::set<std::string> files;  // TensorBoard reads them in order of name
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.insert(entry.path());
  ShownFigures shown;
  for (const std::string& file : files) {
    for (const tensorboard::Event& event : ReadEventFile(file)) {
      if (event.has_session_log()) {
        for (auto& [tag, steps] : shown) steps.erase(steps.lower_bound(event.step()), steps.end());
      }
      for (const tensorboard::Summary::Value& value : event.summary().value()) {
        if (value.has_tensor()) continue;
        shown[value.tag()][event.step()] = value.simple_value();
      }
    }
  }
  return shown;
}

}  // namespace deepnet::testing
