// States in the Inventory what the layers of a Transformer keep, hold and use of a full microbatch.
// These figures stand nowhere else: tests hold them to the bytes that layers allocate.
//
// A level of recomputation names what is not kept but computed again in the backward pass, with the
// same kernels on the same numbers, so that every level gives the same bits
// (docs/design/recomputation.md):
//
//   NONE            nothing
//   SELECTIVE_FFN   the feed-forward block's inner rows, by its first product
//   SELECTIVE_GEMM  also queries, keys and values of every attention, by theirs
//   FULL            all but the stream that enters a segment of layers, by running the segment
//   again
//
// Pure. Every Add* adds to `layer`.
#pragma once

#include <cstdint>

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/model/describe_parameters.h"

namespace deepnet {

// `rows` of queries, `key_rows` of keys and values.
void AddAttentionMemory(const ModelSpec& model, const Sublayer& sublayer, int64_t rows,
                        int64_t key_rows, Layer& layer);
void AddFeedForwardMemory(const ModelSpec& model, const Sublayer& sublayer, int64_t rows,
                          Layer& layer);
// The stream and the first branch's input count in the layer behind.
void AddEmbeddingMemory(const ModelSpec& model, int64_t rows, Layer& layer);
// The norm behind a stack's last layer, which is never computed again.
void AddStackEndMemory(const ModelSpec& model, int64_t rows, Layer& layer);
// DLCL: the output of every layer is kept with all others to the end, with the first one also what
// entered the stack.
void AddHistoryMemory(const ModelSpec& model, int64_t rows, Layer& layer);
// The gradient of the last hidden rows, which the loss leaves on its way forward; buffers of the
// loss.
void AddOutputMemory(const ModelSpec& model, int64_t rows, Layer& layer);

// Returns what the layers of a stack share.
Stack DescribeStack(const ModelSpec& model, int64_t rows);

}  // namespace deepnet
