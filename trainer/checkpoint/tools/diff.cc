#include "trainer/checkpoint/tools/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 18;

// A tensor so far.
struct Comparison {
  int64_t num_different = 0;
  double max_absolute = 0.0;
  double magnitude = 0.0;  // the greatest finite |a| or |b|
};

void Compare(std::span<const float> a, std::span<const float> b, Comparison& so_far) {
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = std::fabs(static_cast<double>(a[i]));
    const double y = std::fabs(static_cast<double>(b[i]));
    if (std::isfinite(x)) so_far.magnitude = std::max(so_far.magnitude, x);
    if (std::isfinite(y)) so_far.magnitude = std::max(so_far.magnitude, y);
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    ++so_far.num_different;
    const double distance = std::isfinite(x) && std::isfinite(y)
                                ? std::fabs(static_cast<double>(a[i]) - b[i])
                                : std::numeric_limits<double>::infinity();
    so_far.max_absolute = std::max(so_far.max_absolute, distance);
  }
}

double Relative(const Comparison& comparison) {
  if (comparison.max_absolute == 0.0) return 0.0;
  return comparison.max_absolute / comparison.magnitude;  // infinite if nothing is finite
}

// Compares tensors of two checkpoints piece by piece.
class Differ {
 public:
  Differ(TensorReader& a, TensorReader& b, const ToolOptions& options)
      : a_(a), b_(b), options_(options), total_(TensorBytes(a.manifest())) {}

  absl::StatusOr<TensorDifference> Run(const StoredTensor& a, const StoredTensor& b) {
    Comparison comparison;
    for (int64_t at = 0; at < a.num_elements; at += kPieceElements) {
      const size_t count = static_cast<size_t>(std::min(kPieceElements, a.num_elements - at));
      piece_a_.resize(count);
      piece_b_.resize(count);
      RETURN_IF_ERROR(a_.Read(a, at, piece_a_));
      RETURN_IF_ERROR(b_.Read(b, at, piece_b_));
      Compare(piece_a_, piece_b_, comparison);
      done_ += static_cast<int64_t>(count) * kElementBytes;
      if (options_.progress) options_.progress(done_, total_);
    }
    return TensorDifference{.name = a.name,
                            .num_elements = a.num_elements,
                            .num_different = comparison.num_different,
                            .max_absolute = comparison.max_absolute,
                            .max_relative = Relative(comparison)};
  }

 private:
  TensorReader& a_;
  TensorReader& b_;
  const ToolOptions& options_;
  const int64_t total_;
  int64_t done_ = 0;
  std::vector<float> piece_a_, piece_b_;
};

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
  RETURN_IF_ERROR(ShareMemory(both, kReadManifestFactor, 2 * kPieceElements * kElementBytes,
                              options, "comparing two checkpoints"));
  CheckpointDiff diff{.folder_a = folder_a,
                      .folder_b = folder_b,
                      .step_a = a->manifest().step(),
                      .step_b = b->manifest().step()};
  Differ differ(*a, *b, options);
  for (const StoredTensor& tensor : a->tensors()) {
    if (!absl::StrContains(tensor.name, filter)) continue;
    const StoredTensor* const other = b->Find(tensor.name);
    if (other == nullptr) {
      diff.only_a.push_back(tensor.name);
    } else if (other->shape != tensor.shape) {
      diff.reshaped.push_back({tensor.name, tensor.shape, other->shape});
    } else {
      ASSIGN_OR_RETURN(TensorDifference difference, differ.Run(tensor, *other));
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
