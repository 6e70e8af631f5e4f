// Incremental decoding through a chunk.
#include "trainer/model/chunk.h"

namespace deepnet {

void Chunk::FillMemoryCaches(const PackedRows& source, const at::Tensor& memory_RD,
                             std::span<const at::Tensor> kv_R2D) const {
  const PassContext pass{.ops = &ops_, .rows = &source, .keep = false};
  const Memory memory{.rows = &source, .value_RD = memory_RD, .gradient_RD = {}};
  for (int i = 0; i < decoder_.size(); ++i) decoder_.layers()[i].FillCache(pass, memory, kv_R2D[i]);
}

void Chunk::DecodeStep(const PackedRows& rows, int64_t step, const Flow& values,
                       const DecodeCaches& caches, ChunkWorkspace& work, Kept& kept,
                       const at::Tensor& logits_RV) const {
  const PassContext pass{
      .ops = &ops_, .rows = &rows, .step = step, .keep = false, .second_RD = work.target.second_RD};
  const Stream stream = TargetStream(values.target_RD, work);
  std::vector<DecoderLayer::Saved>& saved = kept.decoder.saved;
  EnterDecoder(pass, stream, kept);
  for (int i = 0; i < decoder_.size(); ++i) {
    decoder_.BeforeLayer(pass, i, stream, kept.decoder);
    decoder_.layers()[i].Step(pass, stream, work.target, saved[i % saved.size()], caches.self[i],
                              caches.first_row, caches.self_index, caches.memory[i],
                              caches.memory_index);
    decoder_.AfterLayer(pass, i, stream, kept.decoder);
  }
  LeaveDecoder(pass, stream, kept);
  if (output_) output_->Logits(pass, stream.operand_RD, logits_RV);
}

}  // namespace deepnet
