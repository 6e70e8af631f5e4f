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

void EmbedForward(Cpu& cpu, const EmbedArgs& args) {
  CheckElements(args.table_VD, args.x_operand_RD);
  const PackedRows& rows = args.rows;
  for (int64_t row = 0; row < rows.count; ++row) {
    DEEPNET_CHECK(rows.tokens[row] >= -1 && rows.tokens[row] < args.table_VD.rows)
        << "row " << row << " has id " << rows.tokens[row] << " of " << args.table_VD.rows;
    DEEPNET_CHECK(args.positions_PD.data == nullptr || rows.positions[row] < args.positions_PD.rows)
        << "row " << row << " has position " << rows.positions[row];
  }
  const DropoutStream stream = MakeDropoutStream(args.dropout);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForRowBlocks(cpu.pool, rows.count, [&](int64_t begin, int64_t end, int) {
    if (stream.active()) {
      const int64_t num_bytes = MaskBytes(args.table_VD.cols);
      kernels.keep_bits(stream, rows.pairs + begin, rows.positions + begin, end - begin, 0,
                        num_bytes, args.mask + begin * num_bytes, num_bytes);
    }
    kernels.embed_forward(args, stream.active() ? stream.scale : 0.0f, begin, end);
  });
}

void EmbedBackward(Cpu& cpu, const EmbedGradArgs& args) {
  const int64_t rows = args.rows.count;
  const int32_t* const tokens = args.rows.tokens;
  int32_t* order_space = reinterpret_cast<int32_t*>(cpu.scratch.Reserve(2 * rows));
  const std::span<const int32_t> sorted = SortRowsByIndex(
      {tokens, static_cast<size_t>(rows)}, args.dtable_VD.rows, order_space, order_space + rows);
  const int64_t n = static_cast<int64_t>(sorted.size());
  const int32_t* const order = sorted.data();
  const ElementwiseTable& kernels = cpu.table.elementwise;
  const float scale = args.dropout_rate > 0.0 ? KeepScale(args.dropout_rate) : 0.0f;
  ForRowBlocks(cpu.pool, n, [&](int64_t begin, int64_t end, int) {
    const auto index_at = [&](int64_t i) { return tokens[order[i]]; };
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

EmbedGradArgs OfPositions(const EmbedGradArgs& args) {
  EmbedGradArgs of_positions = args;
  of_positions.rows.tokens = reinterpret_cast<const int32_t*>(args.rows.positions);
  of_positions.scale = 1.0f;
  of_positions.dtable_VD = args.dpositions_PD;
  return of_positions;
}

}  // namespace deepnet::native
