// Measures the client library: cached leases, page faults that lease chunks, and the CPU's faults.
//
//   client_bench --socket_dir=DIR --daemon=PID [--quick]
//
// The client and its fault thread share one CPU, because waking another CPU costs more than what is
// measured. The daemon has the other CPU: on the same one, its work after a reply (50 us of passing
// its listening socket from thread to thread) would delay a thread that faulted and sleeps, but not
// one that fetches by itself. All chunks stay in memory, so nothing waits for a copy.
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "base/check.h"
#include "bench/client_session.h"
#include "bench/harness.h"
#include "bench/page_faults.h"

ABSL_FLAG(std::string, socket_dir, "", "where the daemon's sockets are");
ABSL_FLAG(int32_t, daemon, 0, "its process");
ABSL_FLAG(bool, quick, false, "fewer rounds");

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(64);
constexpr Bytes kHugePage = MiB(2);
constexpr int kCpu = 0, kDaemonCpu = 1;

double MicrosecondsOfCachedAcquire(ClientSession* session, uint32_t place) {
  constexpr int kTimes = 20000;
  const Places places = {place};
  session->Acquire(places, MEMTIDE_READ);
  session->Release(places);
  const uint64_t calls = session->Stats().calls;
  const Duration took = TimeOf([&] {
    for (int i = 0; i < kTimes; ++i) {
      session->Acquire(places, MEMTIDE_READ);
      session->Release(places);
    }
  });
  MEMTIDE_CHECK(session->Stats().calls == calls) << "a cached lease called the daemon";
  return Microseconds(took) / kTimes;
}

void Read(const ClientSession& session, uint32_t place) {
  static_cast<void>(*const_cast<const volatile char*>(session.At(place)));
}

// Adds the medians of acquiring a chunk that is not leased, and of reading it with a page fault.
void CompareTouch(Rounds* rounds, ClientSession* session, const Places& places, int times) {
  std::vector<double> acquire, touch;
  for (int i = 0; i < times; ++i) {
    const uint32_t place = places[i % places.size()];
    session->Flush();
    acquire.push_back(Microseconds(TimeOf([&] {
      session->Acquire({place}, MEMTIDE_READ);
      Read(*session, place);
    })));
    session->Release({place});
    session->Flush();
    const uint64_t faults = session->Stats().faults;
    touch.push_back(Microseconds(TimeOf([&] { Read(*session, place); })));
    MEMTIDE_CHECK(session->Stats().faults == faults + 1) << "the chunk was leased already";
  }
  rounds->Add("client.touch", Median(acquire), Median(touch));
}

// Leases a chunk, writes to each of its pages, and releases it.
void UseOnce(ClientSession* session, uint32_t place) {
  session->Acquire({place}, MEMTIDE_WRITE);
  for (Bytes at; at < kChunk; at += kHugePage) session->At(place)[at.count()] += 1;
  session->Release({place});
  session->Flush();
}

void CountFaults(Rounds* rounds, ClientSession* session, const Places& places, int times) {
  const PageFaults ours(getpid());
  const PageFaults theirs(absl::GetFlag(FLAGS_daemon));
  for (int i = 0; i < times; ++i) UseOnce(session, places[i % places.size()]);
  rounds->Add("client.page_faults", static_cast<double>(ours.Count()) / times);
  rounds->Add("daemon.page_faults", static_cast<double>(theirs.Count()) / times);
}

void Measure() {
  ClientSession session(absl::GetFlag(FLAGS_socket_dir), kChunk);
  PinProcess(getpid(), kCpu);
  PinProcess(absl::GetFlag(FLAGS_daemon), kDaemonCpu);
  const Places places = session.Allocate(4);
  for (const uint32_t place : places) UseOnce(&session, place);

  const bool quick = absl::GetFlag(FLAGS_quick);
  const int times = quick ? 200 : 1000;
  RoundsOptions options;
  options.daemon = absl::GetFlag(FLAGS_daemon);
  options.at_most = std::chrono::seconds(quick ? 5 : 20);
  Rounds rounds(options);
  while (rounds.Next()) {
    rounds.Add("client.cached_acquire", MicrosecondsOfCachedAcquire(&session, places[0]));
    CompareTouch(&rounds, &session, places, times);
    CountFaults(&rounds, &session, places, times);
  }
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::PinThisThread(memtide::kCpu);
  memtide::Measure();
}
