// What is done with gradients before a step: their norm, scaling, and finding what is not finite.
//
// Spans, formats, alignment and threads: spans.h. Pure functions in the calling thread. A norm over
// many spans or threads is the same to the last bit however the blocks were shared out, as long as
// every span but the last of a gradient is a whole number of blocks:
//
//   std::vector<double> sums(SumBlocks(all));        // One for each block of the whole gradient.
//   SquareSums(span, absl::MakeSpan(sums).subspan(first_block, SumBlocks(span.size())));  // Each.
//   const double norm = std::sqrt(SumInOrder(sums));
#ifndef MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_H_
#define MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

inline constexpr size_t kSumBlock = 4096;  // Elements.

// The blocks of so many elements; the last may be short.
size_t SumBlocks(size_t elements);

// The sum of the squares of each block. Squares are exact in double, and 16 partial sums a block
// (element i goes to sum i % 16) are added pairwise: a relative error below 1e-13. Infinite or NaN
// where an element is.
// REQUIRES: sums.size() is SumBlocks(gradient.size()).
void SquareSums(const Input& gradient, absl::Span<double> sums);

double SumInOrder(absl::Span<const double> sums);

// Writes each element times `factor` (as fp32, rounded to fp32 and then to the output's format) and
// returns how many results are infinite or NaN: with a factor that is not 0, no fewer than there
// were. With factor 1 this converts. In place, or apart.
// REQUIRES: spans of one size, a finite factor.
uint64_t Scale(const Input& gradient, double factor, const Output& scaled);

// How many elements are infinite or NaN.
uint64_t CountNonFinite(const Input& gradient);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_H_
