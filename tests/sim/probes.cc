#include "tests/sim/probes.h"

#include <iterator>

#include "absl/strings/str_format.h"

namespace memtide::sim {
namespace {

constexpr const char* kProbeNames[] = {
    "write-back while a fetch waits",
    "passage through the last host slot",
    "transfer failed",
    "disk write failed, then done",
    "disk read failed a fetch",
    "region could not be made",
    "region replaced by a copy",
    "store could not be made",
    "chunk torn by its writer's death",
    "read of a torn chunk refused",
    "torn chunk leased for writing",
    "leases asked back",
    "deadline passed",
    "no-wait fetch refused",
    "no-wait fetch excluded by a lease",
    "too many waiting calls",
    "chunk shared by readers",
    "read lease made a write lease",
    "client gone while its call waits",
    "client gone while it opens",
    "client hung",
    "session ended with another that was not renewed",
    "connection refused",
    "job joined after its last session",
    "job ended by its time to live",
    "clean victim dropped",
    "chunk freed while it moves",
    "chunk freed while a fetch waits for it",
    "evict waited",
    "prefetch moved a chunk",
    "lease that leaves for another chunk of its slot",
    "chunk named ahead of its use",
    "call sent again",
    "pool exhausted",
    "chunks exhausted",
    "batch larger than its tier",
    "share of several regions",
    "drained",
    "another job's chunk asked for",
    "share shrank",
    "share resized at once",
    "resize replaced by another",
    "resize not reached in time",
    "share larger than what is free",
    "more leases than a share that shrank",
    "fetch refused for a share that shrank",
    "client gone with regions asked back",
    "job joined while its share shrinks",
    "share shrank without any session",
    "region made where one was given back",
    "chunk leased that nobody had defined",
    "memory of a slot gone to the machine",
    "memory of a slot back from the machine",
    "memory of a slot could not come back",
    "share ceded to other jobs",
    "step done",
    "step failed",
    "steps committed, and the old content discarded",
    "steps committed, and the old content retained",
    "commit sent again",
    "content of a chunk discarded",
    "daemon restarted",
    "daemon died while a step ran",
    "daemon died between a commit and its reply",
    "daemon restarted with an uncommitted step",
    "daemon restarted with committed steps on SSD alone",
    "content discarded by a client",
    "content discarded while chunks move",
    "home in host memory refused",
    "transient chunk ended with the last session",
    "transient chunk ended with the daemon",
    "part of a step computed by a client",
    "part ended and not computed",
    "part ended with its session",
    "part ended with a session that was not renewed",
    "part ended that is not there",
    "part refused",
    "part could not begin",
    "part waited",
    "part ended that other calls wait for",
    "what a client computed was committed",
    "daemon died while a client computed",
    "written with another bit",
    "written in part",
    "written over another content",
    "not written",
    "wrong bytes found by a read",
    "wrong bytes found at rest",
    "bad copy replaced by another",
    "bad copy was the only one",
};
static_assert(std::size(kProbeNames) == kProbes);

}  // namespace

const char* ProbeName(Probe probe) { return kProbeNames[static_cast<size_t>(probe)]; }

void Probes::Add(const Probes& other) {
  for (int probe = 0; probe < kProbes; ++probe) hits_[probe] += other.hits_[probe];
}

std::string Probes::Report() const {
  std::string report;
  for (int probe = 0; probe < kProbes; ++probe) {
    absl::StrAppendFormat(&report, "%8d  %s\n", hits_[probe], kProbeNames[probe]);
  }
  return report;
}

}  // namespace memtide::sim
