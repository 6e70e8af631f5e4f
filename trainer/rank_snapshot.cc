#include "trainer/rank_snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/comm/agreement.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/model_loader.h"

namespace deepnet {
namespace {

// Extents (parallel/plan/shard.h) are ranges of a rank's buffers and may span parameters; a
// checkpoint knows parameters and ranges of their elements. RunsOf translates. Every element of the
// model is in exactly one extent that is first in the chain, so those make a whole checkpoint.

// A run of elements of one parameter that an extent holds.
struct ParameterRun {
  const Parameter* parameter = nullptr;
  int64_t first_element = 0;  // in the parameter's own order
  int64_t weight = 0;         // first element in the rank's weights
  int64_t state = 0;          // first element in the rank's moments
  int64_t count = 0;
};

std::vector<ParameterRun> RunsOf(const std::vector<Extent>& extents, const Inventory& held,
                                 bool only_first_in_chain) {
  std::vector<ParameterRun> runs;
  for (const Extent& extent : extents) {
    if (only_first_in_chain && !extent.first_in_chain) continue;
    for (const Parameter& p : held.parameters) {
      const int64_t begin = std::max(extent.weight, p.offset);
      const int64_t end = std::min(extent.weight + extent.count, p.offset + p.NumElements());
      if (begin >= end) continue;
      runs.push_back({.parameter = &p,
                      .first_element = begin - p.offset,
                      .weight = begin,
                      .state = extent.state + (begin - extent.weight),
                      .count = end - begin});
    }
  }
  return runs;
}

// A rank's tensors of one kind: weights, moments or, where it is kept, the weights' average.
struct Kind {
  const char* prefix;
  int64_t ParameterRun::*first;  // where a run begins in `tensor`
  at::Tensor tensor;
};

// Weights come first.
std::vector<Kind> KindsOf(const Parameters& parameters) {
  std::vector<Kind> kinds = {{kWeightPrefix, &ParameterRun::weight, parameters.weights()},
                             {kMoment1Prefix, &ParameterRun::state, parameters.moment1()},
                             {kMoment2Prefix, &ParameterRun::state, parameters.moment2()}};
  if (parameters.average().defined()) {
    kinds.push_back({kEmaPrefix, &ParameterRun::state, parameters.average()});
  }
  return kinds;
}

bool HoldsAverage(const Manifest& manifest) {
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      if (absl::StartsWith(extent.name(), kEmaPrefix)) return true;
    }
  }
  return false;
}

}  // namespace

RankSnapshot::RankSnapshot(const RankContext& context, bool copies) : context_(context) {
  if (!copies) return;
  if (on_device()) {
    side_ = MakeSideCopies(context.ops->session().stream());
  } else {
    const size_t elements = static_cast<size_t>(bytes()) / sizeof(float);
    memory_ = std::make_shared_for_overwrite<float[]>(elements);
  }
}

bool RankSnapshot::on_device() const { return !context_.model->parameters().weights().is_cpu(); }

// Not LibTorch's pinned memory: its allocator takes the next power of two, and keeps it.
absl::Status RankSnapshot::Pin(int threads) {
  if (side_ == nullptr) return absl::OkStatus();
  return CatchErrors(
      [&]() -> absl::Status {
        memory_ = side_->Pin(bytes(), threads);
        if (memory_ != nullptr) return absl::OkStatus();
        return DoesNotFitError(
            "host ", HostName(), " has no ", ByteText(bytes()),
            " of pinned memory for the copy of a save (parallel.blocking_saves: true does ",
            "without)");
      },
      context_.device_use());
}

void RankSnapshot::TouchMemory() {
  if (memory_ != nullptr && side_ == nullptr) {
    std::memset(memory_.get(), 0, static_cast<size_t>(bytes()));
  }
}

int64_t RankSnapshot::bytes() const {
  int64_t elements = 0;
  for (const Extent& extent : context_.layout.extents) {
    if (extent.first_in_chain) elements += extent.count;
  }
  const int64_t kinds = context_.model->parameters().average().defined() ? 4 : 3;
  return kinds * elements * static_cast<int64_t>(sizeof(float));
}

