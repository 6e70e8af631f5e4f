#include "parallel/base/units.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace deepnet {

std::string ByteText(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1023.95) break;
    value /= 1024.0;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

}  // namespace deepnet
