// Moment: one pass of a module, or one piece of an optimizer step, and the chunks used in it.
//
// A value type; proto/memtide/v1/trace.proto has the same as a message. The daemon's access
// predictor learns from moments; they are hints, and a wrong or missing one costs only time.
#ifndef MEMTIDE_CLIENT_RPC_MOMENT_H_
#define MEMTIDE_CLIENT_RPC_MOMENT_H_

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/kinds.h"

namespace memtide::client {

// The fields are the arguments of memtide_moment. Device and host bytes are what the program needs
// beside its chunks.
struct Moment {
  struct Use {
    ChunkId chunk;
    Access access = Access::kRead;
  };
  Phase phase = Phase::kOther;
  std::string name;
  Bytes own_device, own_host;
  std::vector<Use> uses;
  bool continues = false;  // Continues the moment before it.
  bool ends_iteration = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_MOMENT_H_
