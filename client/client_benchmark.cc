// What the client's own work costs, apart from the daemon's: mapping, unmapping, acquiring what is
// held, and answering a touch. The figures in client/host_space.h are this program's.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/shared_memory.h"
#include "client/client.h"
#include "client/fake_lender.h"
#include "client/fault_loop.h"
#include "client/host_space.h"

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
    MEMTIDE_CHECK(space->Open({PlaceId(0), 4}).ok());
    auto started = FaultLoop::Start(space.get(), [](const Touch&) { return absl::OkStatus(); });
    MEMTIDE_CHECK(started.ok()) << started.status().ToString();
    faults = std::move(started).value();
  }
  void Map() { MEMTIDE_CHECK(space->Map(PlaceId(1), &region, Bytes(0), Access::kWrite).ok()); }

  std::unique_ptr<SharedMemory> memory;
  Region region;
  std::unique_ptr<HostSpace> space;
  std::unique_ptr<FaultLoop> faults;  // Reads the moves of Unmap.
};

void BM_Map(benchmark::State& state) {
  Mapping mapping(MiB(state.range(0)));
  for (auto _ : state) {
    mapping.Map();
    state.PauseTiming();
    mapping.space->Unmap(PlaceId(1));
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
    mapping.space->Unmap(PlaceId(1));
  }
  state.SetLabel(PageName(mapping.memory->huge_pages()));
}
BENCHMARK(BM_Unmap)->Arg(4)->Arg(64)->Unit(benchmark::kMicrosecond);

// A client of a lender that answers at once, with one chunk.
struct Fake {
  Fake() {
    FakeLender::Options options;
    options.slots = 8;
    options.lease_budget = 7;
    auto made = std::make_unique<FakeLender>(options);
    lender = made.get();
    auto opened = Client::OpenWith(std::move(made), {});
    MEMTIDE_CHECK(opened.ok()) << opened.status().ToString();
    client = std::move(opened).value();
    place = client->Allocate(1, ChunkKind::kOther)->first;
  }
  void GiveBack() {
    // A touch goes on before its lease is counted as idle, so the first Flush can miss it.
    while (lender->counts().leases > 0) MEMTIDE_CHECK(client->Flush().ok());
  }
  volatile char* byte() { return client->address(place); }

  FakeLender* lender;
  std::unique_ptr<Client> client;
  PlaceId place;
};

void BM_AcquireHeldAndRelease(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    MEMTIDE_CHECK(fake.client->Acquire({fake.place}, Access::kWrite).ok());
    MEMTIDE_CHECK(fake.client->Release({fake.place}).ok());
  }
}
BENCHMARK(BM_AcquireHeldAndRelease);

// A touch of a chunk of 2 MiB whose bytes are in their slot: the fetch takes next to nothing.
void BM_Touch(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    *fake.byte() = 1;
    state.PauseTiming();
    fake.GiveBack();
    state.ResumeTiming();
  }
}
BENCHMARK(BM_Touch)->Unit(benchmark::kMicrosecond)->UseRealTime();

// The same lease, asked for.
void BM_AcquireAbsent(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    MEMTIDE_CHECK(fake.client->Acquire({fake.place}, Access::kWrite).ok());
    state.PauseTiming();
    MEMTIDE_CHECK(fake.client->Release({fake.place}).ok());
    fake.GiveBack();
    state.ResumeTiming();
  }
}
BENCHMARK(BM_AcquireAbsent)->Unit(benchmark::kMicrosecond)->UseRealTime();

void BM_Upgrade(benchmark::State& state) {
  Fake fake;
  for (auto _ : state) {
    state.PauseTiming();
    fake.GiveBack();
    const char read = *fake.byte();
    benchmark::DoNotOptimize(read);
    state.ResumeTiming();
    *fake.byte() = 1;
  }
  state.counters["upgrades"] = static_cast<double>(fake.client->stats()->upgrades);
}
BENCHMARK(BM_Upgrade)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace memtide::client
