// The backward pass sorts (index, row) stably; a thread adds all rows of an index, in row order. No
// two blocks of indices touch the same row of the gradient.
#include "trainer/kernels/native/embedding.h"

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/sorted_rows.h"

namespace deepnet::native {
namespace {

constexpr int64_t kIndicesPerBlock = 16;  // that a thread takes at a time

}  // namespace

void EmbedForward(Cpu& cpu, const EmbedArgs& args) {
  CheckElements(args.table_VD, args.x_operand_RD);
  CheckFloats(args.positions_PD);
  const PackedRows& rows = args.rows;
  for (int64_t row = 0; row < rows.count; ++row) {
    DEEPNET_CHECK(rows.tokens[row] >= -1 && rows.tokens[row] < args.table_VD.rows)
        << "row " << row << " has id " << rows.tokens[row] << " of " << args.table_VD.rows;
    DEEPNET_CHECK(args.positions_PD.data == nullptr || rows.positions[row] < args.positions_PD.rows)
        << "row " << row << " has position " << rows.positions[row];
  }
  const DropoutStream stream = MakeDropoutStream(args.dropout);
  ForBlocks(cpu.pool, rows.count, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
    if (stream.active()) {
      const int64_t num_bytes = MaskBytes(args.table_VD.cols);
      cpu.kernels.keep_bits(stream, rows.pairs + begin, rows.positions + begin, end - begin, 0,
                            num_bytes, args.mask + begin * num_bytes, num_bytes);
    }
    cpu.kernels.embed_forward(args, stream.active() ? stream.scale : 0.0f, begin, end);
  });
}

void EmbedBackward(Cpu& cpu, const EmbedGradArgs& args) {
  CheckFloats(args.dx_RD, args.dtable_VD);
  RowsByIndex sorted;
  SortRows({args.rows.tokens, static_cast<size_t>(args.rows.count)}, args.dtable_VD.rows, sorted);
  const float scale = args.dropout_rate > 0.0 ? KeepScale(args.dropout_rate) : 0.0f;
  ForBlocks(cpu.pool, std::ssize(sorted.indices), kIndicesPerBlock,
            [&](int64_t begin, int64_t end, int) {
              for (int64_t i = begin; i < end; ++i) {
                const int32_t first = sorted.starts[i];
                cpu.kernels.embed_backward(args, scale, &sorted.order[first],
                                           sorted.starts[i + 1] - first);
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
