#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>

#include "absl/strings/match.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/inspect.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

// Elements that are read at a time; those of both checkpoints fit into a processor's cache.
constexpr int64_t kComparedElements = int64_t{1} << 16;

struct Comparison {
  int64_t num_different = 0;
  double max_absolute = 0.0;
  double magnitude = 0.0;  // the greatest finite |a| or |b|
};

// Elements of a run: a constant, so that compilers can vectorise the loop over it.
constexpr size_t kRun = 1024;

constexpr int32_t kMagnitude = 0x7fffffff;  // all bits of a float but its sign
constexpr int32_t kInfinity = 0x7f800000;   // magnitudes of finite numbers are below, in order

struct Glance {
  int32_t num_different = 0;
  int32_t magnitude = 0;  // bits of the greatest finite |a| or |b|
};

Glance LookAt(const float* a, const float* b) {
  Glance glance;
  for (size_t i = 0; i < kRun; ++i) {
    const int32_t x = std::bit_cast<int32_t>(a[i]), y = std::bit_cast<int32_t>(b[i]);
    const int32_t size_x = x & kMagnitude, size_y = y & kMagnitude;
    const int32_t finite_x = size_x < kInfinity ? size_x : 0;
    const int32_t finite_y = size_y < kInfinity ? size_y : 0;
    const int32_t greater = finite_x < finite_y ? finite_y : finite_x;
    glance.magnitude = glance.magnitude < greater ? greater : glance.magnitude;
    glance.num_different += x != y ? 1 : 0;
  }
  return glance;
}

// Elements that differ and have no distance, because one is not a number, are infinitely far apart.
double GreatestDistance(const float* a, const float* b) {
  double greatest = 0.0;
  for (size_t i = 0; i < kRun; ++i) {
    const bool same = std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]);
    double distance = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(distance)) distance = std::numeric_limits<double>::infinity();
    if (!same && distance > greatest) greatest = distance;
  }
  return greatest;
}

void CompareRun(const float* a, const float* b, Comparison& so_far) {
  const Glance glance = LookAt(a, b);
  so_far.magnitude =
      std::max(so_far.magnitude, static_cast<double>(std::bit_cast<float>(glance.magnitude)));
  if (glance.num_different == 0) return;
  so_far.num_different += glance.num_different;
  so_far.max_absolute = std::max(so_far.max_absolute, GreatestDistance(a, b));
}

void Compare(std::span<const float> a, std::span<const float> b, Comparison& so_far) {
  const size_t whole = a.size() - a.size() % kRun;
  for (size_t at = 0; at < whole; at += kRun) CompareRun(&a[at], &b[at], so_far);
  if (whole == a.size()) return;
  std::array<float, kRun> rest_a = {}, rest_b = {};  // zeros behind the last element change nothing
  std::copy(a.begin() + static_cast<std::ptrdiff_t>(whole), a.end(), rest_a.begin());
  std::copy(b.begin() + static_cast<std::ptrdiff_t>(whole), b.end(), rest_b.begin());
  CompareRun(rest_a.data(), rest_b.data(), so_far);
}

// Compares a tensor of two checkpoints piece by piece; `progress` gets the bytes of each piece.
absl::StatusOr<TensorDifference> CompareTensors(TensorReader& reader_a, const StoredTensor& a,
                                                TensorReader& reader_b, const StoredTensor& b,
                                                const std::function<void(int64_t)>& progress) {
  std::vector<float> piece_a, piece_b;
  Comparison comparison;
  for (int64_t at = 0; at < a.num_elements; at += kComparedElements) {
    const int64_t count = std::min(kComparedElements, a.num_elements - at);
    piece_a.resize(static_cast<size_t>(count));
    piece_b.resize(static_cast<size_t>(count));
    RETURN_IF_ERROR(reader_a.Read(a, at, piece_a));
    RETURN_IF_ERROR(reader_b.Read(b, at, piece_b));
    Compare(piece_a, piece_b, comparison);
    progress(count * kElementBytes);
  }
  TensorDifference difference{.name = a.name,
                              .num_elements = a.num_elements,
                              .num_different = comparison.num_different,
                              .max_absolute = comparison.max_absolute};
  if (comparison.max_absolute != 0.0) {  // infinite if nothing is finite
    difference.max_relative = comparison.max_absolute / comparison.magnitude;
  }
  return difference;
}

}  // namespace

absl::StatusOr<CheckpointDiff> DiffCheckpoints(FileSystem& fs, const std::string& folder_a,
                                               const std::string& folder_b,
                                               const std::string& filter,
                                               const ToolOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> a,
                   TensorReader::Open(fs, folder_a, options));
  ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> b,
                   TensorReader::Open(fs, folder_b, options));
  TensorReader* const both[] = {a.get(), b.get()};
  RETURN_IF_ERROR(ShareMemory(both, kReadManifestFactor, 2 * kComparedElements * kElementBytes,
                              options, "comparing two checkpoints"));
  CheckpointDiff diff{.folder_a = folder_a,
                      .folder_b = folder_b,
                      .step_a = a->manifest().step(),
                      .step_b = b->manifest().step()};
  const int64_t total = TensorBytes(a->manifest());
  int64_t done = 0;
  const auto progress = [&](int64_t bytes) { options.progress(done += bytes, total); };
  for (const StoredTensor& tensor : a->tensors()) {
    if (!absl::StrContains(tensor.name, filter)) continue;
    const StoredTensor* const other = b->Find(tensor.name);
    if (other == nullptr) {
      diff.only_a.push_back(tensor.name);
    } else if (other->shape != tensor.shape) {
      diff.reshaped.push_back({tensor.name, tensor.shape, other->shape});
    } else {
      ASSIGN_OR_RETURN(TensorDifference difference,
                       CompareTensors(*a, tensor, *b, *other, progress));
      if (difference.num_different == 0) {
        ++diff.num_equal;
      } else {
        diff.different.push_back(std::move(difference));
      }
    }
  }
  for (const StoredTensor& tensor : b->tensors()) {
    if (absl::StrContains(tensor.name, filter) && a->Find(tensor.name) == nullptr) {
      diff.only_b.push_back(tensor.name);
    }
  }
  return diff;
}

}  // namespace deepnet