void RankSnapshot::Look() {
  const Parameters& parameters = context_.model->parameters();
  std::vector<Kind> kinds = KindsOf(parameters);
  held_.clear();
  for (Kind& kind : kinds) {
    if (on_device() && side_ == nullptr) kind.tensor = kind.tensor.to(at::kCPU);
    held_.push_back(kind.tensor);
  }
  tensors_.clear();
  for (const ParameterRun& run : RunsOf(context_.layout.extents, parameters.inventory(),
                                        /*only_first_in_chain=*/true)) {
    for (const Kind& kind : kinds) {
      tensors_.push_back({.name = kind.prefix + run.parameter->name,
                          .shape = run.parameter->shape,
                          .data = {kind.tensor.const_data_ptr<float>() + run.*kind.first,
                                   static_cast<size_t>(run.count)},
                          .first_element = run.first_element});
    }
  }
  if (side_ != nullptr) BeginCopy();
}

// Copies all weights, then each other kind: what lies side by side on the device is one part, so
// that there are few parts however many parameters there are.
void RankSnapshot::BeginCopy() {
  std::vector<SideCopy> parts;
  float* next = memory_.get();
  for (size_t kind = 0; kind < held_.size(); ++kind) {
    const float* end = nullptr;  // of the last part
    for (size_t i = kind; i < tensors_.size(); i += held_.size()) {
      std::span<const float>& data = tensors_[i].data;
      const auto count = static_cast<int64_t>(data.size());
      if (data.data() != end) parts.push_back({.from = data.data(), .to = next});
      parts.back().count += count;
      end = data.data() + count;
      data = {next, data.size()};
      next += count;
    }
  }
  side_->Begin(parts);
}

void RankSnapshot::HoldUpdate() {
  if (side_ != nullptr) side_->HoldStream();
}

absl::Status RankSnapshot::Copy() {
  if (memory_ == nullptr) return absl::OkStatus();
  if (side_ != nullptr) {
    return CatchErrors([&] {
      side_->Wait();
      return absl::OkStatus();
    });
  }
  float* next = memory_.get();
  for (NamedTensor& tensor : tensors_) {
    std::copy(tensor.data.begin(), tensor.data.end(), next);
    tensor.data = {next, tensor.data.size()};
    next += tensor.data.size();
  }
  held_.clear();
  return absl::OkStatus();
}

absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankContext& context) {
  Parameters& parameters = context.model->parameters();
  const std::vector<Kind> kinds = KindsOf(parameters);
  std::vector<Kind> read = kinds;  // on the host; the tensors themselves if they are there already
  const bool begins_average = parameters.average().defined() && !HoldsAverage(manifest);
  if (begins_average) read.pop_back();
  for (Kind& kind : read) kind.tensor = kind.tensor.to(at::kCPU);
  std::vector<MutableNamedTensor> tensors;  // together, so that a block is read once
  for (const Parameter& p : parameters.inventory().parameters) {
    tensors.push_back({.name = kWeightPrefix + p.name,
                       .shape = p.shape,
                       .data = {read[0].tensor.data_ptr<float>() + p.offset,
                                static_cast<size_t>(p.NumElements())}});
  }
  for (const ParameterRun& run :
       RunsOf(context.layout.extents, parameters.inventory(), /*only_first_in_chain=*/false)) {
    for (size_t i = 1; i < read.size(); ++i) {
      tensors.push_back({.name = read[i].prefix + run.parameter->name,
                         .shape = run.parameter->shape,
                         .data = {read[i].tensor.data_ptr<float>() + run.*read[i].first,
                                  static_cast<size_t>(run.count)},
                         .first_element = run.first_element});
    }
  }
  RETURN_IF_ERROR(ReadTensors(fs, checkpoint_folder, manifest, tensors));
  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i].tensor.is_same(kinds[i].tensor)) kinds[i].tensor.copy_(read[i].tensor);
  }
  if (begins_average) context.optimizer->BeginAverage(parameters);
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashRankWeights(const RankContext& context, const Inventory& whole) {
  const Inventory& held = context.model->parameters().inventory();
  const std::vector<uint64_t> own = ParameterHashes(context.model->parameters());
  std::string lines;
  for (size_t i = 0; i < own.size(); ++i) {
    absl::StrAppend(&lines, held.parameters[i].name, " ", own[i], "\n");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherText(*context.world, lines));
  absl::flat_hash_map<std::string, uint64_t> hashes;
  for (const std::string& text : all) {
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> entry = absl::StrSplit(line, ' ');
      uint64_t hash = 0;
      if (absl::SimpleAtoi(entry.second, &hash)) hashes.emplace(entry.first, hash);
    }
  }
  std::vector<uint64_t> in_order;
  for (const Parameter& p : whole.parameters) in_order.push_back(hashes.at(p.name));
  return WeightsHash(in_order);
}

}  // namespace deepnet
