#include "tests/sim/config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/random.h"

namespace memtide::sim {
namespace {

// The weights of the operations in a normal run.
constexpr std::array<uint32_t, kOpKinds> kWeights = {
    /*kConnect=*/6,    /*kOpen=*/8,          /*kHang=*/1,
    /*kClose=*/1,      /*kGone=*/2,
    /*kAllocate=*/10,  /*kFetch=*/50,        /*kRelease=*/20,
    /*kWrite=*/20,     /*kEvict=*/8,
    /*kFree=*/4,       /*kDescribe=*/4,
    /*kInspect=*/6,    /*kDrain=*/0,
    /*kReplay=*/5,     /*kHostile=*/6,       /*kComplete=*/60,
    /*kTick=*/20,      /*kSettle=*/1,
    /*kResize=*/0,     /*kReturnRegions=*/0, /*kReport=*/15,
    /*kHostMemory=*/0, /*kStep=*/0,          /*kPublish=*/0,
    /*kRestart=*/0,    /*kDiscard=*/0,       /*kPart=*/0,
    /*kEndPart=*/0,
};

uint32_t& Weight(Config* config, OpKind kind) { return config->weights[static_cast<size_t>(kind)]; }

// Swarm testing: runs that never do some things reach states that balanced runs do not.
void Swarm(Random* random, Config* config) {
  config->weights = kWeights;
  for (const OpKind kind : {OpKind::kEvict, OpKind::kFree, OpKind::kReplay, OpKind::kHostile,
                            OpKind::kGone, OpKind::kHang, OpKind::kClose, OpKind::kReport}) {
    if (random->Percent(25)) Weight(config, kind) = 0;
  }
  if (random->Percent(20)) Weight(config, OpKind::kHostile) *= 6;
  if (random->Percent(20)) Weight(config, OpKind::kRelease) /= 5;   // Misers.
  if (random->Percent(20)) Weight(config, OpKind::kComplete) /= 6;  // Slow disks and devices.
  if (random->Percent(10)) Weight(config, OpKind::kGone) *= 5;
  if (random->Percent(10)) Weight(config, OpKind::kDrain) = 1;
  if (random->Percent(10)) Weight(config, OpKind::kTick) *= 5;
}

void Pools(Random* random, Config* config) {
  constexpr Bytes kSizes[] = {MiB(2), MiB(2), MiB(2), MiB(6), MiB(384), GiB(1)};
  config->chunk_size = kSizes[random->Below(6)];
  const uint32_t shape = random->Below(100);
  // One in ten: memory of one kind only; the others have tiers to move between.
  const bool device = shape < 60, host = shape < 95, ssd = host && shape % 10 < 8;
  config->device_slots = device || !host ? random->Between(4, 8) : 0;
  config->host_slots = host ? random->Between(4, 9) : 0;
  config->ssd_slots = ssd ? random->Between(5, 16) : 0;
  if (random->Percent(50)) return;  // The first job takes all.
  // Room for several jobs.
  for (uint32_t* slots : {&config->device_slots, &config->host_slots, &config->ssd_slots}) {
    if (*slots != 0) *slots += random->Between(4, 8);
  }
  config->device_share = device ? random->Between(3, 6) : 0;
  config->host_share = host ? random->Between(3, 6) : 0;
  config->ssd_share = ssd ? random->Between(3, 10) : 0;
}

void SlotRegions(Random* random, Config* config) {
  config->slot_regions = true;
  // Room to shrink: a share has at least four chunks.
  config->device_slots += random->Between(2, 8);
  if (config->device_share != 0) config->device_share = random->Between(4, 9);
  if (config->ssd_slots != 0) config->ssd_slots += 6;
  if (config->ssd_share != 0) config->ssd_share += 6;
  config->steps += 300;
  Weight(config, OpKind::kResize) = random->Between(3, 15);
  // Some clients never return a region.
  Weight(config, OpKind::kReturnRegions) = random->Percent(15) ? 0 : random->Between(4, 20);
  if (random->Percent(20)) config->limits.device_regions = random->Between(6, 14);
}

void HostReserve(Random* random, Config* config) {
  config->host_reserve = random->Between(1, 8);
  // Room to spare: a job keeps four slots.
  config->host_slots += random->Between(1, 6);
  if (config->host_share != 0) config->host_share += random->Between(1, 4);
  config->ssd_slots += 4;
  config->steps += 100;
  Weight(config, OpKind::kHostMemory) = random->Between(2, 20);
}

void Elastic(Random* random, Config* config) {
  config->elastic = true;
  // Parts of large chunks are made one by one.
  config->chunk_size = std::min(config->chunk_size, Bytes(MiB(6)));
  // Claims of several jobs.
  config->host_slots += random->Between(10, 50);
  config->ssd_slots += random->Between(20, 120);
  config->host_share = config->ssd_share = 0;
  config->limits.chunks = 1 << 20;
  config->limits.chunks_per_call = random->Between(20, 60);
  config->steps += 200;
  Weight(config, OpKind::kOpen) = 12;
  Weight(config, OpKind::kAllocate) = 20;
}

void Steps(Random* random, Config* config) {
  Weight(config, OpKind::kStep) = random->Between(5, 25);
  Weight(config, OpKind::kPublish) = random->Between(3, 12);
  if (random->Percent(40)) config->faults.step = random->Between(5, 40);
}

void Restarts(Random* random, Config* config) {
  config->persistent_jobs = true;
  config->job_names = std::max(config->job_names, 1u);
  config->time_to_live = std::chrono::milliseconds(random->Between(100, 900));
  Weight(config, OpKind::kRestart) = random->Between(1, 4);
}

}  // namespace

Config MakeConfig(uint64_t seed) {
  Random random(seed);
  Config config;
  config.seed = seed;
  Pools(&random, &config);
  Swarm(&random, &config);
  config.limits.sessions = random.Between(3, 8);
  config.limits.sessions_per_uid = random.Between(2, 5);
  config.limits.chunks_per_call = random.Between(6, 40);
  config.limits.chunks = random.Percent(20) ? random.Between(8, 20) : 1 << 20;
  config.limits.waiting_calls_per_session = random.Between(1, 6);
  config.limits.remembered_replies_per_session = random.Between(1, 8);
  config.limits.max_wait = std::chrono::milliseconds(random.Between(1, 60) * 1000);
  config.limits.session_lease = std::chrono::milliseconds(random.Between(2, 20) * 100);
  config.uids = random.Between(1, 3);
  config.job_names = random.Between(0, 2);
  if (random.Percent(40)) config.time_to_live = std::chrono::milliseconds(random.Between(1, 900));
  const bool faulty = random.Percent(50);
  for (uint32_t* percent : {&config.faults.disk_read, &config.faults.disk_write,
                            &config.faults.copy, &config.faults.make}) {
    if (faulty && random.Percent(50)) *percent = random.Percent(20) ? 80 : random.Between(1, 30);
  }
  config.tick_ms = random.Between(1, 100);
  if (random.Percent(40)) config.device_percent = random.Between(20, 60);
  config.steps = random.Between(50, 400);
  if (config.device_slots != 0 && random.Percent(70)) SlotRegions(&random, &config);
  if (config.ssd_slots != 0 && random.Percent(50)) HostReserve(&random, &config);
  if (config.ssd_slots != 0 && random.Percent(40)) Elastic(&random, &config);
  if (config.host_slots != 0 && random.Percent(50)) Steps(&random, &config);
  if (config.host_slots != 0 && random.Percent(40)) Restarts(&random, &config);
  return config;
}

Config WithActivations(Config config) {
  // A stream of its own, so that the seeds without activations stay as they are.
  Random random(config.seed ^ 0x6163746976617465);
  config.activations = true;
  Weight(&config, OpKind::kDiscard) = random.Between(3, 25);
  if (config.device_slots == 0 || config.ssd_slots == 0) return config;
  // Thirteen host slots are never claimed.
  config.host_slots += random.Between(8, 16);
  if (config.host_share != 0) config.host_share += random.Between(8, 14);
  return config;
}

Config WithParts(Config config) {
  if (config.host_slots == 0) return config;
  // A stream of its own, as above.
  Random random(config.seed ^ 0x7061727473);
  config.parts = true;
  Weight(&config, OpKind::kPart) = random.Between(10, 50);
  // Some clients hold their parts for long, while others wait for the chunks.
  Weight(&config, OpKind::kEndPart) = random.Between(4, 60);
  // A part that runs counts as a waiting call.
  config.limits.waiting_calls_per_session += random.Below(6);
  if (random.Percent(60)) config.faults.part = random.Between(5, 60);
  Weight(&config, OpKind::kPublish) += random.Between(3, 20);
  if (random.Percent(50)) Weight(&config, OpKind::kHostile) += random.Between(1, 40);
  if (random.Percent(30)) Weight(&config, OpKind::kGone) += random.Between(1, 6);
  if (random.Percent(30)) Weight(&config, OpKind::kHang) += random.Between(1, 3);
  if (random.Percent(30)) Weight(&config, OpKind::kConnect) += 4;
  return config;
}

Config WithDevices(Config config) {
  if (config.device_slots == 0) return config;
  // A stream of its own, as above.
  Random random(config.seed ^ 0x64657669636573);
  config.devices = random.Between(2, 3);
  // Room for jobs on several devices.
  config.limits.sessions += random.Below(3);
  config.limits.sessions_per_uid += random.Below(3);
  Weight(&config, OpKind::kOpen) += random.Below(8);
  if (config.host_slots != 0) config.host_slots += random.Between(0, 12);
  if (config.ssd_slots != 0) config.ssd_slots += random.Between(0, 12);
  return config;
}

Config WithLies(Config config) {
  if (config.ssd_slots == 0) return config;
  // A stream of its own, as above.
  Random random(config.seed ^ 0x6c696573);
  config.faults.lie = random.Between(2, 40);
  // The scrubber goes by ticks.
  Weight(&config, OpKind::kTick) += random.Below(60);
  Weight(&config, OpKind::kEvict) += random.Below(20);
  return config;
}

namespace {

// The budget in chunks of the node's size a second: waits for it end while a simulation lasts.
constexpr uint64_t kWritesPerSecond = 20;
constexpr uint64_t kSecondsPerDay = 86400;

}  // namespace

Config WithBudgets(Config config) {
  if (config.ssd_slots == 0) return config;
  config.paced = true;
  // Deadlines pass while calls wait for the budget.
  Random random(config.seed ^ 0x62756467);
  Weight(&config, OpKind::kTick) += random.Below(40);
  Weight(&config, OpKind::kEvict) += random.Below(20);
  return config;
}

Bytes BudgetOf(const Config& config, Duration time) {
  const uint64_t milliseconds =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
  return Bytes(config.chunk_size.count() * kWritesPerSecond * (milliseconds + 1) / 1000);
}

EngineOptions ToOptions(const Config& config) {
  EngineOptions options;
  if (config.paced) {
    options.ssd_drives.emplace_back();
    // An earlier daemon was there: the buckets are empty.
    options.ssd_drives[0].was_used = true;
    options.ssd_drives[0].per_day = config.chunk_size * (kWritesPerSecond * kSecondsPerDay);
    if (config.seed % 2 == 0) options.user_ssd_per_day = options.ssd_drives[0].per_day;
  }
  // A remainder that fits no chunk: no job gets it, and it must not unbalance the sums.
  const Bytes rest = config.chunk_size > MiB(2) ? MiB(2) : KiB(4);
  const auto capacity = [&](uint32_t slots) {
    return slots == 0 ? Bytes(0) : config.chunk_size * slots + rest;
  };
  if (config.device_slots > 0) {
    options.device_capacities.assign(config.devices, capacity(config.device_slots));
  }
  options.host_capacity = capacity(config.host_slots);
  options.ssd_capacity = capacity(config.ssd_slots);
  options.limits = config.limits;
  options.host_reserve = config.chunk_size * config.host_reserve;
  options.persistent_jobs = config.persistent_jobs;
  options.quarantine_device_slots = config.quarantine;
  if (config.faults.lie != 0) options.verify = Verify::kAll;
  if (config.slot_regions) {
    options.device_kinds = {MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc};
  }
  return options;
}

std::string Describe(const Config& config) {
  return absl::StrCat(
      "seed ", config.seed, ": chunks of ", FormatBytes(config.chunk_size), ", ", config.devices,
      config.devices == 1 ? " device of " : " devices of ", config.device_slots, ", host ",
      config.host_slots, ", ssd ", config.ssd_slots,
      config.slot_regions ? " slots (the device's are regions)" : " slots", "; shares ",
      config.device_share, "/", config.host_share, "/", config.ssd_share,
      config.elastic ? " elastic" : "", "; reserve ", config.host_reserve, "; uids ", config.uids,
      ", job names ", config.job_names, ", ttl ", config.time_to_live.count(), " ns; faults read ",
      config.faults.disk_read, "% write ", config.faults.disk_write, "% copy ", config.faults.copy,
      "% make ", config.faults.make, "% step ", config.faults.step, "%; ",
      config.persistent_jobs ? "restarts; " : "", config.activations ? "activations; " : "",
      config.parts ? absl::StrCat("parts, ", config.faults.part, "% not computed; ") : "",
      config.faults.lie != 0 ? absl::StrCat("the disk lies ", config.faults.lie, "%; ") : "",
      config.steps, " steps");
}

std::string ToSource(const Config& config) {
  const Config plain;
  std::string source = "Config config;\n";
  const auto add = [&source](const char* name, uint64_t value, uint64_t otherwise,
                             const char* type) {
    if (value == otherwise) return;
    absl::StrAppend(&source, "config.", name, " = ", type, *type == '\0' ? "" : "(", value,
                    *type == '\0' ? "" : ")", ";\n");
  };
  const auto add_time = [&add](const char* name, Duration value, Duration otherwise) {
    add(name, static_cast<uint64_t>(value.count()), static_cast<uint64_t>(otherwise.count()),
        "Duration");
  };
  add("seed", config.seed, plain.seed, "");
  add("chunk_size", config.chunk_size.count(), plain.chunk_size.count(), "Bytes");
  add("device_slots", config.device_slots, plain.device_slots, "");
  add("devices", config.devices, plain.devices, "");
  add("host_slots", config.host_slots, plain.host_slots, "");
  add("ssd_slots", config.ssd_slots, plain.ssd_slots, "");
  add("slot_regions", config.slot_regions, plain.slot_regions, "");
  add("host_reserve", config.host_reserve, plain.host_reserve, "");
  add("activations", config.activations, plain.activations, "");
  add("parts", config.parts, plain.parts, "");
  add("quarantine", config.quarantine, plain.quarantine, "");
  add("persistent_jobs", config.persistent_jobs, plain.persistent_jobs, "");
  add("elastic", config.elastic, plain.elastic, "");
  add("uids", config.uids, plain.uids, "");
  add("job_names", config.job_names, plain.job_names, "");
  add_time("time_to_live", config.time_to_live, plain.time_to_live);
  add("device_share", config.device_share, plain.device_share, "");
  add("host_share", config.host_share, plain.host_share, "");
  add("ssd_share", config.ssd_share, plain.ssd_share, "");
  add("device_percent", config.device_percent, plain.device_percent, "");
  add("faults.disk_read", config.faults.disk_read, 0, "");
  add("faults.disk_write", config.faults.disk_write, 0, "");
  add("faults.copy", config.faults.copy, 0, "");
  add("faults.make", config.faults.make, 0, "");
  add("faults.step", config.faults.step, 0, "");
  add("faults.part", config.faults.part, 0, "");
  add("faults.lie", config.faults.lie, 0, "");
  add("tick_ms", config.tick_ms, plain.tick_ms, "");
  const Limits& limits = config.limits;
  add("limits.sessions", limits.sessions, plain.limits.sessions, "");
  add("limits.sessions_per_uid", limits.sessions_per_uid, plain.limits.sessions_per_uid, "");
  add("limits.device_regions", limits.device_regions, plain.limits.device_regions, "");
  add("limits.chunks_per_call", limits.chunks_per_call, plain.limits.chunks_per_call, "");
  add("limits.chunks", limits.chunks, plain.limits.chunks, "");
  add("limits.waiting_calls_per_session", limits.waiting_calls_per_session,
      plain.limits.waiting_calls_per_session, "");
  add("limits.remembered_replies_per_session", limits.remembered_replies_per_session,
      plain.limits.remembered_replies_per_session, "");
  add_time("limits.max_wait", limits.max_wait, plain.limits.max_wait);
  add_time("limits.session_lease", limits.session_lease, plain.limits.session_lease);
  return source;
}

}  // namespace memtide::sim
