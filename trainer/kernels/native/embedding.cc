// The backward pass sorts (index, row) stably, cuts the sorted list into blocks of fixed length and
// lets the block in which an index begins add all rows of that index, in row order. No two blocks
// touch the same row of the gradient.
#include "trainer/kernels/native/embedding.h"

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/sorted_rows.h"

namespace deepnet::native {

void EmbedForward(Cpu& cpu, const EmbedForwardArgs& args) {
  CheckElements(args.table, args.x_operand);
  for (int64_t row = 0; row < args.rows; ++row) {
    DEEPNET_CHECK(args.ids[row] >= -1 && args.ids[row] < args.vocabulary)
        << "row " << row << " has id " << args.ids[row] << " of " << args.vocabulary;
    DEEPNET_CHECK(args.positions == nullptr || args.row_ids.position[row] < args.max_positions)
        << "row " << row << " has position " << args.row_ids.position[row];
  }
  const DropoutStream stream = MakeDropoutStream(args.dropout);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForRowBlocks(cpu.pool, args.rows, [&](int64_t begin, int64_t end, int) {
    if (stream.active()) {
      const int64_t num_bytes = MaskBytes(args.width);
      kernels.keep_bits(stream, args.row_ids.pair + begin, args.row_ids.position + begin,
                        end - begin, 0, num_bytes, args.mask + begin * num_bytes, num_bytes);
    }
    kernels.embed_forward(args, stream.active() ? stream.scale : 0.0f, begin, end);
  });
}

void EmbedBackward(Cpu& cpu, const EmbedBackwardArgs& args) {
  int32_t* order_space = reinterpret_cast<int32_t*>(cpu.scratch.Reserve(2 * args.rows));
  const std::span<const int32_t> sorted =
      SortRowsByIndex({args.index, static_cast<size_t>(args.rows)}, args.num_indices, order_space,
                      order_space + args.rows);
  const int64_t n = static_cast<int64_t>(sorted.size());
  const int32_t* const order = sorted.data();
  const ElementwiseTable& kernels = cpu.table.elementwise;
  const float scale = args.rate > 0.0 ? KeepScale(args.rate) : 0.0f;
  ForRowBlocks(cpu.pool, n, [&](int64_t begin, int64_t end, int) {
    const auto index_at = [&](int64_t i) { return args.index[order[i]]; };
    // An index that began in an earlier block is that block's.
    while (begin < end && begin > 0 && index_at(begin) == index_at(begin - 1)) ++begin;
    while (begin < end) {
      int64_t stop = begin + 1;
      while (stop < n && index_at(stop) == index_at(begin)) ++stop;
      kernels.embed_backward(args, scale, order + begin, stop - begin);
      begin = stop;
    }
  });
}

}  // namespace deepnet::native
