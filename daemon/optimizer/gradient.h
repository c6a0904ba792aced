// Work on gradients before a step: scaling, conversion between formats, and counting elements that
// are not finite.
//
// Spans, formats, alignment and threads: spans.h. Pure functions in the calling thread.
#ifndef MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_H_
#define MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_H_

#include <cstdint>

#include "daemon/optimizer/spans.h"

namespace memtide::optimizer {

// Writes each element times `factor` (as fp32, rounded to fp32 and then to the output's format) and
// returns how many results are infinite or NaN: with a factor that is not 0, no fewer than there
// were. With factor 1 this converts. In place, or apart.
// REQUIRES: spans of one size, a finite factor.
uint64_t Scale(const Input& gradient, double factor, const Output& scaled);

// How many elements are infinite or NaN.
uint64_t CountNonFinite(const Input& gradient);

}  // namespace memtide::optimizer

#endif  // MEMTIDE_DAEMON_OPTIMIZER_GRADIENT_H_
