// 1F1B over several chunks per rank: a bubble is as short as a chunk, not as a rank's whole share.
// Laps of MakeLooped; any number of microbatches: where it is no multiple of num_ranks, the
// schedule is that of the next multiple with the surplus microbatches left out, which breaks no
// dependency because microbatches do not depend on each other.
#pragma once

#include "parallel/plan/schedule.h"

namespace deepnet {

// Interleaved 1F1B (Narayanan et al., 2021, section 2.2): groups of num_ranks microbatches visit a
// rank's chunks in turn, forwards from the first chunk, backwards from the last. Rank r does
// NumInterleavedAhead visits forward, then alternates, then drains. With one chunk per rank it is
// MakeOneForwardOneBackward.
Schedule MakeInterleaved(const PipelineShape& shape);

// The same with the backward split: rank r puts each W off by r visits, so that ranks behind get
// their gradients sooner and the drain is filled. With one chunk per rank it is ZB-H1 (Qi et al.,
// 2023, section 2.1), with more the interleaved form of it.
Schedule MakeZeroBubbleInterleaved(const PipelineShape& shape);

// Forwards of rank `rank` before its first backward, less one: one more microbatch of one chunk is
// alive at most, plus `rank` whose W is put off where the backward is split.
int NumInterleavedAhead(const PipelineShape& shape, int rank);

}  // namespace deepnet
