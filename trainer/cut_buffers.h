// What lies at the cuts of a rank's chunks: values on their way forward, gradients on their way
// back, of every microbatch in flight, in pooled buffers.
//
// One chunk puts a flow there and the next one takes it, or it is sent away or received; either way
// the buffers move, nothing is copied.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/plan/stage_messages.h"
#include "trainer/model/transformer.h"
#include "trainer/stream_pool.h"

namespace deepnet {

class CutBuffers {
 public:
  enum class Way { kForward, kBackward };
  // A cut is named by the number of the chunk behind it.
  struct Place {
    Way way;
    int cut;
    int microbatch;

    friend auto operator<=>(const Place&, const Place&) = default;
  };

  // `crossings`: of the whole chain (MakeStageMessages).
  CutBuffers(Transformer& model, std::vector<StageMessages> crossings);

  StreamPool& source() { return source_; }  // [S, D] stream; also the memory's gradient
  StreamPool& target() { return target_; }  // [T, D] stream
  StreamPool& memory() { return memory_; }  // [S, D] operand

  void Put(const Place& place, Flow flow) { flows_[place] = std::move(flow); }
  // What lies there, which then does not any more; nothing if nothing does.
  Flow Take(const Place& place);
  void Clear() { flows_.clear(); }

  // Those of `tensors` that cross this cut between ranks.
  CutTensors Restrict(const Place& place, CutTensors tensors) const;
  // Their memory, in the order of Layer::inputs; empty where nothing crosses. `received`: made now
  // if nothing lies there yet; otherwise it must.
  std::vector<Buffer> Buffers(const Place& place, const CutTensors& tensors, bool received);

 private:
  const std::vector<BoundaryTensor>& TensorsAt(const Place& place) const;

  std::vector<StageMessages> crossings_;  // and an empty one for the end of the chain
  StreamPool source_, target_, memory_;
  std::map<Place, Flow> flows_;
};

// Those of `flow` that `tensors` names.
Flow Only(const CutTensors& tensors, const Flow& flow);

}  // namespace deepnet
