// Memory of what passes between the chunks of a pipeline: the boundary activations and gradients of
// every microbatch in flight.
//
// A chunk takes them at one boundary, works on them in place and leaves them at the other: a
// received buffer becomes the next one to send. Between two chunks of a rank nothing is sent.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// Buffers of one shape that return to the pool when their last handle is dropped. Views do not
// count as handles. Used by one thread.
class RowBuffers {
 public:
  RowBuffers(int64_t rows, int64_t width, at::TensorOptions options)
      : rows_(rows), width_(width), options_(options) {}

  // Returns a free buffer, [rows, width]. Its contents are left over from an earlier use.
  at::Tensor Claim();

 private:
  int64_t rows_, width_;
  at::TensorOptions options_;
  std::vector<at::Tensor> buffers_;
};

class BoundaryPool {
 public:
  enum class Way { kForward, kBackward };
  // A boundary is named by the number of the chunk after it.
  struct Place {
    Way way;
    int boundary;
    int microbatch;

    friend auto operator<=>(const Place&, const Place&) = default;
  };

  // `messages`: those of the whole chain (MakeStageMessages).
  BoundaryPool(Transformer& model, std::vector<StageMessages> messages);

  RowBuffers& source() { return source_; }  // [S, D]; also the encoder output's gradient
  RowBuffers& target() { return target_; }  // [T, D]
  RowBuffers& encoder_output() { return encoder_output_; }  // [S, D], operand type

  void Put(const Place& place, BoundaryActivations flow) { flows_[place] = std::move(flow); }
  // Removes and returns what lies at `place`; an empty BoundaryActivations if nothing does.
  BoundaryActivations Take(const Place& place);
  void Clear() { flows_.clear(); }

  // Returns those of `tensors` that cross this boundary between ranks.
  BoundarySet Restrict(const Place& place, BoundarySet tensors) const;
  // Returns the memory of those of `tensors` that cross this boundary, in the order of
  // Layer::inputs; empty if none do. With `received`, buffers are claimed if none lie there yet;
  // without it, they must lie there.
  std::vector<Buffer> Buffers(const Place& place, const BoundarySet& tensors, bool received);

 private:
  const std::vector<BoundaryTensor>& TensorsAt(const Place& place) const;

  const Ops& ops_;
  std::vector<StageMessages> messages_;  // with an empty one for the end of the chain
  RowBuffers source_, target_, encoder_output_;
  std::map<Place, BoundaryActivations> flows_;
};

}  // namespace deepnet
