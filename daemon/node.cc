#include "daemon/node.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/available_memory.h"
#include "base/check.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "daemon/effect_log.h"
#include "daemon/io/fd_store.h"
#include "daemon/io/open_disk.h"
#include "daemon/recovery/restore.h"
#include "daemon/recovery/saved_jobs.h"

namespace memtide {
namespace {

// A scrape of the metrics fails if the engine does not answer in this time.
constexpr std::chrono::seconds kInspectPatience{2};
// How long gRPC may take to write the replies to calls that wait when the daemon ends.
constexpr std::chrono::seconds kReplyPatience{1};

absl::StatusOr<std::string> NewBootId() {
  std::string bytes(16, '\0');
  MEMTIDE_RETURN_IF_ERROR(FillRandom(bytes.data(), bytes.size()));
  return absl::BytesToHexString(bytes);
}

// A check costs a copy of a chunk to the host, so that checks use less than 2% of the link.
constexpr uint32_t kCleanDropsPerCheck = 64;

Verify ToVerify(v1::Verify verify) {
  return verify == v1::VERIFY_OFF   ? Verify::kOff
         : verify == v1::VERIFY_ALL ? Verify::kAll
                                    : Verify::kKept;
}

// Makes missing directories and their parents. By the umask, only this user has access.
absl::Status MakeDirectories(absl::string_view setting, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat(setting, ": cannot make \"", path, "\": ", error.message()));
    }
  }
  return absl::OkStatus();
}

void LogDirectories(const std::vector<DiskDirectory>& directories) {
  // One directory has all stripes.
  if (directories.size() == 1) return;
  uint32_t cycle = 0;
  for (const DiskDirectory& directory : directories) cycle += directory.stripes;
  for (const DiskDirectory& directory : directories) {
    const Bytes speed(static_cast<uint64_t>(directory.bytes_per_second));
    spdlog::info("ssd directory {}: {} of {} stripes, {}", directory.path, directory.stripes, cycle,
                 speed.IsZero() ? "not measured" : FormatBytes(speed) + "/s");
  }
}

v1::SsdDirectory ToProto(const DiskDirectory& directory) {
  v1::SsdDirectory proto;
  proto.set_path(directory.path);
  proto.set_bytes_per_second(static_cast<uint64_t>(directory.bytes_per_second));
  proto.set_stripes(directory.stripes);
  return proto;
}

// Routes an effect to the log, the journal, the mover or the fd socket.
struct Route {
  Mover& mover;
  FdServer& fd_server;
  Journal* journal;
  const std::vector<std::string>& ssd_dirs;

