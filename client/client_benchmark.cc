// The costs of the client's own work, without the daemon's: mapping, unmapping, acquiring held
// leases, and handling page faults. The figures in client/memory/host_space.h come from this
// program.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/shared_memory.h"
#include "client/client.h"
#include "client/memory/fault_loop.h"
#include "client/memory/host_space.h"
#include "client/testing/fake_daemon_session.h"

namespace memtide::client {
namespace {

const char* PageName(HugePages pages) { return pages == HugePages::kNone ? "4K" : "2M"; }

struct Mapping {
  explicit Mapping(Bytes chunk_size) {
    auto made = SharedMemory::Create("benchmark", chunk_size);
    MEMTIDE_CHECK(made.ok()) << made.status().ToString();
    memory = std::make_unique<SharedMemory>(std::move(made).value());
    region.size = chunk_size;
    region.memory = Descriptor(dup(memory->fd()));
    auto reserved = HostSpace::Reserve({chunk_size, 4});
    MEMTIDE_CHECK(reserved.ok()) << reserved.status().ToString();
    space = std::move(reserved).value();
    MEMTIDE_CHECK(space->Bind({PlaceId(0), 4}).ok());
    auto started = FaultLoop::Start(space.get(), [](const PageFault&) { return absl::OkStatus(); });
    MEMTIDE_CHECK(started.ok()) << started.status().ToString();
    faults = std::move(started).value();
  }
  void Map() { MEMTIDE_CHECK(space->Map(PlaceId(1), &region, Bytes(0), Access::kWrite).ok()); }

  std::unique_ptr<SharedMemory> memory;
  Region region;
  std::unique_ptr<HostSpace> space;
  std::unique_ptr<FaultLoop> faults;  // Reads the remap events of Unmap.
};

void BM_Map(benchmark::State& state) {
  Mapping mapping(MiB(state.range(0)));
  for (auto _ : state) {
    mapping.Map();
    state.PauseTiming();
    mapping.space->Unmap(PlaceId(1)).IgnoreError();
    state.ResumeTiming();
  }
  state.SetLabel(PageName(mapping.memory->huge_pages()));
}
BENCHMARK(BM_Map)->Arg(4)->Arg(64)->Unit(benchmark::kMicrosecond);

void BM_Unmap(benchmark::State& state) {
  Mapping mapping(MiB(state.range(0)));
  for (auto _ : state) {
    state.PauseTiming();
    mapping.Map();
    state.ResumeTiming();
    mapping.space->Unmap(PlaceId(1)).IgnoreError();
  }
  state.SetLabel(PageName(mapping.memory->huge_pages()));
}
BENCHMARK(BM_Unmap)->Arg(4)->Arg(64)->Unit(benchmark::kMicrosecond);

// A client with one chunk, whose session replies at once.
struct Fake {
  Fake() {
    FakeDaemonSession::Options options;
    options.slots = 8;
    options.lease_budget = 7;
    auto made = std::make_unique<FakeDaemonSession>(options);
    session = made.get();
    auto opened = Client::OpenWith(std::move(made), {});
    MEMTIDE_CHECK(opened.ok()) << opened.status().ToString();
    client = std::move(opened).value();
    place = client->leases()->Allocate(1, ChunkKind::kOther)->first;
  }
  void ReleaseLeases() {
    // The faulting thread resumes before its lease counts as idle, so the first Flush can miss it.
    while (session->counts().leases > 0) MEMTIDE_CHECK(client->leases()->Flush().ok());
  }
  volatile char* byte() { return client->address(place); }

  FakeDaemonSession* session;
  std::unique_ptr<Client> client;
  PlaceId place;
};

void BM_AcquireHeldAndRelease(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    MEMTIDE_CHECK(fake.client->leases()->Acquire({fake.place}, Access::kWrite).ok());
    MEMTIDE_CHECK(fake.client->leases()->EndUse({fake.place}).ok());
  }
}
BENCHMARK(BM_AcquireHeldAndRelease);

// A page fault of a 2 MiB chunk whose bytes are in their slot, so that the fetch takes no time.
void BM_Fault(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    *fake.byte() = 1;
    state.PauseTiming();
    fake.ReleaseLeases();
    state.ResumeTiming();
  }
}
BENCHMARK(BM_Fault)->Unit(benchmark::kMicrosecond)->UseRealTime();

// The same lease by Acquire.
void BM_AcquireAbsent(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    MEMTIDE_CHECK(fake.client->leases()->Acquire({fake.place}, Access::kWrite).ok());
    state.PauseTiming();
    MEMTIDE_CHECK(fake.client->leases()->EndUse({fake.place}).ok());
    fake.ReleaseLeases();
    state.ResumeTiming();
  }
}
BENCHMARK(BM_AcquireAbsent)->Unit(benchmark::kMicrosecond)->UseRealTime();

void BM_Upgrade(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    state.PauseTiming();
    fake.ReleaseLeases();
    const char read = *fake.byte();
    benchmark::DoNotOptimize(read);
    state.ResumeTiming();
    *fake.byte() = 1;
  }
  state.counters["upgrades"] =
      static_cast<double>(fake.client->leases()->monitor().stats().upgrades);
}
BENCHMARK(BM_Upgrade)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace memtide::client
