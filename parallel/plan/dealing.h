// How the microbatches of a step, and the virtual replicas that they belong to, are dealt to the
// replicas of a job (docs/design/sharding.md).
#pragma once

namespace deepnet {

// Microbatches [first, end) of a step.
struct MicrobatchRange {
  int first = 0, end = 0;

  int Count() const { return end - first; }
  friend bool operator==(const MicrobatchRange&, const MicrobatchRange&) = default;
};

// Adjacent ones, as evenly as can be: where `microbatches` are no multiple of `replicas`, the first
// replicas have one more. So replica 0 has as many as any.
MicrobatchRange MicrobatchesOf(int microbatches, int replicas, int replica);

// Virtual replicas that a rank adds up by itself: virtual_replicas / replicas, or, where that is no
// whole number, all that the rank computes is one. In the first case every rank's microbatches fall
// evenly into them and sums have the bits of any other such number of replicas; in the second they
// differ by rounding.
int LocalVirtualReplicas(int virtual_replicas, int replicas);

// virtual_replicas where the user left them open: `replicas` if they share the microbatches evenly,
// else the largest power of two below that does.
int DefaultVirtualReplicas(int microbatches, int replicas);

}  // namespace deepnet