  void operator()(const SendRegion& effect) const {
    fd_server.SendRegion(effect.session, effect.region);
  }
  void operator()(const SendRegionGone& effect) const { fd_server.SendRegionGone(effect); }
  void operator()(const Revoke& effect) const { fd_server.SendRevoke(effect); }
  void operator()(const CloseSession& effect) const {
    fd_server.Close(effect.session, effect.reason);
  }
  void operator()(const SendLeaseBudget& effect) const { fd_server.SendLeaseBudget(effect); }
  void operator()(const Misprediction& effect) const { Log(effect); }
  void operator()(const MachineShort& effect) const { Log(effect); }
  void operator()(const LentUnderProcess& effect) const { Log(effect); }
  void operator()(const RegionsStayExposed& effect) const { Log(effect); }
  void operator()(const BadCopyFound& effect) const { Log(effect); }
  void operator()(const WritesWait& effect) const { Log(effect, ssd_dirs); }
  void operator()(const JobLost& effect) const { Log(effect); }
  void operator()(const TransfersFail& effect) const { Log(effect); }
  void operator()(SaveSnapshot& effect) const {
    JobRecord job = effect.snapshot->job;
    for (const StoreId store : job.stores) job.store_stripes.push_back(mover.StripesOf(store));
    mover.SaveSnapshot(job.job, job.stores, [job, snapshot = std::move(effect.snapshot)] {
      return EncodeSnapshot({job, snapshot->chunks});
    });
  }
  void operator()(Record& effect) const {
    // Only the disk knows the stripes of a store. The engine lists none that the mover has not
    // made.
    for (JobRecord& job : effect.jobs) {
      for (const StoreId store : job.stores) job.store_stripes.push_back(mover.StripesOf(store));
    }
    const absl::Status status = journal->Append(effect);
    if (!status.ok()) spdlog::warn("{}", std::string(status.message()));
  }
  void operator()(const Reply& effect) const {}  // The loop handles replies itself.
  template <typename MemoryEffect>
  void operator()(const MemoryEffect& effect) const {
    mover.Start(effect);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> Node::Start(const Config& config, PersistedState persisted) {
  std::unique_ptr<Node> node(new Node(config));
  // The directory is claimed first, so that a second daemon ends before it takes any memory.
  MEMTIDE_ASSIGN_OR_RETURN(node->socket_dir_, SocketDir::Claim(config.socket_dir));
  MEMTIDE_RETURN_IF_ERROR(node->StartMemory(Measure(persisted).blocks));
  node->StartKeeper();
  MEMTIDE_RETURN_IF_ERROR(node->StartMetrics());
  MEMTIDE_RETURN_IF_ERROR(node->StartEdges(std::move(persisted)));
  spdlog::info("memtided {} serves {}", kVersion, node->socket_dir_->path());
  return node;
}

Node::~Node() {
  // loop_ stops first, so that no event comes in and the engine decides nothing more. Then the
  // edges end, and last the mover with the transfers in flight.
  for (const OpenedDevice& each : devices_) each.device->Listen(nullptr);
  write_keeper_.reset();  // It asks the engine once more.
  if (loop_ != nullptr) loop_->Stop();
  if (grpc_server_ != nullptr) grpc_server_->Stop(kReplyPatience);
  exporter_.reset();
  fd_server_.reset();
  mover_.reset();
}

absl::Status Node::Drain(Duration patience) {
  // Health checks turn clients away before the engine has to refuse them.
  grpc_server_->SetNotServing();
  return CallAndWait(loop_.get(), DrainCall{}, patience).status;
}

EngineOptions Node::ToEngineOptions() const {
  EngineOptions options;
  for (const OpenedDevice& each : devices_) options.device_capacities.push_back(each.pool);
  if (!devices_.empty()) options.device_kinds = CommonKinds(devices_);
  options.clean_drops_per_check = kCleanDropsPerCheck;
  options.quarantine_device_slots = !config_.cuda_devices.empty();
  options.host_capacity = config_.host_pool;
  options.ssd_capacity = config_.ssd_pool;
  options.host_reserve = config_.host_reserve;
  options.limits.session_lease = config_.session_lease;
  // Half of all descriptors stays free for stores, sessions and connections.
  rlimit files;
  MEMTIDE_CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
  options.limits.device_regions_per_node = static_cast<uint32_t>(
      std::min<rlim_t>(options.limits.device_regions_per_node, files.rlim_cur / 2));
  // Without a descriptor store nothing outlives the daemon, so no record is made.
  options.persistent_jobs = HasFdStore();
  options.verify = ToVerify(config_.verify);
  options.ssd_drives = ssd_drives_;
  options.user_ssd_per_day = config_.user_ssd_written_per_day;
  options.quotas = quotas_->All();
  return options;
}

absl::Status Node::StartMemory(const std::map<uint64_t, Bytes>& persisted_blocks) {
  for (const std::string& warning : config_.warnings) {
    spdlog::warn("{}", warning);
    services_.warnings.push_back(warning);
  }
  std::string advice;
  if (AvailableHugePages(&advice) == HugePages::kNone) {
    spdlog::warn("{}", advice);
    services_.warnings.push_back(advice);
  }
  spdlog::info("host pool: {}", FormatBytes(config_.host_pool));
  MEMTIDE_ASSIGN_OR_RETURN(devices_,
                           OpenDevices(config_, socket_dir_->path(), &services_.warnings));
  if (!config_.ssd_dirs.empty()) {
    MEMTIDE_RETURN_IF_ERROR(MakeDirectories("ssd_dirs", config_.ssd_dirs));
    DiskOptions options;
    options.directories = config_.ssd_dirs;
    options.pool = config_.ssd_pool;
    options.persisted = persisted_blocks;
    MEMTIDE_ASSIGN_OR_RETURN(disk_, OpenDisk(options));
    spdlog::info("ssd pool: {}, {}", FormatBytes(config_.ssd_pool), disk_->Describe());
    LogDirectories(disk_->Directories());
    for (const DiskDirectory& directory : disk_->Directories()) {
      const size_t number = services_.ssd_directories.size();
      services_.ssd_directories.push_back(ToProto(directory));
      services_.ssd_directories.back().set_endurance_bytes(config_.ssd_endurance[number].count());
    }
    ssd_drives_ = LoadDrives(config_.ssd_dirs, config_.ssd_written_per_day);
  }
  MEMTIDE_RETURN_IF_ERROR(StartQuotas());
  engine_ = std::make_unique<Engine>(ToEngineOptions());
  loop_ = std::make_unique<Loop>(
      [engine = engine_.get()](Instant now, const Event& event, std::vector<Effect>* effects) {
        engine->Handle(now, event, effects);
      },
      static_cast<EffectSink*>(this), &edge_counters_);
  std::vector<Device*> devices;
  for (const OpenedDevice& each : devices_) devices.push_back(each.device.get());
  mover_ = std::make_unique<Mover>(
      devices, disk_.get(), [loop = loop_.get()](Event event) { loop->Post(std::move(event)); });
  for (uint32_t i = 0; i < devices.size(); ++i) {
    devices[i]->Listen([loop = loop_.get(), i](const absl::Status& state) {
      loop->Post(DeviceState{i, state});
    });
  }
  StartLoop();
  return absl::OkStatus();
}

// Without a reserve there is no balloon, and without an SSD it could not inflate.
void Node::StartLoop() {
  if (config_.host_reserve.IsZero() || config_.ssd_dirs.empty()) return loop_->Start();
  const Bytes limit = config_.memory_limit;
  const bool is_limited = !limit.IsZero() || !GetAvailableMemory().limit.IsZero();
  // One core fills 100 MiB in this time.
  const Duration period = is_limited ? Loop::kTickPeriod : Loop::kIdleTickPeriod;
  loop_->Start(period, [loop = loop_.get(), limit, parent = getppid()] {
    const AvailableMemory left = GetAvailableMemory();
    HostMemory memory{left.bytes, limit.IsZero() ? left.limit : limit};
    if (!limit.IsZero()) memory.available = std::min(left.bytes, LeftOfLimit(limit, parent));
    loop->Post(memory);
  });
}

absl::Status Node::StartQuotas() {
  if (!config_.settings_dir.empty()) {
    MEMTIDE_RETURN_IF_ERROR(MakeDirectories("settings_dir", {config_.settings_dir}));
  }
  quotas_ = std::make_unique<QuotaBook>(config_.quotas, config_.settings_dir, MachineAccounts(),
                                        Limits().quotas);
  const absl::Status loaded = quotas_->Load();
  if (loaded.ok() || absl::IsNotFound(loaded)) return absl::OkStatus();
  // Jobs may wait to be restored, so the daemon starts without them.
  spdlog::error("{}", std::string(loaded.message()));
  services_.warnings.push_back(std::string(loaded.message()));
  return absl::OkStatus();
}

NodeSnapshot Node::SnapshotOf(InspectReply node) const {
  NodeSnapshot snapshot{std::move(node), HostMemoryOf(devices_)};
  for (const OpenedDevice& each : devices_) {
    const DeviceHealth health = each.device->health();
    snapshot.devices.push_back({health.state.ok(), health.losses});
  }
  for (size_t i = 0; i < config_.ssd_dirs.size(); ++i) {
    snapshot.ssd_directories.push_back({config_.ssd_dirs[i], config_.ssd_endurance[i]});
  }
  return snapshot;
}

void Node::StartKeeper() {
  if (config_.ssd_dirs.empty()) return;
  const auto inspect = [this]() -> absl::StatusOr<InspectReply> {
    InspectCall call;
    call.past_writes = true;
    Reply reply = CallAndWait(loop_.get(), call, kInspectPatience);
    MEMTIDE_RETURN_IF_ERROR(reply.status);
    return std::get<InspectReply>(std::move(reply.value));
  };
  write_keeper_ = std::make_unique<WriteKeeper>(config_.ssd_dirs, ssd_drives_, inspect);
}

absl::Status Node::StartMetrics() {
  if (config_.metrics_address.empty()) return absl::OkStatus();
  const auto inspect = [this]() -> absl::StatusOr<NodeSnapshot> {
    InspectCall event;
    event.jobs = true;  // And quotas.
    Reply reply = CallAndWait(loop_.get(), std::move(event), kInspectPatience);
    MEMTIDE_RETURN_IF_ERROR(reply.status);
    return SnapshotOf(std::get<InspectReply>(std::move(reply.value)));
  };
  MEMTIDE_ASSIGN_OR_RETURN(
      exporter_, Exporter::Start(config_.metrics_address, kVersion, &edge_counters_, inspect));
  spdlog::info("metrics: http://{}/metrics", exporter_->address());
  std::ofstream file(socket_dir_->MetricsAddressPath());
  file << exporter_->address() << "\n";
  // close writes what is buffered, so only after it the stream knows of an error.
  file.close();
  if (file) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write \"", socket_dir_->MetricsAddressPath(), "\""));
}

