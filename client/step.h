// StepPart: a part of an optimizer's step, as the client asks the daemon for it; and what is
// published.
//
// Values. proto/memtide/v1/optimizer.proto says what each means; here, places stand for chunks.
#ifndef MEMTIDE_CLIENT_STEP_H_
#define MEMTIDE_CLIENT_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/types.h"
#include "memtide/v1/optimizer.pb.h"

namespace memtide::client {

struct StepPart {
  // The first `reads` are read, the others written.
  std::vector<PlaceId> places;
  uint32_t reads = 0;
  // All but what the lender fills in: chunks, reads, moments. Chunks are numbers of `places`.
  v1::StepRequest request;
};

// A job's last published step; zero: none.
struct Published {
  uint64_t step = 0;
  std::string note;
};

// A chunk's name, and how often it has been opened for writing.
struct ChunkVersion {
  ChunkId chunk;
  uint64_t version = 0;
};

struct Publication {
  Published published;
  bool keep = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_STEP_H_
