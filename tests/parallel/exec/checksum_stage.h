// A stage whose results are checksums: every value depends on all that was computed before it, in
// which order, and on every byte that crossed a cut. For tests of the executor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/exec/stage.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet::testing {

// Numbers of tensors that are sent over the cut before `chunk`.
inline int NumForwardTensors(int chunk) { return 1 + chunk % 2; }
inline int NumBackwardTensors(int chunk) { return 1 + (chunk + 1) % 3; }

class ChecksumStage final : public Stage {
 public:
  explicit ChecksumStage(const Placement& placement)
      : placement_(placement), gradients(placement.NumChunks(), 1) {}

  absl::Status Forward(int chunk, int microbatch) override {
    absl::StrAppend(&log, "F", chunk, ".", microbatch, " ");
    if (chunk == fails_at) return failure;
    const uint64_t input = chunk == 0 ? Mix(99, microbatch) : InputOf(chunk, microbatch);
    const uint64_t output = Mix(input, static_cast<uint64_t>(chunk));
    outputs_[{chunk, microbatch}] = output;
    if (CrossesAfter(chunk)) Fill(Boundary::kOutput, chunk, microbatch, output);
    return absl::OkStatus();
  }

  absl::Status Backward(int chunk, int microbatch) override {
    absl::Status status = BackwardInput(chunk, microbatch);
    return status.ok() ? BackwardWeight(chunk, microbatch) : status;
  }

  absl::Status BackwardInput(int chunk, int microbatch) override {
    absl::StrAppend(&log, "B", chunk, ".", microbatch, " ");
    const uint64_t gradient =
        Mix(OutputGradientOf(chunk, microbatch), outputs_.at({chunk, microbatch}));
    input_gradients_[{chunk, microbatch}] = gradient;
    if (placement_.Crosses(chunk)) Fill(Boundary::kInputGradient, chunk, microbatch, gradient);
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(int chunk, int microbatch) override {
    uint64_t& sum = gradients[chunk];
    sum = Mix(sum, input_gradients_.at({chunk, microbatch}));
    return absl::OkStatus();
  }

  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int microbatch) override {
    const bool before = boundary == Boundary::kInput || boundary == Boundary::kInputGradient;
    const bool forward = boundary == Boundary::kInput || boundary == Boundary::kOutput;
    const int cut = before ? chunk : chunk + 1;
    const auto [at, is_new] = live_.try_emplace({boundary, chunk, microbatch});
    std::vector<std::vector<uint64_t>>& tensors = at->second;
    if (is_new) {
      tensors.resize(forward ? NumForwardTensors(cut) : NumBackwardTensors(cut));
      for (size_t t = 0; t < tensors.size(); ++t) tensors[t].assign(t + 1, 0);
      int& alive = num_live_[{boundary, chunk}];
      if (++alive > most_live[boundary]) most_live[boundary] = alive;
      if (boundary == Boundary::kInput || boundary == Boundary::kOutputGradient) {
        most_received = std::max(most_received, ++num_received_);
      }
    }
    std::vector<Buffer> buffers;
    for (auto& tensor : tensors) buffers.push_back(Buffer::Of(std::span(tensor)));
    return buffers;
  }

  void Release(Boundary boundary, int chunk, int microbatch) override {
    num_released += static_cast<int>(live_.erase({boundary, chunk, microbatch}));
    --num_live_[{boundary, chunk}];
  }

  bool NothingLive() const { return live_.empty(); }

  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 29)) * 0x94D049BB133111EBu;
    return x ^ (x >> 32);
  }

  std::string log;    // "F<chunk>.<microbatch> B<chunk>.<microbatch> ..."
  int fails_at = -1;  // a forward of this chunk returns `failure`
  absl::Status failure;
  int num_released = 0;               // sends
  std::map<Boundary, int> most_live;  // buffers of one chunk at once
  int most_received = 0;              // messages of all chunks that have memory at once

 private:
  using Key = std::pair<int, int>;  // chunk, microbatch

  bool CrossesAfter(int chunk) const {
    return chunk + 1 < placement_.NumChunks() && placement_.Crosses(chunk + 1);
  }

  uint64_t InputOf(int chunk, int microbatch) {
    return placement_.Crosses(chunk) ? Take(Boundary::kInput, chunk, microbatch)
                                     : outputs_.at({chunk - 1, microbatch});
  }

  uint64_t OutputGradientOf(int chunk, int microbatch) {
    if (chunk + 1 == placement_.NumChunks()) return 5;
    return CrossesAfter(chunk) ? Take(Boundary::kOutputGradient, chunk, microbatch)
                               : input_gradients_.at({chunk + 1, microbatch});
  }

  // The first word that crosses is the value; the others follow from it.
  void Fill(Boundary boundary, int chunk, int microbatch, uint64_t value) {
    uint64_t word = value;
    for (const Buffer& buffer : Buffers(boundary, chunk, microbatch)) {
      for (int64_t i = 0; i < buffer.bytes; i += 8, word = Mix(word, 7)) {
        std::memcpy(static_cast<char*>(buffer.data) + i, &word, 8);
      }
    }
  }

  // Returns what Fill was given on the other side, or 0 if any word is wrong; ends the memory's
  // life.
  uint64_t Take(Boundary boundary, int chunk, int microbatch) {
    const auto at = live_.find({boundary, chunk, microbatch});
    if (at == live_.end()) return 0;
    uint64_t value = at->second[0][0];
    uint64_t expected = value;
    for (const auto& tensor : at->second) {
      for (const uint64_t word : tensor) {
        if (word != expected) value = 0;
        expected = Mix(expected, 7);
      }
    }
    live_.erase(at);
    --num_live_[{boundary, chunk}];
    --num_received_;
    return value;
  }

  const Placement placement_;
  std::map<Key, uint64_t> outputs_, input_gradients_;
  std::map<std::tuple<Boundary, int, int>, std::vector<std::vector<uint64_t>>> live_;
  std::map<std::pair<Boundary, int>, int> num_live_;
  int num_received_ = 0;

 public:
  std::vector<uint64_t> gradients;  // [chunk]; depends on the order of microbatches
};

}  // namespace deepnet::testing