absl::Status Node::Recover(PersistedState persisted) {
  Restore restore;
  if (HasFdStore()) {
    MEMTIDE_ASSIGN_OR_RETURN(journal_, OpenJournal(&persisted));
    restore = RestoreJobs(std::move(persisted.memory), journal_.get(), mover_.get());
  }
  if (disk_ != nullptr) {
    // They are read again, as another daemon may have had the directories until they were claimed.
    MEMTIDE_ASSIGN_OR_RETURN(const SavedJobs saved, LoadSavedJobs(config_.ssd_dirs));
    RestoreSavedJobs(saved, disk_.get(), mover_.get(), &restore);
  }
  const Accounts accounts = MachineAccounts();
  std::set<JobId> with_records;
  for (JobRecord& job : restore.job_records) {
    with_records.insert(job.job);
    job.groups = accounts.groups_of(job.uid);
    spdlog::info("{} of the last daemon is restored at its step {}", Named(job.name),
                 job.committed_step);
  }
  for (Snapshot& snapshot : restore.snapshots) {
    if (with_records.count(snapshot.job.job) > 0) continue;
    snapshot.job.groups = accounts.groups_of(snapshot.job.uid);
    spdlog::info("durable {} is restored at its step {}", Named(snapshot.job.name),
                 snapshot.job.committed_step);
  }
  // The mover has the memory already, which the engine only has to learn of.
  if (!restore.job_records.empty() || !restore.snapshots.empty() || restore.last_job > 0 ||
      restore.last_segment > 0) {
    loop_->Post(std::move(restore));
  }
  return absl::OkStatus();
}

