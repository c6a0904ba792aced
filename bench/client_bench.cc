// The client library: the lease cache, touches that become leases, page faults.
//
//   client_bench --socket_dir=DIR --daemon=PID [--quick]
//
// Client, its fault thread and the daemon share one CPU, because waking another one costs more than
// what is measured. The chunks are in memory throughout: nothing here waits for a copy.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "bench/client_session.h"
#include "bench/harness.h"

ABSL_FLAG(std::string, socket_dir, "", "where the daemon's sockets are");
ABSL_FLAG(int32_t, daemon, 0, "its process");
ABSL_FLAG(bool, quick, false, "fewer rounds");

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(16);
constexpr Bytes kHugePage = MiB(2);
constexpr int kCpu = 0;

// Minor faults of a process so far.
int64_t FaultsOf(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/stat"));
  std::string line;
  std::getline(file, line);
  // The name may hold spaces; it ends with the last parenthesis. minflt is the tenth field, the
  // eighth after the name.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 7; ++i) fields >> skipped;
  int64_t faults = -1;
  fields >> faults;
  MEMTIDE_CHECK(faults >= 0) << line;
  return faults;
}

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
  MEMTIDE_CHECK(session->Stats().calls == calls) << "a held lease asked the daemon";
  return Microseconds(took) / kTimes;
}

void Read(const ClientSession& session, uint32_t place) {
  static_cast<void>(*const_cast<const volatile char*>(session.At(place)));
}

// Medians of: acquiring a chunk that is not leased, and touching one.
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

// Leases a chunk, writes to each of its pages, and gives it back.
void UseOnce(ClientSession* session, uint32_t place) {
  session->Acquire({place}, MEMTIDE_WRITE);
  for (Bytes at; at < kChunk; at += kHugePage) session->At(place)[at.count()] += 1;
  session->Release({place});
  session->Flush();
}

void CountFaults(Rounds* rounds, ClientSession* session, const Places& places, int times) {
  const pid_t daemon = absl::GetFlag(FLAGS_daemon);
  const int64_t ours = FaultsOf(getpid());
  const int64_t theirs = FaultsOf(daemon);
  for (int i = 0; i < times; ++i) UseOnce(session, places[i % places.size()]);
  rounds->Add("client.page_faults", static_cast<double>(FaultsOf(getpid()) - ours) / times);
  rounds->Add("daemon.page_faults", static_cast<double>(FaultsOf(daemon) - theirs) / times);
}

void Measure() {
  ClientSession session(absl::GetFlag(FLAGS_socket_dir), kChunk);
  // New threads of the client are on its CPU already; those of the daemon, which was there before,
  // are moved now that all of them run.
  PinProcess(absl::GetFlag(FLAGS_daemon), kCpu);
  const Places places = session.Allocate(8);
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