absl::Status Node::StartEdges(PersistedState persisted) {
  MEMTIDE_ASSIGN_OR_RETURN(services_.boot_id, NewBootId());
  services_.loop = loop_.get();
  services_.tokens = &tokens_;
  services_.calls = &open_calls_;
  services_.metrics = &metrics_;
  services_.counters = &edge_counters_;
  services_.host_memory = [this] { return HostMemoryOf(devices_); };
  services_.lost_devices = [this] {
    std::vector<std::string> lines;
    for (const OpenedDevice& each : devices_) {
      const absl::Status state = each.device->health().state;
      if (!state.ok()) lines.push_back(std::string(state.message()));
    }
    return lines;
  };
  services_.node.fastest = devices_.empty() ? Tier::kHost : Tier::kDevice;
  services_.node.limits = ToEngineOptions().limits;
  for (const OpenedDevice& each : devices_) {
    services_.node.device_uuids.push_back(each.UuidBytes());
    services_.cuda_maps_when_idle.push_back(!each.device->maps_under_work());
  }
  services_.quotas = quotas_.get();
  services_.daemon_uid = geteuid();
  services_.admin_group = config_.admin_group;
  services_.version = kVersion;
  MEMTIDE_ASSIGN_OR_RETURN(grpc_server_,
                           GrpcServer::Start(socket_dir_->GrpcSocketPath(), &services_));
  FdServerOptions options;
  options.socket_path = socket_dir_->FdSocketPath();
  options.boot_id = services_.boot_id;
  options.grpc_target = absl::StrCat("unix:", socket_dir_->GrpcSocketPath());
  options.watch_processes = !config_.cuda_devices.empty();
  MEMTIDE_ASSIGN_OR_RETURN(
      fd_server_, FdServer::Bind(
                      std::move(options), &tokens_, &edge_counters_,
                      [loop = loop_.get()](Event event) { loop->Post(std::move(event)); },
                      [mover = mover_.get()](RegionId region) { return mover->Export(region); }));
  // Jobs are restored before the first session, which could open a new job under the name of one of
  // them.
  MEMTIDE_RETURN_IF_ERROR(Recover(std::move(persisted)));
  fd_server_->Start();
  return absl::OkStatus();
}

// REQUIRES: mover_ and fd_server_ exist. The engine has no effect for them before the first
// session, which opens after both were made.
void Node::CarryOut(Effect effect) {
  std::visit(Route{*mover_, *fd_server_, journal_.get(), config_.ssd_dirs}, effect);
}

}  // namespace memtide
